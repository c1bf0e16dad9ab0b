"""Nearest neighbours: how well frozen features separate classes without training (arXiv 2104.14294).

Letters: N images, D width, K classes.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

NEIGHBOURS = (1, 5, 10, 20, 50, 100, 200)
TEMPERATURE = 0.07
PART = 1024


def evaluate(
    train: tuple[np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    classes: int,
) -> dict[str, Any]:
    """Choose k on the validation part, and return the accuracy on the test part."""
    candidates = [k for k in NEIGHBOURS if k <= len(train[0])]
    accuracy = {
        k: float((guess == validation[1]).mean())
        for k, guess in predict(*train, validation[0], classes, candidates)
    }
    best = max(candidates, key=lambda k: (accuracy[k], -k))
    [(_, guess)] = predict(*train, test[0], classes, [best])
    return {
        "accuracy": float((guess == test[1]).mean()),
        "k": best,
        "validation_accuracy": {str(k): value for k, value in accuracy.items()},
        "correct": guess == test[1],
    }


def predict(
    features: np.ndarray, targets: np.ndarray, queries: np.ndarray, classes: int, neighbours: list[int]
) -> list[tuple[int, np.ndarray]]:
    """Return the guess for each query and k: neighbours by cosine, weighed by exp(cosine / temperature)."""
    bank, labels = _unit(features), torch.from_numpy(targets)
    guesses: dict[int, list[Tensor]] = {k: [] for k in neighbours}
    for start in range(0, len(queries), PART):
        similarity = _unit(queries[start : start + PART]) @ bank.T
        nearest, place = similarity.topk(max(neighbours), dim=1)
        votes = (nearest / TEMPERATURE).exp()
        for k in neighbours:
            scores = votes.new_zeros(len(votes), classes)
            scores.scatter_add_(1, labels[place[:, :k]], votes[:, :k])
            guesses[k].append(scores.argmax(1))
    return [(k, torch.cat(parts).numpy()) for k, parts in guesses.items()]


def _unit(features: np.ndarray) -> Tensor:
    return torch.nn.functional.normalize(torch.from_numpy(features).float(), dim=1)
