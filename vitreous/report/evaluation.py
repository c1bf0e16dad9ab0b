"""The report of an evaluation: what `vitreous evaluate` measured, with the images that it was wrong about."""

from pathlib import Path
from typing import Any

import numpy as np

from vitreous import files, inspection, plot
from vitreous.data import Dataset, Split, open_data
from vitreous.errors import DataError, VitreousError
from vitreous.predict import Classifier, load
from vitreous.report.batches import NamedImage
from vitreous.report.document import (
    ClassRow,
    Mistake,
    Picture,
    Reliability,
    Report,
    class_rows,
    environment,
    said,
    warn_left_out,
)
from vitreous.report.inspecting import pictures
from vitreous.report.observe import findings
from vitreous.report.page import write

LOOKED_AT = 8
"""Images of the split whose attention is looked at."""
NAMES = {
    "top5": "top-5 accuracy",
    "ece": "calibration error",
    "count": "images",
    "f1": "F1, mean of classes",
    "step": "best at step",
    "seconds": "time",
    "mfu": "MFU",
    "start_seconds": "of it before the first step",
    "waited_for_data": "of the steps' time, waiting for data",
    "bottleneck": "what sets the pace",
}
SHARES = {
    "accuracy",
    "top5",
    "ece",
    "mfu",
    "waited_for_data",
    "f1",
    "precision",
    "recall",
    "mean_average_precision",
    "mean_per_class_accuracy",
    "real_accuracy",
}
FIRST = ("accuracy", "mean_average_precision", "top5", "loss", "ece", "f1", "count", "real_accuracy")


def write_evaluation(
    folder: Path, document: dict[str, Any], data: Dataset | None = None, command: str = ""
) -> Path:
    """Write `evaluation.json` and `report.html` of what `vitreous evaluate` measured; return the page."""
    files.write_json(folder / "evaluation.json", document)
    return write(folder / "report.html", from_evaluation(document, data, command))


def from_evaluation(document: dict[str, Any], data: Dataset | None = None, command: str = "") -> Report:
    """Build the report of a document of `vitreous evaluate`, which names its checkpoint, data and split."""
    shown = {name: document[name] for name in FIRST if isinstance(document.get(name), int | float)}
    report = Report(
        title=f"{Path(str(document.get('checkpoint', 'evaluation'))).name} on {document.get('data', 'data')}",
        subtitle=str(document.get("checkpoint", "")),
        command=command,
        environment=environment(),
        summary={called(name): figure(name, value) for name, value in shown.items()},
        check={"unreadable": "; ".join(document["bad_files"])} if document.get("bad_files") else {},
    )
    interval = document.get("accuracy_interval")
    if interval and "accuracy" in report.summary:
        span = f"{interval[0]:.1%} to {interval[1]:.1%}"
        report.summary = {**report.summary, "accuracy, 95 % interval": span}
    measured(report, document)
    try:
        _, split = (data or open_data(document["data"])).part(document["split"])
        look(report, load(document["checkpoint"]), split, document)
    except (VitreousError, KeyError) as error:
        report.notes = [*report.notes, warn_left_out("images and figures", error)]
    return report


def measured(report: Report, document: dict[str, Any]) -> None:
    """Add what a document says of a split: confusion, reliability and classes."""
    rows = document.get("per_class") or []
    report.split = str(document.get("split") or report.split)
    report.labels = document.get("labels") or [row["label"] for row in rows] or report.labels
    if np.ndim(document.get("confusion") or 0) == 2:  # of several labels per image each has its own matrix
        report.confusion = np.array(document["confusion"], np.int64)
        report.per_class = class_rows(report.confusion, report.labels)
    elif rows:
        report.per_class = [
            ClassRow(
                label=row["label"], count=row["count"], recall=row["recall"], precision=row.get("precision")
            )
            for row in sorted(rows, key=lambda row: row["recall"])
            if row["count"]
        ]
    if bins := document.get("reliability"):
        columns = {
            name: np.array([row[name] for row in bins]) for name in ("confidence", "accuracy", "count")
        }
        report.reliability = Reliability(**columns)


def look(report: Report, classifier: Classifier, split: Split, document: dict[str, Any]) -> None:
    """Add what needs the model and the images: mistakes with their rollout, and the paper's figures."""
    report.mistakes = mistakes(classifier, split, document.get("worst") or [])
    channels = classifier.preprocess.preprocessing.channels
    picked = []
    for i in np.unique(np.linspace(0, len(split) - 1, min(LOOKED_AT, len(split))).round().astype(int)):
        try:
            picked.append(NamedImage(split.name(int(i)), split.read(int(i), channels)))
        except DataError:
            continue  # the evaluation has named it
    report.pictures, notes = inside(classifier, picked)
    report.notes = [*report.notes, *notes]


def inside(classifier: Classifier, picked: list[NamedImage]) -> tuple[list[Picture], list[str]]:
    """Return the paper's figures of a classifier, and what was left out."""
    found = findings(classifier, picked)
    return pictures(found), found.notes


def mistakes(classifier: Classifier, split: Split, worst: list[dict[str, Any]]) -> list[Mistake]:
    """Return the worst mistakes with their images and, where the model has attention, their rollout."""
    found = []
    channels = classifier.preprocess.preprocessing.channels
    for row in worst:
        image = seen = None
        try:
            prepared = classifier.prepare(split.read(row["index"], channels))
            image = prepared.pixels.copy()
            if classifier.model.config.has_attention:
                batch = classifier.collate([prepared])
                rollout = inspection.rollout(classifier.model, batch.images, batch.mask)
                seen = plot.overlay(image, rollout[0].cpu().numpy())
        except (DataError, IndexError):
            pass  # the data has moved since: names are left
        found.append(
            Mistake(
                truth=_label(row["truth"], classifier.labels),
                answer=_label(row["guess"], classifier.labels),
                probability=row["probability"],
                file=str(row.get("file") or split.name(row["index"])),
                image=image,
                seen=seen,
            )
        )
    return found


def _label(value: int | str, labels: list[str]) -> str:
    return labels[value] if isinstance(value, int) else value


def called(name: str) -> str:
    """Return a figure's name as people read it."""
    return NAMES.get(name, said(name.removesuffix("_bytes")))


def figure(name: str, value: float | str) -> str:
    """Return a figure as people read it."""
    if isinstance(value, str):
        return value
    if name in SHARES:
        return f"{value:.2%}"
    if name in ("seconds", "start_seconds"):
        minutes, seconds = divmod(round(value), 60)
        return f"{minutes} min {seconds} s" if minutes else f"{value:.1f} s"
    if name.endswith("_bytes"):
        return f"{value / 2**20:,.0f} MiB"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.4g}"
