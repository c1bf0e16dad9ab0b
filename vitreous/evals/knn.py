"""Nearest neighbours: how well frozen features separate classes without training (arXiv 2104.14294).

Letters: N images, D width, K classes.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.evals import metrics
from vitreous.evals.features import Part
from vitreous.evals.neighbours import nearest, unit

NEIGHBOURS = (1, 5, 10, 20, 50, 100, 200)
TEMPERATURE = 0.07


def evaluate(
    train: Part, validation: Part, test: Part, classes: int, metric: metrics.Name = "accuracy"
) -> tuple[dict[str, Any], np.ndarray]:
    """Choose k on the validation part; return the figures, and the scores (N, K) of the test part."""
    measure = metrics.METRICS[metric]
    candidates = [k for k in NEIGHBOURS if k <= len(train[0])]
    tried = {
        k: measure(found, validation[1])
        for k, found in scores(*train, validation[0], classes, candidates).items()
    }
    best = max(candidates, key=lambda k: (tried[k], -k))
    found = scores(*train, test[0], classes, [best])[best]
    return {"k": best, "validation": {str(k): value for k, value in tried.items()}}, found


def scores(
    features: np.ndarray, targets: np.ndarray, queries: np.ndarray, classes: int, neighbours: list[int]
) -> dict[int, np.ndarray]:
    """Return for each k the share of votes of every class (N, K).

    Neighbours are found by cosine and weigh exp(cosine / temperature); one with several labels votes for all.
    """
    labels = torch.from_numpy(targets)
    found: dict[int, list[Tensor]] = {k: [] for k in neighbours}
    for similarity, place in nearest(queries, unit(features), max(neighbours)):
        votes = (similarity / TEMPERATURE).exp()
        for k in neighbours:
            some = votes[:, :k] / votes[:, :k].sum(1, keepdim=True)
            if labels.ndim == 1:
                shares = some.new_zeros(len(some), classes).scatter_add_(1, labels[place[:, :k]], some)
            else:
                shares = torch.einsum("nk,nkc->nc", some, labels[place[:, :k]].float())
            found[k].append(shares)
    return {k: torch.cat(parts).numpy() for k, parts in found.items()}
