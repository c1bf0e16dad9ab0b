"""How a task without classes is judged: by its own loss and metrics, as means over a split's images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous import parallel
from vitreous.data import Batch, Loader
from vitreous.evals.outputs import Inference, Interrupted

Task = Callable[[Batch], tuple[Tensor, dict[str, Tensor]]]
"""From a batch to the mean loss of its images, and metrics that are means over the same."""


@dataclass(frozen=True)
class MeanLoss:
    """Loss, metrics and count."""

    figures: dict[str, float]

    def document(self) -> dict[str, Any]:
        """Return the figures: there is nothing else to report."""
        return dict(self.figures)


class Means:
    """Adds up a task's loss and metrics over batches, in parts where memory is short."""

    def __init__(self, objective: Task, inference: Inference) -> None:
        self.objective, self.inference = objective, inference
        self.sums: dict[str, float] = {"loss": 0.0, "count": 0.0}

    def add(self, batch: Batch) -> None:
        """Compute a batch, even an empty one: its rank must take part in what all ranks share."""
        for part in batch.parts(self.inference.micro_batch or max(1, len(batch))):
            with parallel.autocast(self.inference.world.device, self.inference.precision):
                loss, metrics = self.objective(part)
            for name, value in {"loss": loss, **metrics}.items():
                self.sums[name] = self.sums.get(name, 0.0) + value.item() * len(part)
            self.sums["count"] += len(part)

    def figures(self) -> dict[str, float]:
        """Return the means over the images of all ranks, and how many these are."""
        totals = parallel.total(self.sums, self.inference.world)
        count = totals.pop("count")
        return {**{name: value / max(1.0, count) for name, value in totals.items()}, "count": count}


@torch.no_grad()
def collect(objective: Task, loader: Loader, inference: Inference) -> MeanLoss:
    """Return the means over every image of the loader's split, of all ranks."""
    if isinstance(objective, nn.Module):
        objective.eval()
    means = Means(objective, inference)
    for batch in loader.epoch(0):
        means.add(batch)
        if inference.stopped is not None and any(parallel.any_rank([inference.stopped()], inference.world)):
            raise Interrupted
    return MeanLoss(means.figures())
