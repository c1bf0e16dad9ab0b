"""Judging a classifier on a split for the report: confusion, reliability, worst mistakes with rollout."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from vitreous import inspection, plot
from vitreous.data import Split
from vitreous.errors import DataError
from vitreous.models.vit import VisionTransformer
from vitreous.predict import Classifier
from vitreous.report.document import Mistake, Reliability

BATCH = 32
BINS = 15
WORST = 24


def assess(classifier: Classifier, split: Split, worst: int = WORST) -> dict[str, Any]:
    """Return the parts of a `Report` that a labelled split gives: confusion, reliability, mistakes.

    Unreadable images are left out; of images with several labels, none is a confusion.
    """
    if split.targets.ndim != 1:
        raise DataError("images with several labels have no confusion matrix: evaluate them by label")
    probabilities, rows = _probabilities(classifier, split)
    truth = split.targets[rows]
    answer = probabilities.argmax(axis=1)
    classes = probabilities.shape[1]
    confusion = np.bincount(truth * classes + answer, minlength=classes**2).reshape(classes, classes)
    loss = -np.log(np.maximum(probabilities[np.arange(len(rows)), truth], 1e-12))
    wrong = np.flatnonzero(answer != truth)
    chosen = wrong[np.argsort(-loss[wrong], kind="stable")][:worst]
    found = [
        {
            "index": int(rows[i]),
            "truth": int(truth[i]),
            "guess": int(answer[i]),
            "probability": float(probabilities[i, answer[i]]),
            "file": split.name(int(rows[i])),
        }
        for i in chosen
    ]
    return {
        "confusion": confusion,
        "reliability": reliability(probabilities.max(axis=1), answer == truth),
        "mistakes": mistakes(classifier, split, found),
    }


def reliability(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> Reliability:
    """Sort answers into equal bins of confidence."""
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)  # (low, high], as torchmetrics
    count = np.bincount(place, minlength=bins)
    share = np.maximum(count, 1)
    return Reliability(
        confidence=np.bincount(place, confidence, bins) / share,
        accuracy=np.bincount(place, right, bins) / share,
        count=count,
    )


def mistakes(classifier: Classifier, split: Split, worst: Sequence[dict[str, Any]]) -> list[Mistake]:
    """Return the worst mistakes with their images and, where the model has attention, their rollout."""
    found = []
    for row in worst:
        image = seen = None
        try:
            image = classifier.preprocess.pixels(
                split.read(row["index"], classifier.model.config.in_channels)
            )
        except (DataError, IndexError):
            pass  # the data has moved since: names are left
        if image is not None and isinstance(classifier.model, VisionTransformer):
            batch = classifier.preprocess(image)[None].to(classifier.device)
            seen = plot.overlay(image, inspection.rollout(classifier.model, batch)[0].cpu().numpy())
        found.append(
            Mistake(
                truth=classifier.labels[row["truth"]],
                answer=classifier.labels[row["guess"]],
                probability=row["probability"],
                file=str(row.get("file", "")),
                image=image,
                seen=seen,
            )
        )
    return found


@torch.inference_mode()
def _probabilities(classifier: Classifier, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return (images, K) and which images they are."""
    channels = classifier.model.config.in_channels
    found, rows = [], []
    for start in range(0, len(split), BATCH):
        batch, kept = [], []
        for i in range(start, min(start + BATCH, len(split))):
            try:
                batch.append(classifier.read(split.read(i, channels)))
                kept.append(i)
            except DataError:
                continue
        if batch:
            found.append(classifier.probabilities(torch.stack(batch)).numpy())
            rows += kept
    if not rows:
        raise DataError("no image of the split could be read: run `vitreous check` on it")
    return np.concatenate(found), np.array(rows)
