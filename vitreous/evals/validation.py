"""Loss and accuracy of a split, shared among all ranks and exact: every image counts once.

Letters: B batch, K classes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous import parallel
from vitreous.data import Batch, Loader, Split
from vitreous.evals import metrics

WORST = 24
"""How many of the worst mistakes are kept."""

Losses = Callable[[Tensor, Tensor], Tensor]
"""From logits (B, K) and targets to each image's loss (B,)."""


@torch.no_grad()
def validate(
    model: nn.Module,
    loader: Loader,
    losses: Losses,
    world: parallel.World,
    *,
    precision: parallel.Chosen = "float32",
    micro_batch: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    details: "Details | None" = None,
) -> dict[str, float] | None:
    """Return loss, accuracy, top5 and count of the loader's split; None if `stop` said so on any rank.

    Of images with several labels, accuracy asks for all of them, and mean average precision is added. With
    `details` the confusion matrix and the worst mistakes are collected on the way.
    """
    model.eval()
    several = loader.split.targets.ndim == 2
    scored: list[tuple[np.ndarray, np.ndarray]] = []
    sums = {"loss": 0.0, "accuracy": 0.0, "top5": 0.0, "count": 0.0}
    for batch in loader.epoch(0):
        logits = _forward(model, batch.images, batch.mask, world, precision, micro_batch)
        each, ranked = losses(logits, batch.targets), rank_of_label(logits, batch.targets)
        sums["loss"] += each.double().sum().item()
        right = ((logits >= 0) == (batch.targets > 0)).all(dim=1) if several else ranked == 0
        sums["accuracy"] += right.sum().item()
        sums["top5"] += (ranked < 5).sum().item()
        sums["count"] += len(batch)
        if several:
            scored.append((logits.cpu().numpy(), (batch.targets > 0).cpu().numpy()))
        if details is not None:
            details.add(batch, logits, each, ranked)
        if any(parallel.any_rank([stop()], world)):
            return None
    totals = parallel.total(sums, world)
    count = totals.pop("count")
    figures = {**{name: value / max(1.0, count) for name, value in totals.items()}, "count": count}
    if several:
        parts = [part for rank in parallel.gather(scored, world) for part in rank]
        scores, targets = (np.concatenate(column) for column in zip(*parts, strict=True))
        figures["mean_average_precision"] = metrics.mean_average_precision(scores, targets)
    return figures


def standing(figures: dict[str, float]) -> list[float]:
    """Return what makes one evaluation better than another: the first entry, of equal ones the second."""
    judged = figures.get("mean_average_precision", figures.get("accuracy", 0.0))
    return [judged, -figures["loss"]]


class Details:
    """Which classes are taken for which, and the images that were most wrong; for the report."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.confusion = torch.zeros(split.classes, split.classes, dtype=torch.int64)  # rows: truth
        self.worst: list[dict[str, Any]] = []

    def add(self, batch: Batch, logits: Tensor, losses: Tensor, ranked: Tensor) -> None:
        """Take in one batch; with several labels an image, no class is taken for another."""
        if batch.targets.ndim == 2:
            return
        truth, guess, loss = batch.targets.cpu(), logits.argmax(dim=1).cpu(), losses.cpu()
        pairs = torch.bincount(truth * self.split.classes + guess, minlength=self.confusion.numel())
        self.confusion += pairs.view_as(self.confusion)
        shares = logits.softmax(dim=1).cpu()
        wrong = (ranked.cpu() > 0).nonzero()[:, 0]
        for i in wrong[loss[wrong].argsort(descending=True)][:WORST].tolist():
            index = int(batch.indices[i])
            figures = {"probability": round(shares[i, guess[i]].item(), 4), "loss": round(loss[i].item(), 4)}
            row = {
                "index": index,
                "file": self.split.name(index),
                "truth": int(truth[i]),
                "guess": int(guess[i]),
            }
            self.worst.append({**row, **figures})
        self.worst = sorted(self.worst, key=lambda row: -row["loss"])[:WORST]

    def gather(self, world: parallel.World) -> dict[str, Any]:
        """Return what all ranks have seen, as plain values."""
        if self.split.targets.ndim == 2:
            return {}
        worst = [row for rows in parallel.gather(self.worst, world) for row in rows]
        confusion = torch.stack(parallel.gather(self.confusion, world)).sum(dim=0)
        return {
            "confusion": confusion.tolist(),
            "worst": sorted(worst, key=lambda row: (-row["loss"], row["index"]))[:WORST],
        }


@torch.no_grad()
def mean_loss(
    objective: nn.Module,
    loader: Loader,
    world: parallel.World,
    *,
    precision: parallel.Chosen = "float32",
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Return the loss and metrics of an objective without classes, as means over the split's images."""
    objective.eval()
    sums: dict[str, float] = {"loss": 0.0, "count": 0.0}
    for batch in loader.epoch(0):
        with parallel.autocast(world.device, precision):
            loss, metrics = objective(batch)
        for name, value in {"loss": loss, **metrics}.items():
            sums[name] = sums.get(name, 0.0) + value.item() * len(batch)
        sums["count"] += len(batch)
        if any(parallel.any_rank([stop()], world)):
            return None
    totals = parallel.total(sums, world)
    count = totals.pop("count")
    return {**{name: value / max(1.0, count) for name, value in totals.items()}, "count": count}


def _forward(
    model: nn.Module,
    images: Tensor,
    mask: Tensor | None,
    world: parallel.World,
    precision: parallel.Chosen,
    micro_batch: int | None,
) -> Tensor:
    """Return float32 logits, computed in parts where memory is short."""
    count = len(images)
    if count == 0:  # a rank without images still takes part in the exchange of shards
        images = images.new_zeros(1, *images.shape[1:])
        mask = None if mask is None else mask.new_ones(1, *mask.shape[1:])
    size = micro_batch or max(1, count)
    parts = []
    for start in range(0, len(images), size):
        part = slice(start, start + size)
        with parallel.autocast(world.device, precision):
            logits = model(images[part]) if mask is None else model(images[part], mask[part])
        parts.append(logits.float())
    return torch.cat(parts)[:count]


def rank_of_label(logits: Tensor, targets: Tensor) -> Tensor:  # (B, K), (B,) or (B, K) → (B,)
    """Return how many classes rank above an image's best right one; 0: it is right.

    Of equal scores the first class ranks higher, as in argmax. An image without labels has no right answer.
    """
    classes = torch.arange(logits.shape[1], device=logits.device)
    if targets.ndim == 1:
        targets = targets[:, None] == classes
    right = targets > 0
    best, place = logits.masked_fill(~right, float("-inf")).max(dim=1, keepdim=True)
    above = (logits > best) | ((logits == best) & (classes < place))
    return torch.where(right.any(dim=1), above.sum(dim=1), logits.shape[1])
