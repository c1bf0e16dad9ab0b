"""`report.html` of a run, made from what its folder holds: one file, no network, nothing computed anew.

Every name that comes from files (classes, paths) is escaped; the page has no script.
"""

import base64
import html
import io
import re
from pathlib import Path
from typing import Any

from vitreous import console, files
from vitreous.data import open_data
from vitreous.errors import DataError
from vitreous.journal import read
from vitreous.resume import read_json

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
td, th { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #8884; }
figure { margin: 1rem 0; }
figure svg { max-width: 100%; height: auto; background: #fff; border-radius: .3rem; }
.mistakes { display: flex; flex-wrap: wrap; gap: .8rem; } .mistakes figure { margin: 0; width: 8rem; }
.mistakes img { width: 8rem; height: 8rem; object-fit: contain; image-rendering: pixelated; }
figcaption, small { font-size: .8rem; overflow-wrap: anywhere; } .wide { overflow-x: auto; }
.confusion td { text-align: center; min-width: 1.8rem; padding: .1rem .3rem; border: 0; }
"""
LARGEST_CONFUSION = 40


def write(folder: Path) -> Path:
    """Write the report of a finished run and return its path."""
    config, results = read_json(folder / "config.json"), read_json(folder / "results.json")
    evaluation = read_json(folder / "evaluation.json")
    parts = [
        _summary(config, results),
        _curves(read(folder / "metrics.jsonl")),
        _classes(evaluation),
        _confusion(evaluation),
        _mistakes(config, evaluation),
        _choices(config),
    ]
    title = html.escape(folder.name)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f"<h1>{title}</h1>{''.join(parts)}</html>\n"
    )
    path = folder / "report.html"
    files.write_text(path, page)
    return path


def _table(rows: list[tuple[str, ...]], head: tuple[str, ...] = ()) -> str:
    cells = "".join(f"<th>{html.escape(cell)}" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in row) for row in rows)
    return f'<div class="wide"><table>{f"<tr>{cells}" if head else ""}{body}</table></div>'


def _summary(config: dict[str, Any], results: dict[str, Any]) -> str:
    rows = []
    for split in ("val", "test"):
        if split in results:
            found = results[split]
            right = round(found["accuracy"] * found["count"])
            rows.append(
                (f"accuracy on {split}", f"{found['accuracy']:.2%} ({right:,} of {found['count']:,.0f})")
            )
    rows.append(("training", f"{console.duration(results['seconds'])} on {results['device']}"))
    if results.get("images_per_second"):
        rows.append(("speed", f"{results['images_per_second']:,.0f} images/s"))
    rows.append(("peak memory", console.size(results["peak_memory_bytes"])))
    rows.append(("command", config["command"]))
    return f"<h2>Result</h2>{_table(rows)}"


def _curves(records: list[dict[str, Any]]) -> str:
    """Draw loss and accuracy over the steps, training beside validation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for split, colour in (("train", "#0072b2"), ("val", "#d55e00")):  # told apart by the colour-blind too
            points = [(r["step"], r[name]) for r in records if r.get("split") == split and name in r]
            if points:
                style = "o-" if len(points) < 30 and split == "val" else "-"
                axes.plot(*zip(*points, strict=True), style, color=colour, label=split, markersize=3)
        axes.set(xlabel="step", ylabel=name)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    image = re.sub(r"(?s)^.*?(?=<svg)|<metadata>.*?</metadata>", "", drawn.getvalue())
    caption = (
        "Training is measured on varied images and without averaged weights, so it may lie below validation."
    )
    return f"<h2>Curves</h2><figure>{image}<figcaption>{caption}</figcaption></figure>"


def _classes(evaluation: dict[str, Any]) -> str:
    """Show how often each class was recognised, the worst first."""
    confusion, labels = evaluation.get("confusion"), evaluation["labels"]
    if not confusion or not any(map(sum, confusion)):
        return ""
    rows = []
    for i, row in enumerate(confusion):
        if sum(row):
            rows.append((row[i] / sum(row), labels[i], row[i], sum(row)))
    shown = sorted(rows)[:100]
    more = f"<p><small>and {len(rows) - 100:,} more classes</small>" if len(rows) > 100 else ""
    table = _table(
        [(label, f"{share:.1%}", f"{right:,}", f"{count:,}") for share, label, right, count in shown],
        ("class", "recognised", "right", "images"),
    )
    return f"<h2>Classes, on {html.escape(evaluation['split'])}</h2>{table}{more}"


def _confusion(evaluation: dict[str, Any]) -> str:
    """Show which classes are taken for which; too many classes would not fit a page."""
    confusion, labels = evaluation.get("confusion"), evaluation["labels"]
    if not confusion or len(labels) > LARGEST_CONFUSION:
        return ""
    body = []
    for label, row in zip(labels, confusion, strict=True):
        whole = max(1, sum(row))
        cells = "".join(
            f'<td style="background: rgb(0 114 178 / {count / whole:.2f})">{count or ""}' for count in row
        )
        body.append(f"<tr><th>{html.escape(label)}{cells}")
    heads = "".join(f"<th>{html.escape(label)}" for label in labels)
    return (
        '<h2>Confusion</h2><div class="wide"><table class="confusion">'
        f"<tr><th>truth \\ answer{heads}{''.join(body)}</table></div>"
    )


def _mistakes(config: dict[str, Any], evaluation: dict[str, Any]) -> str:
    """Show the images that were most wrong."""
    worst, labels = evaluation.get("worst", []), evaluation["labels"]
    if not worst:
        return ""
    try:
        dataset = open_data(config["data"], data_root=config["data_root"], seed=config["options"]["seed"])
        split = dataset.splits[evaluation["split"]]
        pictures = [_picture(split.read(row["index"])) for row in worst]
    except (DataError, KeyError, IndexError):
        pictures = [""] * len(worst)  # the data has moved since: names are left
    shown = []
    for row, picture in zip(worst, pictures, strict=True):
        truth, guess = html.escape(labels[row["truth"]]), html.escape(labels[row["guess"]])
        image = f'<img src="data:image/png;base64,{picture}" alt="">' if picture else ""
        shown.append(
            f"<figure>{image}<figcaption>{truth}, taken for {guess} ({row['probability']:.0%})"
            f"<br><small>{html.escape(row['file'])}</small></figcaption></figure>"
        )
    return f'<h2>Worst mistakes</h2><div class="mistakes">{"".join(shown)}</div>'


def _picture(image: Any) -> str:
    image = image.convert("RGB")
    image.thumbnail((128, 128))
    data = io.BytesIO()
    image.save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


def _choices(config: dict[str, Any]) -> str:
    """List the options that were chosen, with their reasons, and those that were given."""
    plan = config["plan"]
    chosen = []
    for name, reason in plan["reasons"].items():
        value = plan.get(name, plan["architecture"].get(name, ""))
        chosen.append((name, f"{value:.3g}" if isinstance(value, float) else str(value), reason))
    given = [(n, str(v)) for n, v in config["options"].items() if v is not None and n not in plan["reasons"]]
    return (
        f"<h2>Chosen</h2>{_table(chosen, ('option', 'value', 'because'))}"
        f"<h2>Given, or fixed</h2>{_table(given, ('option', 'value'))}"
    )
