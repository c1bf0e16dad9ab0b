"""How a task without classes is judged: by its own loss and metrics, as means over a split's images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous import parallel
from vitreous.data import Batch, Loader
from vitreous.evals.outputs import Inference, Interrupted


@dataclass(frozen=True)
class MeanLoss:
    """Loss, metrics and count."""

    figures: dict[str, float]

    def document(self) -> dict[str, Any]:
        """Return the same: there is nothing else to tell."""
        return dict(self.figures)


@torch.no_grad()
def collect(
    objective: nn.Module | Callable[[Batch], tuple[Tensor, dict[str, Tensor]]],
    loader: Loader,
    inference: Inference,
) -> MeanLoss:
    """Return the means over every image of the loader's split, of all ranks."""
    if isinstance(objective, nn.Module):
        objective.eval()
    sums: dict[str, float] = {"loss": 0.0, "count": 0.0}
    for batch in loader.epoch(0):
        with parallel.autocast(inference.world.device, inference.precision):
            loss, metrics = objective(batch)
        for name, value in {"loss": loss, **metrics}.items():
            sums[name] = sums.get(name, 0.0) + value.item() * len(batch)
        sums["count"] += len(batch)
        if inference.stopped is not None and any(parallel.any_rank([inference.stopped()], inference.world)):
            raise Interrupted
    totals = parallel.total(sums, inference.world)
    count = totals.pop("count")
    return MeanLoss({**{name: value / max(1.0, count) for name, value in totals.items()}, "count": count})
