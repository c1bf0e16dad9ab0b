"""What a model says of every image of a split: logits, or features, once each and in order.

Letters: N images, K classes, D width.
"""

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous import console
from vitreous.config import Preprocessing
from vitreous.data import Loader, Split
from vitreous.errors import DataError
from vitreous.models.architecture import ViTConfig
from vitreous.models.weights import Model

FEW = 500
"""Images for which no processes are started to read them."""


@dataclass(frozen=True)
class Outputs:
    """Values of the images that could be read, with their targets and their numbers in the split."""

    values: np.ndarray  # (N, K) logits or (N, D) features
    targets: np.ndarray  # (N,) int64, or (N, K) bool
    indices: np.ndarray  # (N,)
    bad: dict[int, str]
    """Images that could not be read, and why; they count nowhere."""


@torch.inference_mode()
def run(
    model: Model,
    split: Split,
    preprocessing: Preprocessing,
    compute: Callable[[Tensor, Tensor | None], Tensor],
    *,
    batch_size: int = 64,
    workers: int | None = None,
) -> Outputs:
    """Compute something of every image of the split, on the model's device."""
    config = model.config
    step = config.step if isinstance(config, ViTConfig) else (32, 32)
    device = next(model.parameters()).device
    loader = Loader(
        split,
        preprocessing=preprocessing,
        batch_size=min(batch_size, max(1, len(split))),
        workers=_workers(split, device) if workers is None else workers,
        device=device,
        training=False,
        patch_size=step,
    )
    model.eval()
    values, targets, indices = [], [], []
    started, done = time.perf_counter(), 0
    with closing(console.ProgressBar(len(split), what="image")) as bar:
        for batch in loader.epoch(0):
            values.append(compute(batch.images, batch.mask).float().cpu())
            targets.append(batch.targets.cpu())
            indices.append(batch.indices)
            done += len(batch)
            pace = (time.perf_counter() - started) / max(1, done)
            bar.update(done, len(split), f"{1 / pace:,.0f} images/s", left=(len(split) - done) * pace)
    if not values or not sum(map(len, values)):
        raise DataError(f"none of the {len(split)} images could be read: see `vitreous check`")
    return Outputs(
        torch.cat(values).numpy(), torch.cat(targets).numpy(), torch.cat(indices).numpy(), dict(loader.bad)
    )


def _workers(split: Split, device: torch.device) -> int:
    """Return how many processes should read: a CPU that computes has none to spare, few images don't pay."""
    if device.type == "cpu" or len(split) < FEW:
        return 0
    return min(8, os.cpu_count() or 1)


def logits(model: Model, split: Split, preprocessing: Preprocessing, **options: object) -> Outputs:
    """Return the logits of every image."""

    def compute(images: Tensor, mask: Tensor | None) -> Tensor:
        return model(images) if mask is None else model(images, mask)

    return run(model, split, preprocessing, compute, **options)  # type: ignore[arg-type]
