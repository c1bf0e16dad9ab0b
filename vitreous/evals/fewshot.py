"""The paper's few-shot probe: regularised least squares to {-1, 1}^K in closed form (section 4.1).

Letters: N images, D width, K classes.
"""

from typing import Any

import numpy as np
from scipy.stats import t as student

SHOTS = (1, 5, 10, 25)
SEEDS = 5
STRENGTHS = tuple(2.0**power for power in range(-10, 20))


def evaluate(
    train: tuple[np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    classes: int,
    *,
    shots: tuple[int, ...] = SHOTS,
    seeds: int = SEEDS,
    seed: int = 0,
) -> dict[str, Any]:
    """Return mean accuracy and 95 % interval over draws, for each number of images a class.

    The strength of the regularisation is chosen on the validation part, per number of shots.
    """
    smallest = int(np.bincount(train[1], minlength=classes)[np.unique(train[1])].min())
    found: dict[str, Any] = {}
    for count in (shot for shot in shots if shot <= smallest):
        draws = [draw(train[1], count, seed + number) for number in range(seeds)]
        tries = np.array([_validate(train, rows, validation, classes) for rows in draws])
        best = STRENGTHS[int(tries.mean(0).argmax())]
        accuracies = []
        for rows in draws:
            weights, mean = solve(train[0][rows], train[1][rows], classes, [best])
            accuracies.append(float((scores(test[0], weights[0], mean).argmax(1) == test[1]).mean()))
        found[str(count)] = {
            "accuracy": float(np.mean(accuracies)),
            "strength": best,
            **_interval(accuracies),
        }
    return {"shots": found, "seeds": seeds, "smallest_class": smallest}


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


def _validate(
    train: tuple[np.ndarray, np.ndarray],
    rows: np.ndarray,
    validation: tuple[np.ndarray, np.ndarray],
    classes: int,
) -> list[float]:
    weights, mean = solve(train[0][rows], train[1][rows], classes, STRENGTHS)
    return [float((scores(validation[0], each, mean).argmax(1) == validation[1]).mean()) for each in weights]


def _with_bias(features: np.ndarray, mean: np.ndarray) -> np.ndarray:
    centred = features.astype(np.float64) - mean
    return np.concatenate([centred, np.ones((len(centred), 1))], axis=1)


def _interval(accuracies: list[float]) -> dict[str, Any]:
    if len(accuracies) < 2:
        return {"interval": [accuracies[0], accuracies[0]]}
    half = student.ppf(0.975, len(accuracies) - 1) * np.std(accuracies, ddof=1) / len(accuracies) ** 0.5
    centre = float(np.mean(accuracies))
    return {"interval": [centre - float(half), centre + float(half)]}
