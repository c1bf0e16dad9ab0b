"""The report of an evaluation: what `vitreous evaluate` measured, with images that the model got wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous import files, plot
from vitreous.data import Dataset, Split, open_data
from vitreous.errors import DataError, VitreousError
from vitreous.evaluate import further
from vitreous.inspection import gradients
from vitreous.predict import Classifier, Prepared, load
from vitreous.report import features
from vitreous.report.batches import NamedImage
from vitreous.report.document import (
    ClassRow,
    Headline,
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
"""Images of the split whose attention is shown."""
NAMES = {
    "top5": "top-5 accuracy",
    "ece": "calibration error",
    "count": "images",
    "f1": "F1, mean of classes",
    "knn": "neighbours of the same class",
    "step": "best at step",
    "seconds": "time",
    "mfu": "MFU",
    "start_seconds": "time before the first step",
    "waited_for_data": "part of the steps' time spent waiting for images",
    "bottleneck": "slowest part",
}
SHARES = {
    "accuracy",
    "knn",
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
HEADLINES = ("mean_average_precision", "accuracy", "knn", "loss")


def write_evaluation(
    folder: Path, document: dict[str, Any], data: Dataset | None = None, command: str = ""
) -> Path:
    """Write `evaluation.json` and `report.html` of what `vitreous evaluate` measured; return the page."""
    files.write_json(folder / "evaluation.json", document)
    return write(folder / "report.html", from_evaluation(document, data, command))


def from_evaluation(document: dict[str, Any], data: Dataset | None = None, command: str = "") -> Report:
    """Build the report from the document of `vitreous evaluate`, which names checkpoint, data and split."""
    shown = {name: document[name] for name in FIRST if isinstance(document.get(name), int | float)}
    first = headline(document, str(document.get("split") or ""))
    source = str(document.get("checkpoint", "evaluation"))
    report = Report(
        title=f"{Path(source).name} on {document.get('data', 'data')}",
        subtitle="" if Path(source).name == source else source,
        command=command,
        environment=environment(),
        headline=first,
        summary={
            called(name): figure(name, value)
            for name, value in shown.items()
            if first is None or name not in (chosen(document), "count")
        }
        | dict(further(document)),
        check={"unreadable": "; ".join(document["bad_files"])} if document.get("bad_files") else {},
    )
    measured(report, document)
    try:
        _, split = (data or open_data(document["data"])).part(document["split"])
        look(report, load(document["checkpoint"]), split, document)
    except (VitreousError, KeyError) as error:
        report.notes = [*report.notes, warn_left_out("images and figures", error)]
    return report


def chosen(figures: Mapping[str, Any]) -> str | None:
    """Return the figure that a page begins with."""
    return next((name for name in HEADLINES if isinstance(figures.get(name), int | float)), None)


def headline(figures: Mapping[str, Any], split: str) -> Headline | None:
    """Return the first figure of a split with its interval, where that was measured."""
    if (name := chosen(figures)) is None:
        return None
    notes = []
    if interval := figures.get(f"{name}_interval"):
        notes.append(f"95 % interval {interval[0]:.1%} to {interval[1]:.1%}")
    if isinstance(count := figures.get("count"), int | float):
        notes.append(f"{count:,.0f} images")
    where = f"{called(name)} on {split}" if split else called(name)
    return Headline(name=where, value=figure(name, figures[name]), note=", ".join(notes))


def measured(report: Report, document: dict[str, Any]) -> None:
    """Add what a document says about a split: confusion, reliability and classes."""
    rows = document.get("per_class") or []
    report.split = str(document.get("split") or report.split)
    report.labels = document.get("labels") or [row["label"] for row in rows] or report.labels
    if np.ndim(document.get("confusion") or 0) == 2:  # with several labels per image, each has its own
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
    """Add what needs the model and the images: mistakes with their maps, and the paper's figures."""
    report.mistakes = mistakes(classifier, split, document.get("worst") or [])
    channels = classifier.preprocess.preprocessing.channels
    picked = []
    for i in split.sample(LOOKED_AT):
        try:
            picked.append(NamedImage(split.name(int(i)), split.read(int(i), channels)))
        except DataError:
            continue  # the evaluation has reported it
    report.pictures, notes = inside(classifier, picked)
    if not classifier.labels:
        report.pictures = [*features.pictures(classifier, split), *report.pictures]
    report.notes = [*report.notes, *notes]


def inside(classifier: Classifier, picked: list[NamedImage]) -> tuple[list[Picture], list[str]]:
    """Return the paper's figures of a classifier, and what was left out."""
    found = findings(classifier, picked)
    return pictures(found), found.notes


def mistakes(classifier: Classifier, split: Split, worst: list[dict[str, Any]]) -> list[Mistake]:
    """Return the worst mistakes with their images, and what supported the answer and the truth."""
    found = []
    channels = classifier.preprocess.preprocessing.channels
    for row in worst:
        image = seen = missed = None
        try:
            prepared = classifier.prepare(split.read(row["index"], channels))
            image = prepared.pixels.copy()
            asked = [_number(row[name], classifier.labels) for name in ("guess", "truth")]
            seen, missed = (plot.overlay(image, each) for each in _maps(classifier, prepared, asked))
        except (DataError, IndexError):
            pass  # the data has moved since: show names only
        found.append(
            Mistake(
                truth=_label(row["truth"], classifier.labels),
                answer=_label(row["guess"], classifier.labels),
                probability=row["probability"],
                file=str(row.get("file") or split.name(row["index"])),
                image=image,
                seen=seen,
                missed=missed,
            )
        )
    return found


def _maps(classifier: Classifier, prepared: Prepared, classes: list[int]) -> list[np.ndarray]:
    """Return a map of one image for each class: rollout weighted by its gradient, or Grad-CAM of a CNN."""
    images, mask = classifier.collate([prepared] * len(classes))
    found = gradients.explain(classifier.model, images, torch.tensor(classes), mask)
    maps = found.cam if found.rollout is None else found.rollout
    return [each.cpu().numpy() for each in maps]


def _number(value: int | str, labels: list[str]) -> int:
    return value if isinstance(value, int) else labels.index(value)


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
    whole = float(value).is_integer() or abs(value) >= 1000 or name == "images_per_second" and value >= 10
    return f"{value:,.0f}" if whole else f"{value:.4g}"
