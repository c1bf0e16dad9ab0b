"""The report of a run, from what its folder holds: what is there is shown, what is missing is left out."""

import json
from pathlib import Path
from typing import Any

from vitreous.data import Dataset, open_data
from vitreous.errors import VitreousError
from vitreous.predict import Classifier, load
from vitreous.report.document import Picture, Report, environment, said, warn_left_out
from vitreous.report.evaluation import FIRST, called, chosen, figure, headline, inside, look, measured
from vitreous.report.page import write
from vitreous.training import journal

DETAILS = ("seconds", "start_seconds", "images_per_second", "waited_for_data", "bottleneck", "step", "steps")
"""What comes first of how a run came about."""


def write_run(folder: Path, data: Dataset | None = None, classifier: Classifier | None = None) -> Path:
    """Write `report.html` into a run folder and return its path."""
    return write(folder / "report.html", from_run(folder, data, classifier))


def from_run(folder: Path, data: Dataset | None = None, classifier: Classifier | None = None) -> Report:
    """Build the report of a run folder; without `data`, the data set that the run names is opened.

    Read, where present: `config.json`, `metrics.jsonl`, `results.json`, `evaluation.json` (everything that
    was measured), `check.json`, `model_card.md`, and `best.safetensors` if no `classifier` is given: the
    model is used to show what it looks at, and is not evaluated again.
    """
    config, evaluation = _json(folder / "config.json"), _json(folder / "evaluation.json")
    results, card = _json(folder / "results.json"), folder / "model_card.md"
    report = Report(
        title=folder.resolve().name,
        subtitle=str(config.get("data", "")),
        command=_command(config),
        environment=environment(),
        headline=headline(evaluation, str(evaluation.get("split") or "")),
        summary=_summary(results, evaluation),
        advice=[line for line in results.get("advice", []) if isinstance(line, str) and line],
        details=_details(results),
        metrics=journal.read(folder / "metrics.jsonl"),
        check={said(name): _text(value) for name, value in _json(folder / "check.json").items()},
        settings=_settings(config),
        card=card.read_text(encoding="utf-8") if card.is_file() else "",
    )
    measured(report, evaluation)
    if (folder / "best.safetensors").is_file():
        model = classifier or load(folder / "best.safetensors")
        _look(report, model, config, evaluation, data)
    if (folder / "preview.png").is_file():
        painted = Picture(
            title="What is seen, and what the model makes of it",
            png=(folder / "preview.png").read_bytes(),
            how="Images that it did not learn from. What is hidden from the model is gray; it fills that in.",
        )
        report.pictures = [painted, *report.pictures]
    return report


def _look(
    report: Report,
    classifier: Classifier,
    config: dict[str, Any],
    evaluation: dict[str, Any],
    data: Dataset | None,
) -> None:
    """Add what needs the model, and the images where they can still be read."""
    try:
        root, seed = config.get("data_root"), config.get("options", {}).get("seed") or 0
        splits = (data or open_data(config["data"], data_root=root, seed=seed)).splits
        report.split = report.split or next(name for name in ("test", "val", "train") if name in splits)
        split = splits[report.split]
        look(report, classifier, split, evaluation)
    except (VitreousError, KeyError, StopIteration) as error:
        left_out = warn_left_out("mistakes and attention", error)
        report.pictures, notes = inside(classifier, [])
        report.notes = [left_out, *notes]


def _summary(results: dict[str, Any], evaluation: dict[str, Any]) -> dict[str, str]:
    """Return the figures of each split in words, except the one that the page begins with."""
    summary: dict[str, str] = {}
    measured_on, first = evaluation.get("split"), chosen(evaluation)
    for split in ("test", "val"):
        figures = results.get(split) or {}
        names: list[str] = [*FIRST, *(name for name in figures if name not in FIRST)]
        if split == "val" and "test" in results:
            # what the best step was chosen by, and what is known of its time only
            kept = {first or "", "loss", *(name for name in figures if name not in results["test"])}
            names = [name for name in names if name in kept]
        for name in names:
            shown = name != "count" and (split, name) != (measured_on, first)
            if shown and isinstance(value := figures.get(name), int | float):
                summary[f"{called(name)}, {split}"] = figure(name, value)
    return summary


def _details(results: dict[str, Any]) -> dict[str, str]:
    """Return how a run came about: time, speed, steps, hardware."""
    shown = {name: results[name] for name in DETAILS if name in results}
    shown |= {name: value for name, value in results.items() if name not in shown}
    if shown.get("ranks") == 1:
        del shown["ranks"]
    return {
        called(name): figure(name, value)
        for name, value in shown.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool)
    }


def _command(config: dict[str, Any]) -> str:
    command = config.get("command", "")
    return " ".join(map(str, command)) if isinstance(command, list) else str(command)


def _settings(config: dict[str, Any]) -> dict[str, str]:
    """Return the options of a run by name, nested ones as `plan.lr`; automatic choices say why."""
    flat: dict[str, str] = {}
    reasons = config.get("plan", {}).get("reasons", {})

    def visit(prefix: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name == "reasons" or value is None:
                continue
            if isinstance(value, dict):
                visit(f"{prefix}{name}.", value)
            else:
                why = f" ({reasons[name]})" if prefix.startswith("plan.") and name in reasons else ""
                flat[f"{prefix}{name}"] = _text(value) + why

    visit("", {name: value for name, value in config.items() if name not in ("command", "labels")})
    return flat


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]} …"


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        warn_left_out(path.name, error)
        return {}
    return found if isinstance(found, dict) else {}
