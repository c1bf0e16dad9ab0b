"""From the rows of `metrics.jsonl` to curves: one picture per figure, training beside validation."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitreous import plot
from vitreous.report.document import Picture

Points = list[tuple[float, float]]
# figure: title, unit, names that a row may have for it, how to read it
CURVES: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "loss": (
        "Loss",
        "loss",
        ("label_loss", "loss"),  # what evaluations have as well, without a second task
        "Lower is better; validation that rises while training falls is overfitting.",
    ),
    "accuracy": (
        "Accuracy",
        "images recognised",
        ("accuracy",),
        "Training is measured on augmented images, so it may lie below validation.",
    ),
    "painting_loss": (
        "Painting",
        "mean square error",
        ("painting_loss",),
        "How far off what is left out is painted; times its weight it is part of training's loss.",
    ),
    "knn": (
        "Neighbours of the same class",
        "images",
        ("knn",),
        "Images whose nearest neighbours vote for their class; labels are used for this figure alone.",
    ),
    "effective_rank": (
        "Effective rank of the features",
        "directions",
        ("effective_rank",),
        "How many directions the features use; near 1, all images look the same to the model.",
    ),
    "mean_cosine": (
        "How alike images are",
        "mean cosine of two images",
        ("mean_cosine",),
        "Between the features of two different images; near 1, all of them look the same to the model.",
    ),
    "teacher_entropy": (
        "The teacher's doubt",
        "entropy",
        ("teacher_entropy",),
        "Entropy of its answers: high, it is undecided; near 0, it is sure of one.",
    ),
    "lr": (
        "Learning rate",
        "learning rate",
        ("lr", "learning_rate"),
        "How far the optimizer steps: warm-up, then decay.",
    ),
    "images_per_second": (
        "Speed",
        "images per second",
        ("images_per_second",),
        "In training; dips are validation, checkpoints or a busy machine.",
    ),
    "gradient_norm": (
        "Gradient",
        "L2 norm of the gradient",
        ("gradient_norm", "grad_norm"),
        "Before clipping; spikes are instability.",
    ),
}
SPLITS = ("train", "val", "test")


def curves(rows: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Return a picture for each figure that has at least two points."""
    drawn = []
    for figure, (title, unit, names, how) in CURVES.items():
        series = {split: points for split in SPLITS if len(points := _points(rows, split, names)) > 1}
        if figure not in ("loss", "accuracy", "teacher_entropy"):
            series = {title.lower(): points for points in list(series.values())[:1]}
        if series:
            chart = plot.history(series, unit, percent=figure in ("accuracy", "knn"))
            drawn.append(Picture(title=title, svg=plot.svg(chart, f"curve-{figure}"), how=how))
    return drawn


def _points(rows: Sequence[Mapping[str, Any]], split: str, names: tuple[str, ...]) -> Points:
    """Return (step, value) of a split, whether a row names its split or its figures do (`val_loss`)."""
    points: Points = []
    rows = [*rows]
    trained = [row for row in rows if row.get("split", "train") == split and "batches" in row]
    if len(trained) > 1 and trained[-1]["batches"] < trained[-2]["batches"]:
        rows.remove(trained[-1])  # the end of the run: a mean over fewer batches, which looks like a jump
    for number, row in enumerate(rows):
        named = [f"{split}_{name}" for name in names]
        if row.get("split", "train") == split:
            named += names
        for name in named:
            value = row.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                points.append((float(row.get("step", number)), float(value)))
                break
    return points
