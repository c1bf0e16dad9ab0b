"""Where pictures are decoded: each lane takes a few at a time, so that dear pictures hold up no others.

A request that gives up while waiting frees its bytes; a lane knows how much work waits and how fast it is.
"""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Given = ParamSpec("Given")
UNIT_SECONDS = 20e-9
"""What a unit of work (see `costs`) is assumed to take until it has been measured here."""
SLOWEST, FASTEST = 16.0, 0.25
"""Limits of the measured pace, in multiples of that: a picture that lies about its cost must not shut others
out."""
TELLING_WORK = 250_000
"""Smaller pictures say nothing about the pace: most of their time is overhead."""


class Lane:
    """Some threads, the work that waits for them, and their pace; `slow` if it is for dear pictures.

    Event loop only."""

    def __init__(self, name: str, threads: int, *, slow: bool = False) -> None:
        self.threads, self.slow, self.work, self.pace = threads, slow, 0.0, UNIT_SECONDS
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.free = asyncio.Semaphore(threads)

    @property
    def seconds(self) -> float:
        """Seconds until all that is held is done."""
        return self.work * self.pace / self.threads

    async def run(
        self, work: float, function: Callable[Given, Result], *args: Given.args, **named: Given.kwargs
    ) -> Result:
        """Run a function in a thread as soon as one is free; its work is measured unless it is given up."""
        await self.free.acquire()
        loop, start = asyncio.get_running_loop(), time.perf_counter()
        future = self.pool.submit(function, *args, **named)
        # The thread is free when it has ended, which may be after its request has been given up
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self.free.release))
        try:
            result = await asyncio.wrap_future(future)
        except Exception:  # it may have failed early: that must not count as fast
            self._measured(work, time.perf_counter() - start, at_least=self.pace)
            raise
        self._measured(work, time.perf_counter() - start)
        return result

    def _measured(self, work: float, seconds: float, at_least: float = 0.0) -> None:
        if work < TELLING_WORK:
            return
        pace = min(SLOWEST, max(FASTEST, seconds / work / UNIT_SECONDS)) * UNIT_SECONDS
        pace = max(pace, at_least)
        self.pace += max(0.1, 1 - math.exp(-seconds)) * (pace - self.pace)  # of the last second or so

    def close(self) -> None:
        """Wait for the threads."""
        self.pool.shutdown()
