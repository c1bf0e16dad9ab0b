"""The one figure by which a task is judged, and by which a probe's options are chosen.

Letters: N images, K classes.
"""

from collections.abc import Callable
from math import sqrt
from typing import Literal

import numpy as np

Name = Literal["accuracy", "mean_per_class_accuracy", "mean_average_precision"]
RESAMPLES = 500
Z95 = 1.959963984540054
"""The normal distribution's 97.5 % quantile."""


def accuracy(scores: np.ndarray, targets: np.ndarray) -> float:  # (N, K), (N,)
    """Return the share of images whose highest score is their class."""
    return float((scores.argmax(1) == targets).mean())


def mean_per_class_accuracy(scores: np.ndarray, targets: np.ndarray) -> float:  # (N, K), (N,)
    """Return the mean of the classes' own accuracies: rare classes count as much as common ones."""
    return mean_of_classes(scores.argmax(1) == targets, targets, scores.shape[1])


def mean_of_classes(right: np.ndarray, targets: np.ndarray, classes: int) -> float:  # (N,) bool, (N,)
    """Return the mean over classes that occur of the share of their images that was recognised."""
    count = np.bincount(targets, minlength=classes)
    return float((np.bincount(targets, right, minlength=classes)[count > 0] / count[count > 0]).mean())


def mean_average_precision(scores: np.ndarray, targets: np.ndarray) -> float:  # (N, K), (N, K) bool
    """Return the mean over labels that occur of the area under the precision-recall curve."""
    from sklearn.metrics import average_precision_score  # slow to import, and for several labels only

    seen = targets.any(0)
    if not seen.any():
        return 0.0
    if not np.isfinite(scores).all():
        return float("nan")  # what overflowed has no order, so no precision; scikit-learn raises
    return float(average_precision_score(targets[:, seen], scores[:, seen], average="macro"))


METRICS: dict[Name, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "mean_per_class_accuracy": mean_per_class_accuracy,
    "mean_average_precision": mean_average_precision,
}


def wilson(right: np.ndarray) -> list[float]:  # (N,) bool
    """Return the 95 % score interval of a share of images (Wilson 1927): it has a width at 0 and 1 too."""
    count, share = len(right), float(right.mean())
    z2 = Z95**2 / count
    middle, half = share + z2 / 2, sqrt(z2 * (share * (1 - share) + z2 / 4))
    low, high = (middle - half) / (1 + z2), (middle + half) / (1 + z2)
    return [0.0 if share == 0 else low, 1.0 if share == 1 else high]  # exactly, as the formula is there


def interval(name: Name, scores: np.ndarray, targets: np.ndarray, seed: int = 0) -> list[float]:
    """Return the 95 % interval of a figure: of a share of images Wilson's, of others the percentiles over
    images drawn again with replacement."""
    if name == "accuracy":
        return wilson(scores.argmax(1) == targets)
    generator, count = np.random.default_rng(seed), len(targets)
    draws = (generator.integers(0, count, count) for _ in range(RESAMPLES))
    values = [METRICS[name](scores[rows], targets[rows]) for rows in draws]
    return [float(edge) for edge in np.quantile(values, [0.025, 0.975])]
