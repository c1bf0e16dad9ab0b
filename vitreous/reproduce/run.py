"""`vitreous reproduce`: the runs of an experiment, one after the other, then its table, plot and verdict.

A finished point is read from its folder and a stopped one is resumed, so that repeating the command does what
is left, or reports the same result again.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous import console, files, plot
from vitreous.config import ReproduceConfig
from vitreous.data import is_at_hand
from vitreous.errors import OptionError, ResumeError, nearest
from vitreous.options import command
from vitreous.reproduce import points as runs
from vitreous.reproduce.catalogue import EXPERIMENTS
from vitreous.reproduce.experiment import Experiment, Point, Row, Scale, verdict

RESULT = "result.json"
SETTINGS = "settings.json"
ONE = "1 seed (± is of the test images alone, --seeds 3 adds the noise of training)"
PAPER = 'style="background:#ffffff;color:#1f2431"'
"""An SVG file is viewed by itself: it can't take ink and paper from a page."""


def reproduce(name: str, options: ReproduceConfig) -> tuple[Path, Row]:
    """Run what is left of an experiment; return its folder and what `result.json` holds."""
    if name not in EXPERIMENTS:
        near = nearest(name, EXPERIMENTS, count=1) or f": there are {', '.join(EXPERIMENTS)}"
        raise OptionError(f"unknown experiment {name!r}{near} (`vitreous reproduce` lists them)")
    if options.seeds < 1 or (options.epochs is not None and options.epochs < 1):
        raise OptionError("--seeds and --epochs count runs and passes: give 1 or more")
    experiment = EXPERIMENTS[name]
    scale = _setting(experiment, options)
    assert scale.data is not None
    folder = folder_of(name, options)
    planned = [_shortened(point, options.epochs) for point in experiment.points(scale)]
    _agree(folder, scale.data, planned)
    distinct = {point.name: point for point in planned}.values()  # a run may stand in several rows
    needed = [(point, seed) for seed in range(options.seeds) for point in distinct]
    for number, (point, seed) in enumerate(needed, start=1):
        run = runs.folder_of(folder, point.name, seed)
        if not runs.is_done(point, run):
            console.note(f"{name}: run {number} of {len(needed)}: {point.name}, seed {seed} ({run}.log)")
            runs.execute(point, folder, scale.data, seed, options)
    seeds = range(options.seeds)
    rows = [runs.row_of(point, folder, scale.data, seed) for seed in seeds for point in planned]
    return folder, conclude(experiment, options, scale.data, rows, folder)


def folder_of(name: str, options: ReproduceConfig) -> Path:
    """Return the folder of an experiment at a scale."""
    return Path(options.out or Path("runs") / "reproduce" / f"{name}-{options.scale}")


def _setting(experiment: Experiment, options: ReproduceConfig) -> Scale:
    data, wanted = options.data, experiment.scales[options.scale].at_hand
    if data is None and wanted and options.data_root and is_at_hand(wanted, options.data_root):
        data = wanted
    return experiment.setting(options.scale, data)


def _shortened(point: Point, epochs: int | None) -> Point:
    return point if epochs is None else replace(point, options={**point.options, "epochs": epochs})


def _agree(folder: Path, data: str, points: Sequence[Point]) -> None:
    """Record what the experiment is made of, or refuse a folder that holds another one."""
    settings = {point.name: point.settings() for point in points}
    now = json.loads(json.dumps({"data": data, "points": settings}))  # as it is read back: tuples are lists
    path = folder / SETTINGS
    before = _read(path) if path.exists() else None
    if before is None and (held := files.held(folder)):
        raise ResumeError(
            f"{folder} holds other files ({min(held)}) and is no experiment: give a new or an empty folder "
            "as --out"
        )
    if before is None:
        files.write_json(path, now)
        return
    if before != now:
        changed = [name for name, value in now["points"].items() if before["points"].get(name) != value]
        what = f"on {before['data']}" if before["data"] != data else f"with other runs ({', '.join(changed)})"
        raise ResumeError(f"{folder} holds this experiment {what}: repeat its options, or give another --out")


