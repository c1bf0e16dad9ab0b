"""The paper's few-shot probe: regularised least squares to {-1, 1}^K in closed form (section 4.1).

Letters: N images, D width, K classes.
"""

from typing import Any

import numpy as np

from vitreous.evals import metrics
from vitreous.evals.features import Part

SHOTS = (1, 5, 10, 25)
SEEDS = 5
STRENGTHS = tuple(2.0**power for power in range(-10, 20))


def evaluate(
    train: Part,
    validation: Part,
    test: Part,
    classes: int,
    metric: metrics.Name = "accuracy",
    *,
    shots: tuple[int, ...] = SHOTS,
    seeds: int = SEEDS,
    seed: int = 0,
) -> dict[str, Any]:
    """Return mean accuracy and 95 % interval over draws, for each number of images per class.

    The strength of the regularisation is chosen on the validation part, per number of shots. The headline is
    that of the most shots; a number that the smallest class can't fill is left out.
    """
    measure = metrics.METRICS[metric]
    smallest = int(np.bincount(train[1], minlength=classes)[np.unique(train[1])].min())
    found: dict[str, Any] = {}
    for count in (shot for shot in shots if shot <= smallest):
        draws = [draw(train[1], count, seed + number) for number in range(seeds)]
        tries = []
        for rows in draws:
            weights, mean = solve(train[0][rows], train[1][rows], classes, STRENGTHS)
            tries.append([measure(scores(validation[0], each, mean), validation[1]) for each in weights])
        best = STRENGTHS[int(np.mean(tries, axis=0).argmax())]
        values = []
        for rows in draws:
            (weight,), mean = solve(train[0][rows], train[1][rows], classes, [best])
            values.append(measure(scores(test[0], weight, mean), test[1]))
        found[str(count)] = {metric: float(np.mean(values)), "strength": best, "interval": _interval(values)}
    most = found[max(found, key=int)] if found else {}
    return {**most, "shots": found, "seeds": seeds, "smallest_class": smallest}


def draw(targets: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return the rows of `count` images of each class, drawn without replacement."""
    generator = np.random.default_rng(seed)
    classes = [np.flatnonzero(targets == label) for label in np.unique(targets)]
    return np.concatenate([generator.choice(rows, count, replace=False) for rows in classes])


def solve(
    features: np.ndarray, targets: np.ndarray, classes: int, strengths: list[float] | tuple[float, ...]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return, for each strength λ, the W (D + 1, K) that minimises |[X, 1] W - Y|² + λ |W|², and X's mean.

    Y is 1 for the class of an image and -1 elsewhere; X is centred first. One decomposition serves all λ.
    """
    mean = features.mean(0)
    x = _with_bias(features, mean)
    y = np.where(np.arange(classes) == targets[:, None], 1.0, -1.0)
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    projected = u.T @ y
    return [vt.T @ ((s / (s**2 + strength))[:, None] * projected) for strength in strengths], mean


def scores(features: np.ndarray, weights: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the score of each class (N, K)."""
    return _with_bias(features, mean) @ weights


def _with_bias(features: np.ndarray, mean: np.ndarray) -> np.ndarray:
    centred = features.astype(np.float64) - mean
    return np.concatenate([centred, np.ones((len(centred), 1))], axis=1)


def _interval(values: list[float]) -> list[float]:
    if len(values) < 2:
        return [values[0], values[0]]
    from scipy.stats import t as student  # most of a second to import

    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    low, high = np.clip([np.mean(values) - half, np.mean(values) + half], 0.0, 1.0)  # few draws are wide
    return [float(low), float(high)]
