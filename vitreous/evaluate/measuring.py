"""What a classifier answers to the images of a split, its figures, and those of another one beside them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous import parallel
from vitreous.config import EvaluateConfig
from vitreous.data import Batch, Dataset, Split
from vitreous.errors import DataError, ModelError
from vitreous.evals import accuracy, alignment, answers, multilabel, outputs
from vitreous.evals.alignment import Match
from vitreous.evals.answers import Answers
from vitreous.evals.multilabel import Scores
from vitreous.predict import Classifier


@dataclass(frozen=True)
class Measured:
    """What a classifier answered to the images of a split, in terms of its own classes."""

    classifier: Classifier
    split: Split
    answers: Answers | Scores
    bad: dict[int, str]
    """Images that could not be read, and why."""

    @property
    def right(self) -> np.ndarray:
        """Return whether each image was classified correctly; if it has several labels, in all of them."""
        if isinstance(self.answers, Scores):
            return self.answers.right(self.classifier.limits)
        return self.answers.right

    @property
    def guesses(self) -> np.ndarray:
        """Return the class that each image was given, by a model with one label per image."""
        assert isinstance(self.answers, Answers)
        return self.answers.guesses


def match(classifier: Classifier, dataset: Dataset) -> Match:
    """Find the data's classes among the classifier's own."""
    return alignment.match(dataset.labels, classifier.labels, numbered=dataset.numbered)


def measure(classifier: Classifier, dataset: Dataset, split: Split, options: EvaluateConfig) -> Measured:
    """Run the classifier over a split, with the data's classes fitted to its own."""
    _require_same_kind(classifier, dataset)
    rows = torch.from_numpy(match(classifier, dataset).rows)
    several = dataset.multilabel

    def aligned(batch: Batch) -> Batch:
        if not several:
            return replace(batch, targets=rows.to(batch.targets.device)[batch.targets])
        wide = batch.targets.new_zeros(len(batch.targets), len(classifier.labels))
        wide[:, rows.to(wide.device)] = batch.targets
        return replace(batch, targets=wide)

    loader, batches = outputs.shown(
        classifier.model,
        split,
        classifier.preprocess.preprocessing,
        compute(classifier, dataset, options),
        batch_size=options.batch_size,
        workers=options.workers,
        precision=parallel.precision(options.precision, classifier.device),
    )
    collect = multilabel.collect if several else answers.collect
    found = collect((aligned(batch), logits) for batch, logits in batches)
    known = found.logits.sum(1) if isinstance(found, Scores) else found.losses
    wrong = ~np.isfinite(known)
    if wrong.any():
        raise ModelError(
            f"the model's answers to {wrong.sum():,} of {len(found):,} images are not numbers: its weights "
            "are damaged, or overflow in this --precision"
        )
    return Measured(classifier, split, found, dict(loader.bad))


def _require_same_kind(classifier: Classifier, dataset: Dataset) -> None:
    """Refuse data with one label per image for a model of several, and the reverse.

    Weights that were not trained here don't say which they are for: the data decides.
    """
    told = classifier.multilabel or "recipe" in classifier.about
    if told and classifier.multilabel != dataset.multilabel:
        model, data = ("several labels" if each.multilabel else "one label" for each in (classifier, dataset))
        raise DataError(
            f"the model was trained on images with {model} each, and the data's have {data}: measure it on "
            "data of its own kind, or fine-tune it on these"
        )


def compute(classifier: Classifier, dataset: Dataset, options: EvaluateConfig) -> outputs.Compute:
    """Return what computes logits at the classifier's temperature; with --restrict, of the data's classes."""
    model, temperature = classifier.model, classifier.temperature
    others = None
    if options.restrict:
        others = torch.ones(len(classifier.labels), dtype=torch.bool)
        others[torch.from_numpy(match(classifier, dataset).rows)] = False
        others = others.to(classifier.device)

    def logits(images: Tensor, mask: Tensor | None) -> Tensor:
        found = model(images, mask).float() / temperature
        return found if others is None else found.masked_fill(others, float("-inf"))

    return logits


def figures(measured: Measured, options: EvaluateConfig) -> dict[str, Any]:
    """Return every figure of a classifier on a split."""
    classifier, found = measured.classifier, measured.answers
    if isinstance(found, Scores):
        return multilabel.document(found, classifier.labels, classifier.limits)
    document = accuracy.document(found, classifier.labels)
    for row in document["worst"]:
        row["file"] = measured.split.name(row["index"])
    if threshold := classifier.abstain:
        answered = found.probabilities >= threshold
        share = float(found.right[answered].mean()) if answered.any() else None
        document["abstain"] = {"threshold": threshold, "coverage": float(answered.mean()), "accuracy": share}
    return document


def compare(first: Measured, second: Measured, options: EvaluateConfig) -> dict[str, Any]:
    """Return the second checkpoint's figures, and a paired comparison on the images that both could read."""
    shared, a, b = np.intersect1d(first.answers.indices, second.answers.indices, return_indices=True)
    if not len(shared):
        raise DataError("the two checkpoints have no readable image in common")
    paired = accuracy.compare(first.right[a], second.right[b], options.seed or 0)
    own = figures(second, options)
    kept = ("mean_average_precision", "accuracy", "accuracy_interval", "top5", "loss", "ece", "f1")
    return {"checkpoint": options.compare, **{name: own[name] for name in kept if name in own}, **paired}
