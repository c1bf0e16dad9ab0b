"""Logistic regression on frozen features; its regularisation is chosen on held-out images.

Letters: N images, D width, K classes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.evals import metrics
from vitreous.evals.features import Part

STRENGTHS = tuple(10.0**power for power in np.arange(-6, 2.5, 0.5))
"""λ of the mean cross entropy plus λ/2 |W|²."""


def evaluate(
    train: Part, validation: Part, test: Part, classes: int, metric: metrics.Name = "accuracy"
) -> tuple[dict[str, Any], np.ndarray]:
    """Choose λ on the validation part, fit again on both; return the figures, and scores of the test part."""
    best, tried = choose(train, validation, classes, metric)
    both = (np.concatenate([train[0], validation[0]]), np.concatenate([train[1], validation[1]]))
    figures = {
        "strength": best,
        "validation": {f"{strength:.1e}": value for strength, value in tried.items()},
    }
    return figures, scores(test[0], fit(*both, classes, best))


def choose(
    train: Part, validation: Part, classes: int, metric: metrics.Name = "accuracy"
) -> tuple[float, dict[float, float]]:
    """Return the λ whose fit to the training part is best on the validation part, and all that were tried."""
    measure = metrics.METRICS[metric]
    tried: dict[float, float] = {}
    weights = None
    for strength in sorted(STRENGTHS, reverse=True):  # from strong to weak: each starts where the last ended
        weights = fit(*train, classes, strength, weights, exact=False)
        tried[strength] = measure(scores(validation[0], weights), validation[1])
        best = max(tried.values())
        if len(tried) > 6 and max(list(tried.values())[-4:]) < best - 0.02:
            break  # well past the best: weaker ones only take longer
    best = _settle(
        tried, lambda strength: measure(scores(validation[0], fit(*train, classes, strength)), validation[1])
    )
    return best, tried


def _settle(tried: dict[float, float], exact: Callable[[float], float]) -> float:
    """Return the strength that is best when it is fitted exactly.

    A rough fit that stopped early can look better than the strength it stands for: the winner is fitted until
    nothing moves, and wins only if it is still the best then.
    """
    settled: set[float] = set()
    while True:
        best = max(tried, key=lambda strength: (tried[strength], strength))
        if best in settled:
            return best
        tried[best] = exact(best)
        settled.add(best)


Weights = tuple[Tensor, Tensor, Tensor, Tensor]  # (D, K), (K,), and the features' mean and deviation (D,)


def fit(
    features: np.ndarray,
    targets: np.ndarray,
    classes: int,
    strength: float,
    start: Weights | None = None,
    *,
    exact: bool = True,
) -> Weights:
    """Minimise the mean cross entropy plus λ/2 |W|² over standardised features, with L-BFGS.

    With several labels per image, every label is a yes or no of its own. `exact`: in double precision, until
    nothing moves; otherwise in single, as far as a choice between strengths needs.
    """
    x = torch.from_numpy(features).to(torch.float64 if exact else torch.float32)
    y = torch.from_numpy(targets)
    mean, deviation = x.mean(0), x.std(0, correction=0).clamp(min=1e-6)
    x = (x - mean) / deviation
    weight = start[0].clone() if start else x.new_zeros(x.shape[1], classes)
    bias = start[1].clone() if start else x.new_zeros(classes)
    weight.requires_grad_()
    bias.requires_grad_()
    solver = torch.optim.LBFGS(
        [weight, bias],
        max_iter=300 if exact else 60,
        tolerance_grad=1e-7 if exact else 1e-5,
        tolerance_change=1e-10 if exact else 1e-7,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        solver.zero_grad()
        logits = x @ weight + bias
        if y.ndim == 1:
            loss = F.cross_entropy(logits, y)
        else:
            loss = F.binary_cross_entropy_with_logits(logits, y.to(x.dtype), reduction="sum") / len(y)
        loss = loss + strength / 2 * weight.square().sum()
        loss.backward()
        return loss

    solver.step(closure)  # type: ignore[arg-type]
    return weight.detach(), bias.detach(), mean, deviation


def scores(features: np.ndarray, weights: Weights) -> np.ndarray:
    """Return the logits (N, K) of each row."""
    weight, bias, mean, deviation = weights
    return (((torch.from_numpy(features).to(weight.dtype) - mean) / deviation) @ weight + bias).numpy()
