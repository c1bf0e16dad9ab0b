"""How often a classifier is right: accuracy, per class, confusion, with intervals. Arrays in, figures out.

Letters: N images, K classes.
"""

from typing import Any

import numpy as np
from scipy.special import log_softmax
from scipy.stats import binomtest

BOOTSTRAPS = 2000


def figures(logits: np.ndarray, targets: np.ndarray, labels: list[str], seed: int = 0) -> dict[str, Any]:
    """Return accuracy, top5, loss, macro averages, confusion (rows: truth) and one row a class."""
    guess = logits.argmax(1)
    right = guess == targets
    confusion = confusion_matrix(targets, guess, len(labels))
    rows = per_class(confusion, labels)
    seen = [row for row in rows if row["count"]]
    low, high = bootstrap(right.astype(float), seed)
    return {
        "count": len(targets),
        "accuracy": float(right.mean()),
        "accuracy_interval": [low, high],
        "top5": float(in_top(logits, targets, 5).mean()),
        "loss": float(-log_softmax(logits, axis=1)[np.arange(len(targets)), targets].mean()),
        "mean_per_class_accuracy": float(np.mean([row["recall"] for row in seen])),
        "precision": float(np.mean([row["precision"] for row in seen])),
        "recall": float(np.mean([row["recall"] for row in seen])),
        "f1": float(np.mean([row["f1"] for row in seen])),
        "per_class": rows,
        "confusion": confusion.tolist(),
    }


def confusion_matrix(targets: np.ndarray, guess: np.ndarray, classes: int) -> np.ndarray:
    """Return how many images of each class (row) were taken for each class (column)."""
    return np.bincount(targets * classes + guess, minlength=classes**2).reshape(classes, classes)


def per_class(confusion: np.ndarray, labels: list[str]) -> list[dict[str, Any]]:
    """Return count, precision, recall and F1 of each class; a class without images has zeros and count 0."""
    right, truth, guessed = np.diag(confusion), confusion.sum(1), confusion.sum(0)
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


def in_top(logits: np.ndarray, targets: np.ndarray, count: int) -> np.ndarray:
    """Return whether each image's class is among the `count` likeliest; of ties the first class wins."""
    own = logits[np.arange(len(targets)), targets][:, None]
    earlier = np.arange(logits.shape[1]) < targets[:, None]
    return ((logits > own) | ((logits == own) & earlier)).sum(1) < count


def bootstrap(values: np.ndarray, seed: int = 0, share: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval of the mean of `values` over images drawn again with replacement."""
    generator = np.random.default_rng(seed)
    count = len(values)
    means = [values[generator.integers(0, count, count)].mean() for _ in range(BOOTSTRAPS)]
    low, high = np.quantile(means, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def worst_mistakes(
    logits: np.ndarray, targets: np.ndarray, indices: np.ndarray, most: int
) -> list[dict[str, Any]]:
    """Return the images with the largest loss among those taken for another class."""
    logs = log_softmax(logits, axis=1)
    loss, guess = -logs[np.arange(len(targets)), targets], logits.argmax(1)
    wrong = np.flatnonzero(guess != targets)
    order = wrong[np.argsort(-loss[wrong], kind="stable")][:most]
    return [
        {
            "index": int(indices[i]),
            "truth": int(targets[i]),
            "guess": int(guess[i]),
            "probability": float(np.exp(logs[i, guess[i]])),
            "loss": float(loss[i]),
        }
        for i in order
    ]


def compare(first: np.ndarray, second: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Compare two classifiers, right or wrong on the same images: McNemar's exact test, and an interval."""
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
