"""What was found, as rows of one shape, as tables for people, and as files. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous import console, files
from vitreous.bench.cases import Case
from vitreous.models import zoo

if TYPE_CHECKING:
    from vitreous.bench.measure import Timed

Row = dict[str, Any]


def row(case: Case, timed: "Timed", ours: float | None, on_cores: bool = False) -> Row:
    """Return the row of one contender. `ours`: our images per second, for the ratio; `on_cores`: whether this
    process does all of the work, on the CPU."""
    contender = timed.contender
    size = case.image_size
    return {
        "name": contender.name,
        "version": contender.version,
        "job": case.job,
        "model": case.model,
        "data": case.data,
        "image_size": None if size is None else list(size),
        "batch_size": case.batch_size,
        "precision": case.precision,
        "merge": contender.merge,
        "images_per_second": timed.rate,
        "lowest": min(timed.rates),
        "highest": max(timed.rates),
        "images_per_core_second": timed.core_rate if on_cores else None,
        "rounds": len(timed.rates),
        "ratio": None if ours is None or contender.ours else ours / timed.rate,
        "mfu": None,
        "peak_memory_bytes": timed.memory,
        "first_seconds": timed.first,
    }


def brief(rows: Sequence[Row]) -> str:
    """Return the rows of one case in a line: each speed, and our ratio to it."""
    told = []
    for each in rows:
        rate, ratio = each["images_per_second"], each["ratio"]
        speed = f"{1 / rate:.2f} s" if each["job"] == "start" else f"{number(rate)} images/s"
        told.append(f"{each['name']} {speed}" + ("" if ratio is None else f" ({ratio:.2f})"))
    return ", ".join(told)


COLUMNS = ("what", "by", "images/s", "from", "to", "per core-second", "ratio", "MFU", "memory", "first call")


def speeds(rows: Sequence[Row]) -> tuple[list[str], list[list[console.Cell]]]:
    """Return the table of speeds; a column that no row fills is left out."""
    cells: list[list[console.Cell]] = [
        [
            what,
            f"{each['name']} {each['version']}",
            number(each["images_per_second"]),
            number(each["lowest"]),
            number(each["highest"]),
            None if each["images_per_core_second"] is None else number(each["images_per_core_second"]),
            None if each["ratio"] is None else f"{each['ratio']:.2f}",
            None if each["mfu"] is None else f"{each['mfu']:.1%}",
            None if each["peak_memory_bytes"] is None else console.size(each["peak_memory_bytes"]),
            f"{each['first_seconds']:.2f} s",
        ]
        for what, each in zip(_once(rows), rows, strict=True)
    ]
    kept = [i for i in range(len(COLUMNS)) if any(line[i] is not None for line in cells)]
    return [COLUMNS[i] for i in kept], [[line[i] for i in kept] for line in cells]


def profiles(rows: Sequence[Row]) -> tuple[list[str], list[list[console.Cell]]]:
    """Return the table of where the time goes: a column for each kind of work."""
    found = [each for each in rows if "profile" in each]
    kinds = list(dict.fromkeys(kind for each in found for kind in each["profile"]))
    cells: list[list[console.Cell]] = [
        [what, each["name"], *(f"{each['profile'].get(kind, 0.0):.0%}" for kind in kinds)]
        for what, each in zip(_once(found), found, strict=True)
    ]
    return ["what", "by", *kinds], cells


def _once(rows: Sequence[Row]) -> list[str]:
    """Return what each row is about; nothing if the row before it has the same."""
    labels = [label(each) for each in rows]
    return [each if number == 0 or labels[number - 1] != each else "" for number, each in enumerate(labels)]


def label(row: Row) -> str:
    """Return what a row is about, in a few words: the paper's model name, a square size as one number."""
    alias = next((alias for alias, known in zoo.ALIASES.items() if known == row["model"]), row["model"])
    sides = list(dict.fromkeys(row["image_size"] or ()))
    batch = row["batch_size"] and f"batch {row['batch_size']}"
    parts = (alias, row["data"], "x".join(map(str, sides)), batch, row["precision"])
    return ", ".join([row["job"], *(each for each in parts if each)])


def number(value: float) -> str:
    """Return images per second with about three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def write(folder: Path, document: dict[str, Any]) -> list[Path]:
    """Write bench.json and bench.svg, and return their paths."""
    from vitreous import plot

    groups: dict[str, list[Row]] = {}
    for each in document["rows"]:
        groups.setdefault(label(each), []).append(each)
    written = [folder / "bench.json", folder / "bench.svg"]
    files.write_json(written[0], document)
    files.write_text(written[1], plot.svg(plot.speeds(groups), "bench"))
    return written