def _read(path: Path) -> dict[str, Any] | None:
    """Return the settings of an experiment; None if the file is another program's."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"data", "points"} <= found.keys() else None


def conclude(
    experiment: Experiment, options: ReproduceConfig, data: str, rows: list[Row], folder: Path
) -> Row:
    """Judge the rows, write table, plots and `result.json`, and return what that holds."""
    findings = experiment.judge(rows)
    tested = sorted({row["test_images"] for row in rows if row["test_images"]})
    seeds = f"{options.seeds} seeds" if options.seeds > 1 else ONE
    held = verdict(findings)
    parts = "; ".join(finding.text for finding in findings)
    found: Row = {
        "experiment": experiment.name,
        "scale": options.scale,
        "source": experiment.source,
        "claim": experiment.claim,
        "rule": experiment.rule,
        "verdict": held,
        "sentence": f"{experiment.name}: {held} as measured, with {seeds} on {data}: {parts}",
        "findings": [vars(finding) for finding in findings],
        "data": data,
        "seeds": options.seeds,
        "command": command("reproduce", (experiment.name,), options),
        "test_images": tested,
        "device": json.loads((_first(folder) / "results.json").read_bytes())["device"],
        "seconds": seconds(rows),
        "rows": rows,
    }
    for name, figure in experiment.draw(rows).items():
        drawn = plot.svg(figure, f"{experiment.name}-{name}")
        files.write_text(folder / f"{name}.svg", drawn.replace("<svg ", f"<svg {PAPER} ", 1))
        files.write_bytes(folder / f"{name}.png", plot.png(figure))
    files.write_text(folder / "table.md", _markdown(found))
    files.write_json(folder / RESULT, found)  # last: it marks the experiment as done
    return found


def seconds(rows: Sequence[Row]) -> float:
    """Return what the runs of all rows took; a run that stands in several rows counts once."""
    return round(sum({(row["point"], row["seed"]): row["seconds"] for row in rows}.values()), 1)


def _first(folder: Path) -> Path:
    return min(path.parent for path in (folder / "points").glob("*/results.json"))


def table(found: Row) -> tuple[list[str], list[list[str]]]:
    """Return the columns and cells of a result's table, a row for each run."""
    experiment, rows = EXPERIMENTS[found["experiment"]], found["rows"]
    own = list(dict.fromkeys(name for point in _columns(rows) for name in point))
    names = [*own, "seed", "accuracy", *experiment.shown, "parameters", "multiply_adds", "seconds"]
    cells = [[_cell(name, row.get(name)) for name in names] for row in rows]
    return [name.replace("_", " ") for name in names], cells


def _columns(rows: Sequence[Row]) -> list[list[str]]:
    """Return the names of each row's own columns: those between the seed and the accuracy."""
    names = [list(row) for row in rows]
    return [each[each.index("seed") + 1 : each.index("accuracy")] for each in names]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name in ("accuracy", "fewshot", "knn"):
        return f"{value:.2%}"
    if isinstance(value, float):
        return f"{value:.3g}" if name != "seconds" else f"{value:.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _markdown(found: Row) -> str:
    """Return the table with the claim above and the verdict below."""
    names, cells = table(found)
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [names, *cells]]
    lines.insert(1, "|" + "---|" * len(names))
    head = f"**{found['source']}**: {found['claim']}"
    return "\n\n".join([head, f"Rule: {found['rule']}", "\n".join(lines), found["sentence"] + "."]) + "\n"


def listing(options: ReproduceConfig) -> list[Row]:
    """Return every experiment with its claim, its cost at the scale, and its verdict if it has one."""
    found = []
    for name, experiment in EXPERIMENTS.items():
        folder = folder_of(name, replace(options, out=None))
        path = folder / RESULT
        known = json.loads(path.read_bytes())["verdict"] if path.is_file() else None
        begun = "stopped" if (folder / SETTINGS).is_file() else None
        row = {"name": name, "source": experiment.source, "claim": experiment.claim}
        found.append({**row, "cost": experiment.scales[options.scale].cost, "result": known or begun})
    return found
