"""The report of a run, from what its folder holds: what is there is shown, what is missing is left out."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import predict
from vitreous.data import Dataset, open_data
from vitreous.errors import VitreousError
from vitreous.predict import Classifier
from vitreous.report.assess import assess, mistakes
from vitreous.report.document import Reliability, Report, environment, said, warn_left_out
from vitreous.report.findings import Picked, findings
from vitreous.report.inspecting import pictures
from vitreous.report.page import write

FEW = 5_000
"""Images of a split that are judged again where the run has not written down what the report needs."""
LOOKED_AT = 8
"""Images of the split whose attention is looked at."""
NAMES = {
    "top5": "top-5 accuracy",
    "ece": "calibration error",
    "count": "images",
    "step": "best at step",
    "seconds": "time",
    "mfu": "MFU",
}


def write_run(folder: Path, data: Dataset | None = None) -> Path:
    """Write `report.html` into a run folder and return its path."""
    return write(folder / "report.html", from_run(folder, data))


def from_run(folder: Path, data: Dataset | None = None) -> Report:
    """Build the report of a run folder; without `data`, the data set that the run names is opened.

    Read, where present: `config.json`, `metrics.jsonl`, `results.json`, `evaluation.json`, `check.json`,
    `model_card.md` and `best.safetensors` (for the figures, the reliability and the mistakes' rollout).
    """
    config, results = _json(folder / "config.json"), _json(folder / "results.json")
    evaluation = _json(folder / "evaluation.json")
    card = folder / "model_card.md"
    report = Report(
        title=folder.resolve().name,
        subtitle=str(config.get("data", "")),
        command=_command(config),
        environment=environment(),
        summary=_summary(results),
        metrics=_rows(folder / "metrics.jsonl"),
        split=str(evaluation.get("split") or ""),
        labels=evaluation.get("labels", []),
        check={said(name): _text(value) for name, value in _json(folder / "check.json").items()},
        settings=_settings(config),
        card=card.read_text(encoding="utf-8") if card.is_file() else "",
    )
    if evaluation.get("confusion"):
        report.confusion = np.array(evaluation["confusion"], np.int64)
    if bins := evaluation.get("reliability"):
        report.reliability = Reliability(
            **{name: np.array(bins[name]) for name in ("confidence", "accuracy", "count")}
        )
    best = folder / "best.safetensors"
    if best.is_file():
        _look(report, predict.load(best), config, evaluation, data)
    return report


def _look(
    report: Report,
    classifier: Classifier,
    config: dict[str, Any],
    evaluation: dict[str, Any],
    data: Dataset | None,
) -> None:
    """Add what needs the model, and the images where they can still be read."""
    notes: list[str] = []
    picked: list[Picked] = []
    try:
        opened = data or open_data(config["data"], seed=config.get("options", {}).get("seed", 0))
        split = opened.splits[
            report.split or next(name for name in ("test", "val", "train") if name in opened.splits)
        ]
    except (VitreousError, KeyError, StopIteration) as error:
        notes.append(warn_left_out("images", error))
    else:
        report.split = report.split or next(name for name in opened.splits if opened.splits[name] is split)
        report.labels = report.labels or opened.labels
        if classifier.labels and split.targets.ndim == 1 and len(split):
            if report.reliability is None and len(split) <= FEW:
                for name, value in assess(classifier, split).items():
                    setattr(report, name, value)
            elif worst := evaluation.get("worst"):
                report.mistakes = mistakes(classifier, split, worst)
        channels = classifier.model.config.in_channels
        spread = np.linspace(0, len(split) - 1, min(LOOKED_AT, len(split))).round().astype(int)
        picked = [Picked(split.name(int(i)), split.read(int(i), channels)) for i in np.unique(spread)]
    found = findings(classifier, picked)
    report.pictures = pictures(found)
    report.notes = [*notes, *found.notes]


def _summary(results: dict[str, Any]) -> dict[str, str]:
    """Say the figures of `results.json` in words, those of splits first."""
    summary: dict[str, str] = {}
    first = ("accuracy", "top5", "loss", "ece", "count")
    for split in ("test", "val"):
        figures = results.get(split) or {}
        for name in [*first, *(name for name in figures if name not in first)]:
            if isinstance(value := figures.get(name), int | float):
                summary[f"{_called(name)}, {split}"] = _figure(name, value)
    for name, value in results.items():
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            summary[_called(name)] = _figure(name, value)
    return summary


def _called(name: str) -> str:
    return NAMES.get(name, said(name.removesuffix("_bytes")))


def _figure(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if name in ("accuracy", "top5", "ece", "mfu"):
        return f"{value:.2%}"
    if name == "seconds":
        minutes, seconds = divmod(round(value), 60)
        return f"{minutes} min {seconds} s" if minutes else f"{value:.1f} s"
    if name.endswith("_bytes"):
        return f"{value / 2**20:,.0f} MiB"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.4g}"


def _command(config: dict[str, Any]) -> str:
    command = config.get("command", "")
    return " ".join(map(str, command)) if isinstance(command, list) else str(command)


def _settings(config: dict[str, Any]) -> dict[str, str]:
    """Return the options of a run by name; nested ones as `plan.lr`."""
    flat: dict[str, str] = {}

    def visit(prefix: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                visit(f"{prefix}{name}.", value)
            elif value is not None:
                flat[f"{prefix}{name}"] = _text(value)

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


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the records of a journal; a line that was cut by a kill is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
