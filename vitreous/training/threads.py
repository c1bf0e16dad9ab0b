"""How many threads compute on a CPU: as many as help. Measured before all else, kept when a run goes on.

Beside busy neighbours, or for a small model, threads that wait for each other can take longer than one alone.
The number decides in which order sums are made, so it belongs to what a checkpoint holds.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vitreous import console, parallel
from vitreous.config import Precision
from vitreous.models.weights import Model

HELPS = 0.9
"""Several threads are worth having if they take at most this share of one thread's time."""
SECONDS = 0.3
"""About how long each number of threads is timed."""
IMAGES = 16


def settle(model: Model, precision: Precision, world: parallel.World, *, batch: int = IMAGES) -> None:
    """Let torch compute on one thread if several don't help, and say so; a number set by the user stays.

    What is planned by the speed of this machine, and what is computed before the first step, comes after it.
    """
    most = torch.get_num_threads()
    asked = os.environ.get("OMP_NUM_THREADS")
    if world.device.type != "cpu" or world.size > 1 or most == 1 or asked:
        return
    images = torch.ones(min(IMAGES, batch), *model.config.input_shape)
    several, alone = (_seconds(lambda: _compute(model, images, precision), count) for count in (most, 1))
    if several > HELPS * alone:
        console.note(f"threads: 1 ({most} would take {several / alone:.1f} times as long, measured)")
    else:
        torch.set_num_threads(most)


def keep(values: Mapping[str, Any]) -> None:
    """Go on with the number of threads that a checkpoint names, where this machine has as many."""
    count = values.get("threads", torch.get_num_threads())
    torch.set_num_threads(min(count, torch.get_num_threads()))


def _seconds(work: Callable[[], None], count: int) -> float:
    """Return the median time of some work on `count` threads; torch keeps that number."""
    torch.set_num_threads(count)
    work()  # the first is slow for its own reasons
    times: list[float] = []
    while sum(times) < SECONDS or len(times) < 3:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _compute(model: Model, images: Tensor, precision: Precision) -> None:
    """Compute the gradients of a few images, as a step does, and forget them."""
    learning = model.training
    model.eval()  # no random numbers: those of a run follow from its seed
    with parallel.autocast(torch.device("cpu"), precision):
        loss = model(images).float().square().mean()
    if loss.requires_grad:
        loss.backward()
    model.zero_grad(set_to_none=True)
    model.train(learning)
