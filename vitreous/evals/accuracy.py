"""How often a classifier is right: accuracy, per class, confusion, worst mistakes, with intervals.

Each figure is defined here and nowhere else; training, evaluation, card and report read the same ones.
Letters: N images, K classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitreous.evals import calibration, metrics
from vitreous.evals.answers import Answers

BOOTSTRAPS = 2000
DENSE = 1000
"""Classes up to which the confusion matrix is written whole; above it would take gigabytes."""
WORST = 24
CONFUSED = 100


def headline(answers: Answers) -> dict[str, float]:
    """Return the figures that a run follows: loss, accuracy, top5, mean per-class accuracy, count."""
    return {
        "loss": float(answers.losses.mean()),
        "accuracy": float(answers.right.mean()),
        "top5": float((answers.ranks < 5).mean()),
        "mean_per_class_accuracy": metrics.mean_of_classes(answers.right, answers.targets, answers.classes),
        "count": float(len(answers)),
    }


def document(answers: Answers, labels: Sequence[str]) -> dict[str, Any]:
    """Return every figure: the headline with an interval, per class, confusion, calibration, mistakes."""
    rows = per_class(answers, labels)
    seen = [row for row in rows if row["count"]]
    means = {name: float(np.mean([row[name] for row in seen])) for name in ("precision", "recall", "f1")}
    dense = confusion_matrix(answers).tolist() if answers.classes <= DENSE else None
    return {
        **headline(answers),
        "count": len(answers),
        "accuracy_interval": metrics.wilson(answers.right),
        **means,
        "per_class": rows,
        "confusion": dense,
        "confused": most_confused(answers, labels),
        **calibration.figures(answers.probabilities, answers.right),
        "worst": worst_mistakes(answers, labels),
    }


def confusion_matrix(answers: Answers) -> np.ndarray:
    """Return how many images of each class (row) were taken for each class (column)."""
    classes = answers.classes
    counts = np.bincount(answers.targets * classes + answers.guesses, minlength=classes**2)
    return counts.reshape(classes, classes)


def most_confused(answers: Answers, labels: Sequence[str], most: int = CONFUSED) -> list[dict[str, Any]]:
    """Return the pairs of classes that were mistaken most often, with how often."""
    wrong = ~answers.right
    pairs, counts = np.unique(
        np.stack([answers.targets[wrong], answers.guesses[wrong]], axis=1), axis=0, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")[:most]
    return [
        {"truth": labels[int(pairs[i, 0])], "guess": labels[int(pairs[i, 1])], "count": int(counts[i])}
        for i in order
    ]


def per_class(answers: Answers, labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return count, precision, recall and F1 of each class; a class without images has zeros and count 0."""
    right = np.bincount(answers.targets[answers.right], minlength=answers.classes)
    truth = np.bincount(answers.targets, minlength=answers.classes)
    guessed = np.bincount(answers.guesses, minlength=answers.classes)
    precision = right / np.maximum(guessed, 1)
    recall = right / np.maximum(truth, 1)
    f1 = 2 * right / np.maximum(truth + guessed, 1)
    return [
        {
            "label": label,
            "count": int(truth[row]),
            "accuracy": float(recall[row]),
            "precision": float(precision[row]),
            "recall": float(recall[row]),
            "f1": float(f1[row]),
        }
        for row, label in enumerate(labels)
    ]


def worst_mistakes(answers: Answers, labels: Sequence[str], most: int = WORST) -> list[dict[str, Any]]:
    """Return the images with the largest loss among those taken for another class."""
    wrong = np.flatnonzero(~answers.right)
    order = wrong[np.argsort(-answers.losses[wrong], kind="stable")][:most]
    return [
        {
            "index": int(answers.indices[i]),
            "truth": labels[int(answers.targets[i])],
            "guess": labels[int(answers.guesses[i])],
            "probability": float(answers.probabilities[i]),
            "loss": float(answers.losses[i]),
        }
        for i in order
    ]


def bootstrap(values: np.ndarray, seed: int = 0, share: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval of the mean of `values` over images drawn again with replacement."""
    generator = np.random.default_rng(seed)
    count = len(values)
    means = [values[generator.integers(0, count, count)].mean() for _ in range(BOOTSTRAPS)]
    low, high = np.quantile(means, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def compare(first: np.ndarray, second: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Compare two classifiers, right or wrong on the same images: McNemar's exact test, and an interval."""
    from scipy.stats import binomtest  # most of a second to import

    only_first, only_second = int((first & ~second).sum()), int((~first & second).sum())
    disagreements = only_first + only_second
    p_value = binomtest(only_first, disagreements, 0.5).pvalue if disagreements else 1.0
    low, high = bootstrap(second.astype(float) - first.astype(float), seed)
    return {
        "difference": float(second.mean() - first.mean()),
        "difference_interval": [low, high],
        "only_first_right": only_first,
        "only_second_right": only_second,
        "p_value": float(p_value),
    }
