"""How many threads compute on a CPU: as many as help, measured before long work begins.

Beside busy neighbours, or for a small model, threads that wait for each other can take longer than one alone.
The number decides in which order sums are made, so it belongs to what the checkpoint of a run holds.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from vitreous import config, console
from vitreous.models.weights import Model
from vitreous.parallel.hardware import autocast
from vitreous.parallel.ranks import World

HELPS = 0.9
"""Several threads are worth having if they take at most this share of one thread's time."""
SECONDS = 0.3
"""About how long each number of threads is timed."""
SLOW = 1.0
"""Seconds of a model so large that one call tells enough."""
IMAGES = 16


def settle(model: Model, precision: config.Precision, world: World, *, batch: int = IMAGES) -> None:
    """Let torch compute on one thread if several don't help, and say so; a number set by the user stays.

    What is planned by the speed of this machine, and what is computed before a first step, comes after it. In
    inference mode predictions are timed, else gradients.
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


def keep_threads(values: Mapping[str, Any]) -> None:
    """Go on with the number of threads that a checkpoint names, where this machine has as many."""
    count = values.get("threads", torch.get_num_threads())
    torch.set_num_threads(min(count, torch.get_num_threads()))


@contextmanager
def settled(model: Model, precision: config.Precision, world: World) -> Iterator[None]:
    """Settle for as long as the context lasts."""
    before = torch.get_num_threads()
    try:
        settle(model, precision, world)
        yield
    finally:
        torch.set_num_threads(before)


def _seconds(work: Callable[[], None], count: int) -> float:
    """Return the median time of some work on `count` threads; torch keeps that number."""
    torch.set_num_threads(count)
    times: list[float] = []
    while sum(times) < SECONDS or len(times) < 4:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
        if len(times) == 1 and times[0] > SLOW:
            return times[0]
    return statistics.median(times[1:])  # the first is slow for its own reasons


def _compute(model: Model, images: Tensor, precision: config.Precision) -> None:
    """Compute a few images, and their gradients as a step does, and forget them."""
    learning = model.training
    model.eval()  # no random numbers: those of a run follow from its seed
    with autocast(torch.device("cpu"), precision):
        loss = model(images).float().square().mean()
    if loss.requires_grad:
        loss.backward()
        model.zero_grad(set_to_none=True)
    model.train(learning)
