"""Loss and accuracy of a split, shared among all ranks and exact: every image counts once.

Letters: B batch, K classes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitreous import parallel
from vitreous.data import Loader

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
) -> dict[str, float] | None:
    """Return loss, accuracy, top5 and count of the loader's split; None if `stop` said so on any rank."""
    model.eval()
    sums = {"loss": 0.0, "accuracy": 0.0, "top5": 0.0, "count": 0.0}
    for batch in loader.epoch(0):
        logits = _forward(model, batch.images, batch.mask, world, precision, micro_batch)
        sums["loss"] += losses(logits, batch.targets).double().sum().item()
        ranked = rank_of_label(logits, batch.targets)
        sums["accuracy"] += (ranked == 0).sum().item()
        sums["top5"] += (ranked < 5).sum().item()
        sums["count"] += len(batch)
        if any(parallel.any_rank([stop()], world)):
            return None
    totals = parallel.total(sums, world)
    count = totals.pop("count")
    return {**{name: value / max(1.0, count) for name, value in totals.items()}, "count": count}


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


@torch.no_grad()
def examine(
    model: nn.Module,
    loader: Loader,
    losses: Losses,
    world: parallel.World,
    *,
    precision: parallel.Chosen = "float32",
    micro_batch: int | None = None,
) -> dict[str, Any]:
    """Return, for the report, the confusion matrix (rows: truth) and the worst mistakes of the split."""
    model.eval()
    classes = loader.split.classes
    confusion = torch.zeros(classes, classes, dtype=torch.int64)
    worst: list[dict[str, Any]] = []
    for batch in loader.epoch(0):
        logits = _forward(model, batch.images, batch.mask, world, precision, micro_batch)
        loss, guess = losses(logits, batch.targets).cpu(), logits.argmax(dim=1).cpu()
        shares = logits.softmax(dim=1).cpu()
        targets = batch.targets.cpu()
        truth = targets if targets.ndim == 1 else targets.argmax(dim=1)
        if targets.ndim == 1:
            confusion += torch.bincount(truth * classes + guess, minlength=classes**2).view(classes, classes)
        wrong = rank_of_label(logits, batch.targets).cpu() > 0
        for i in wrong.nonzero()[:, 0].tolist():
            worst.append(
                {
                    "index": int(batch.indices[i]),
                    "file": loader.split.name(int(batch.indices[i])),
                    "truth": int(truth[i]),
                    "guess": int(guess[i]),
                    "probability": round(shares[i, guess[i]].item(), 4),
                    "loss": round(loss[i].item(), 4),
                }
            )
        worst = sorted(worst, key=lambda row: -row["loss"])[:WORST]
    gathered = [row for rows in parallel.gather(worst, world) for row in rows]
    matrices = parallel.gather(confusion, world)
    return {
        "confusion": torch.stack(matrices).sum(dim=0).tolist(),
        "worst": sorted(gathered, key=lambda row: -row["loss"])[:WORST],
    }
