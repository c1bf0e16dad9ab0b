"""Whether features are alive: how many directions they use, how alike images look to the model, and, where
there are labels, whether neighbours are of one class. Runs that learn without labels are watched by these.

Letters: N images, D width.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous import parallel
from vitreous.data import Loader
from vitreous.errors import DataError
from vitreous.evals.mean_loss import MeanLoss, Means, Task
from vitreous.evals.outputs import Compute, Inference

MOST = 4096
"""Images whose features are compared with each other, at most."""
NEIGHBOURS = 10
ALIKE = 0.999
"""Mean cosine of two images from which on all of them look the same to the model."""
FEW_DIRECTIONS = 1.5
"""Effective rank below which features hold hardly more than one number."""

FEWEST = 8
"""Images below which nothing can be told of them all: two have an effective rank of two at most."""


@torch.no_grad()
def collect(task: Task, encode: Compute, loader: Loader, inference: Inference, *, labelled: bool) -> MeanLoss:
    """Return the task's means over the loader's split, of all ranks, and the health of its features where the
    images are enough to tell it."""
    means, every = Means(task, inference), -(-len(loader.split) // MOST)
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for batch, features in inference.batches(loader, encode):
        means.add(batch)
        chosen = (batch.indices % every == 0).numpy()
        rows, targets = features.cpu().numpy()[chosen], batch.targets.cpu().numpy()[chosen]
        found.append((batch.indices.numpy()[chosen], rows, targets))
    parts = [part for rank in parallel.gather(found, inference.world) for part in rank]
    indices, vectors, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(indices):
        raise DataError("none of the images could be read: see `vitreous check`")
    order = np.argsort(indices, kind="stable")
    vectors = torch.from_numpy(vectors[order])
    figures: dict[str, float] = {}
    if len(vectors) >= FEWEST:
        figures = {"effective_rank": effective_rank(vectors), "mean_cosine": mean_cosine(vectors)}
    if labelled and len(vectors) > 1:
        figures["knn"] = knn(vectors, torch.from_numpy(labels[order]))
    return MeanLoss({**means.figures(), **figures})


def effective_rank(features: Tensor) -> float:  # (N, D)
    """Return RankMe (arXiv 2210.02885): e to the entropy of the singular values' shares; 1 to min(N, D)."""
    if not features.isfinite().all():
        return float("nan")  # they have no singular values; torch raises
    values = torch.linalg.svdvals(features.double())
    shares = values / values.sum().clamp(min=1e-12) + 1e-7
    return float(torch.exp(-(shares * shares.log()).sum()))


def mean_cosine(features: Tensor) -> float:  # (N, D)
    """Return the mean cosine of the features of two different images; 1: all images look the same."""
    unit = F.normalize(features.double(), dim=1)
    count = len(unit)
    if count < 2:
        return 0.0
    return float((unit.sum(0).square().sum() - unit.square().sum()) / (count * (count - 1)))


def knn(features: Tensor, targets: Tensor) -> float:  # (N, D), (N,)
    """Return the share of images whose class their ten nearest neighbours vote for, themselves left out.

    Votes weigh by cosine, as in `evals.knn`, but come from the same split; those of `probe` come from train.
    """
    unit = F.normalize(features.float(), dim=1)
    nearest = min(NEIGHBOURS, len(unit) - 1)
    right = 0
    for start in range(0, len(unit), 1024):
        similarity = unit[start : start + 1024] @ unit.T
        rows = torch.arange(len(similarity))
        similarity[rows, rows + start] = -2.0
        closeness, place = similarity.topk(nearest, dim=1)
        votes = similarity.new_zeros(len(similarity), int(targets.max()) + 1)
        votes.scatter_add_(1, targets[place], (closeness / 0.07).exp())
        right += int((votes.argmax(1) == targets[start : start + 1024]).sum())
    return right / len(unit)


def collapse(figures: Mapping[str, float]) -> str | None:
    """Return how it shows that all images have become alike to the model; None if they have not, or if there
    are too few to tell."""
    if "mean_cosine" not in figures or figures.get("count", FEWEST) < FEWEST:
        return None
    if figures["mean_cosine"] > ALIKE:
        return f"any two images have a cosine of {figures['mean_cosine']:.4f}"
    if figures["effective_rank"] < FEW_DIRECTIONS:
        return f"their effective rank is {figures['effective_rank']:.2f}"
    return None
