"""What a model computes of every image of a split, once each and in order, on one rank or on many.

Letters: N images, B batch, K classes, D width.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous import config, console, parallel
from vitreous.config import Preprocessing
from vitreous.data import Batch, Loader, Split, make_loader
from vitreous.errors import DataError
from vitreous.models.weights import Model

FEW = 500
"""For fewer images than this, no processes are started to read them, and threads are not timed."""

Compute = Callable[[Tensor, Tensor | None], Tensor]
"""From images (B, C, H, W) and their mask to one row of values per image."""


class Interrupted(Exception):
    """An evaluation was asked to stop before its end."""


@dataclass(frozen=True, kw_only=True)
class Inference:
    """How images are computed: on which device and ranks, in which precision, how many at a time."""

    world: parallel.World
    precision: config.Precision = "float32"
    micro_batch: int | None = None
    stopped: Callable[[], bool] | None = None
    """Asked after every batch; True on any rank interrupts the evaluation on all of them."""

    @torch.no_grad()
    def batches(self, loader: Loader, compute: Compute) -> Iterator[tuple[Batch, Tensor]]:
        """Yield every batch of the loader's split with its values, float32, on the device."""
        for batch in loader.epoch(0):
            yield batch, self.values(batch, compute)
            if self.stopped is not None and any(parallel.any_rank([self.stopped()], self.world)):
                raise Interrupted

    def values(self, batch: Batch, compute: Compute) -> Tensor:
        """Compute one batch, in parts where memory is short.

        All ranks compute as many images, some of them blank: those that share a model exchange it in each
        part, and one with fewer parts would keep the others waiting.
        """
        count, images, mask = len(batch), batch.images, batch.mask
        most = max(1, parallel.largest(count, self.world))
        images = _filled_up(images, most, 0.0)
        mask = None if mask is None else _filled_up(mask, most, True)
        size = self.micro_batch or most
        parts = []
        for start in range(0, len(images), size):
            part = slice(start, start + size)
            with parallel.autocast(self.world.device, self.precision):
                parts.append(compute(images[part], None if mask is None else mask[part]).float())
        return torch.cat(parts)[:count]


def _filled_up(rows: Tensor, count: int, value: float | bool) -> Tensor:
    """Return the tensor with rows of one value added to its own, so that there are as many as asked for."""
    missing = count - len(rows)
    return rows if not missing else torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), value)])


@dataclass(frozen=True)
class Outputs:
    """Values of the images that could be read, with their targets and their numbers in the split."""

    values: np.ndarray  # (N, K) logits or (N, D) features
    targets: np.ndarray  # (N,) int64, or (N, K) bool
    indices: np.ndarray  # (N,)
    bad: dict[int, str]
    """Images that could not be read, and why; they count nowhere."""


def run(
    model: Model,
    split: Split,
    preprocessing: Preprocessing,
    compute: Compute,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    precision: config.Precision = "float32",
) -> Outputs:
    """Compute something of every image of the split, on the model's device."""
    loader, batches = shown(
        model, split, preprocessing, compute, batch_size=batch_size, workers=workers, precision=precision
    )
    values, targets, indices = [], [], []
    for batch, found in batches:
        values.append(found.cpu())
        targets.append(batch.targets.cpu())
        indices.append(batch.indices)
    if not values or not sum(map(len, values)):
        raise DataError(f"none of the {len(split)} images could be read: see `vitreous check`")
    return Outputs(
        torch.cat(values).numpy(), torch.cat(targets).numpy(), torch.cat(indices).numpy(), dict(loader.bad)
    )


def shown(
    model: Model,
    split: Split,
    preprocessing: Preprocessing,
    compute: Compute,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    precision: config.Precision = "float32",
) -> tuple[Loader, Iterator[tuple[Batch, Tensor]]]:
    """Return a loader of the split, and its batches with their values, under a progress bar."""
    device = next(model.parameters()).device
    loader = make_loader(
        split,
        preprocessing=preprocessing,
        batch_size=min(batch_size, max(1, len(split))),
        workers=reading_workers(split, device) if workers is None else workers,
        device=device,
        training=False,
        mask_step=model.config.step,
    )
    model.eval()

    def batches() -> Iterator[tuple[Batch, Tensor]]:
        world = parallel.World(device=device)
        inference, done = Inference(world=world, precision=precision), 0
        with ExitStack() as stack:
            bar = stack.enter_context(closing(console.ProgressBar(len(split), what="image")))
            stack.enter_context(torch.inference_mode())
            if len(split) >= FEW:
                stack.enter_context(parallel.settled(model, precision, world))
            started = time.perf_counter()
            for batch, values in inference.batches(loader, compute):
                yield batch, values
                done += len(batch)
                pace = (time.perf_counter() - started) / max(1, done)
                bar.update(done, len(split), f"{1 / pace:,.0f} images/s", left=(len(split) - done) * pace)

    return loader, batches()


def reading_workers(split: Split, device: torch.device) -> int:
    """Return how many processes should read: a CPU that computes has none to spare, few images don't pay."""
    if device.type == "cpu" or len(split) < FEW:
        return 0
    return min(8, os.cpu_count() or 1)


def logits(model: Model, split: Split, preprocessing: Preprocessing, **options: object) -> Outputs:
    """Return the logits of every image."""
    return run(model, split, preprocessing, model, **options)  # type: ignore[arg-type]
