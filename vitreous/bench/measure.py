"""The stopwatch: contenders are made ready one by one, then timed in turn; it knows nothing of what they do.

Contenders alternate (ours, a peer, ours, a peer, …), so that a machine of varying speed affects all of them.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from vitreous import console, parallel

SECONDS = 1.0
"""A round lasts about this long, and never less than one call."""
WARM = {"cuda": 12, "cpu": 2}
"""Calls before the first round: on a GPU enough to compile, to record a step as a graph, and to replay it."""

Clock = Callable[[Callable[[], object]], float]
"""Does some work, and returns how many seconds it took."""


@dataclass(frozen=True)
class Contender:
    """One implementation of a case, ready to be called."""

    name: str
    work: Callable[[], object]
    images: int
    """How many images one call takes."""
    version: str = ""
    ours: bool = False
    """Whether it is ours, not a peer's. Ratios are of the first of ours over each peer."""
    close: Callable[[], object] = lambda: None
    merge: int = 0
    """Patches that it merges in each block: then it computes less than the model's count of operations."""


@dataclass
class Timed:
    """A contender, and what the stopwatch found."""

    contender: Contender
    first: float
    """Seconds of the first call, which compiles and allocates whatever is needed."""
    calls: int
    """Calls in a round."""
    memory: int | None
    """The most bytes that it held at once on a GPU, above what was held before it."""
    rates: list[float] = field(default_factory=list)
    """Images per second of each round."""
    core_rates: list[float] = field(default_factory=list)
    """Images per second of processor time, that of this process and all its threads."""

    @property
    def rate(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.rates)

    @property
    def core_rate(self) -> float:
        """The median over the rounds, by processor time: what others do on the machine counts little."""
        return statistics.median(self.core_rates)

    def again(self, calls: int | None = None) -> None:
        """Make a round's calls, or this many."""
        for _ in range(calls or self.calls):
            self.contender.work()


def wall(work: Callable[[], object]) -> float:
    """Return the seconds that some work takes by the host's clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def clock(device: torch.device) -> Clock:
    """Return the stopwatch of a device: on a GPU its own events, which are timed in its queue."""
    if device.type != "cuda":

        def plain(work: Callable[[], object]) -> float:
            return wall(lambda: (work(), parallel.synchronize(device)))

        return plain

    def by_events(work: Callable[[], object]) -> float:
        with torch.cuda.device(device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            work()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1000

    return by_events


def make_ready(contenders: Iterator[Contender], device: torch.device, timed: Clock) -> list[Timed]:
    """Build and warm up one contender after the other; one that does not fit into memory is left out."""
    ready: list[Timed] = []
    while True:
        before, contender = _reset_memory(device), None
        try:
            contender = next(contenders, None)
            if contender is None:
                return ready
            first = timed(contender.work)
            rest = [timed(contender.work) for _ in range(WARM.get(device.type, 2) - 1)]
        except (RuntimeError, MemoryError) as error:
            if not parallel.out_of_memory(error):
                raise
            name = contender.name if contender else "the next"  # which was not even built
            console.warn(f"{name} is left out: out of memory: give a smaller --batch-size")
            if contender:
                contender.close()
            continue
        calls = max(1, math.ceil(SECONDS / max(min(rest), 1e-9))) if SECONDS else 1
        ready.append(Timed(contender, first, calls, _peak_memory(device, before)))


def take_turns(
    ready: Sequence[Timed], rounds: int, timed: Clock, between: Callable[[], object] = lambda: None
) -> None:
    """Time each contender once in every round; `between` is called at the start of each round."""
    for _ in range(rounds):
        between()
        for each in ready:
            images, before = each.calls * each.contender.images, time.process_time()
            each.rates.append(images / timed(each.again))
            each.core_rates.append(images / max(time.process_time() - before, 1e-9))


def _reset_memory(device: torch.device) -> int:
    """Reset the peak, and return the bytes that are held now."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak_memory(device: torch.device, before: int) -> int | None:
    """Return the peak above what was held before; None on a CPU, where the heap is shared with all else."""
    if device.type != "cuda":
        return None
    return parallel.peak_memory(device) - before


def close(ready: list[Timed], device: torch.device) -> None:
    """Release all contenders, what was compiled for them, and what the device's allocator keeps."""
    for each in ready:
        each.contender.close()
    ready.clear()
    if device.type == "cuda":
        torch.compiler.reset()  # else the code of one case counts against the next one's recompilations
        gc.collect()
        torch.cuda.empty_cache()
