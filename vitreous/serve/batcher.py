"""Many requests, one model: a bounded door, and batches of whatever is waiting when the model is free.

Nothing waits for company: a batch is what has come in while the last one was computed. Whether batches pay,
and how large they should be, is measured on this device when the server warms up.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vitreous.serve.settings import Settings, overloaded

Result = TypeVar("Result")
INLINE_SECONDS = 0.003
"""An image that takes less on one core is computed on the event loop: handing it over would cost more."""
LOOP_SECONDS = 0.03
"""How long the event loop computes at a stretch before it looks at its sockets again."""
PAYS = 0.95
"""A larger batch must bring the time of an image below this share of what it was."""
HEADROOM = 0.7
"""Requests are let in while the work before them takes this share of the deadline at most."""
Compute = Callable[[np.ndarray], Tensor]
"""From uint8 pixels (B, H, W, C) to probabilities (B, K)."""


class Door:
    """Counts what is inside, and turns away what could not be answered in time. For the event loop only."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.images = self.bytes = 0
        self.seconds_per_image = 0.0

    @property
    def wait(self) -> float:
        """Seconds until everything that is inside now is done."""
        return self.images * self.seconds_per_image

    @contextmanager
    def entry(self, size: int) -> Iterator["Entry"]:
        """Let one request in, or refuse it before a byte of its body is read."""
        entry = Entry(self)
        entry.add(1, size)
        try:
            yield entry
        finally:
            entry.leave()


class Entry:
    """What one request takes of the room."""

    def __init__(self, door: Door) -> None:
        self.door, self.images, self.bytes = door, 0, 0

    def add(self, images: int, size: int) -> None:
        """Take more room, or refuse the request."""
        door = self.door
        full = door.images + images > door.settings.queue
        heavy = door.bytes > 0 and door.bytes + size > door.settings.queue_bytes
        if full or heavy or door.wait > HEADROOM * door.settings.deadline:
            raise overloaded(door.wait)
        door.images, door.bytes = door.images + images, door.bytes + size
        self.images, self.bytes = self.images + images, self.bytes + size

    def leave(self) -> None:
        """Give the room back."""
        self.door.images, self.door.bytes = self.door.images - self.images, self.door.bytes - self.bytes
        self.images = self.bytes = 0


@dataclass
class Job:
    """One image that waits for its probabilities."""

    pixels: np.ndarray
    answer: "asyncio.Future[list[float]]"


class Batcher:
    """Computes jobs in the order in which they came; knows its loop from `start` on."""

    def __init__(self, compute: Compute, door: Door, observe: Callable[[int], None]) -> None:
        self.compute, self.door, self.observe = compute, door, observe
        self.max_batch, self.inline = 1, False
        self.waiting: list[Job] = []
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.side = ThreadPoolExecutor(1, thread_name_prefix="attention")
        self.thread = threading.Thread(target=self._work, name="compute", daemon=True)
        self.loop: asyncio.AbstractEventLoop | None = None

    def calibrate(self, shape: Sequence[int], device: torch.device) -> None:
        """Warm the model up, and find the smallest batch that is as good as any for throughput.

        A model that one core computes in an instant stays on one: cores that wait for each other cost more.
        """
        cores = torch.get_num_threads()
        if device.type == "cpu":
            torch.set_num_threads(1)
            self.inline = self._measure(1, shape) < INLINE_SECONDS
            if not self.inline:
                torch.set_num_threads(cores)
        longest = LOOP_SECONDS / 3 if self.inline else self.door.settings.deadline / 20
        best, size = float("inf"), 1
        while size <= self.door.settings.max_batch:
            seconds = self._measure(size, shape)
            if seconds / size > PAYS * best or (size > 1 and seconds > longest):
                break  # no gain, or everybody would wait too long
            best, self.max_batch = seconds / size, size
            size *= 2
        self.door.seconds_per_image = best

    def start(self) -> None:
        """Begin to take jobs from this event loop."""
        self.loop = asyncio.get_running_loop()
        if self.inline:
            torch.set_num_threads(1)  # of this thread, which computes
        else:
            self.thread.start()

    def stop(self) -> None:
        """Finish what is waiting, then end."""
        self.jobs.put(None)
        if self.thread.is_alive():
            self.thread.join()
        self.side.shutdown()

    def submit(self, pixels: np.ndarray) -> "asyncio.Future[list[float]]":
        """Return the future probabilities of one image, of which the model's pixels are given."""
        assert self.loop is not None
        job = Job(pixels, self.loop.create_future())
        if not self.inline:
            self.jobs.put(job)
        else:
            self.waiting.append(job)
            if len(self.waiting) == 1:
                self.loop.call_soon(self._compute_here)
        return job.answer

    async def aside(self, function: Callable[[], Result]) -> Result:
        """Run something else that needs the model, in its own thread."""
        assert self.loop is not None
        return await self.loop.run_in_executor(self.side, function)

    def _compute_here(self) -> None:
        """Compute on the loop what is waiting; what takes longer, in its next turn.

        All that is waiting, because a turn may begin with hundreds of refusals: one batch a turn would let
        them starve those who were let in.
        """
        until = time.perf_counter() + LOOP_SECONDS
        while self.waiting and time.perf_counter() < until:
            jobs, self.waiting = self.waiting[: self.max_batch], self.waiting[self.max_batch :]
            self._resolve(*self._run(jobs))
        if self.waiting and self.loop is not None:
            self.loop.call_soon(self._compute_here)

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            jobs, ended = [job], False
            while len(jobs) < self.max_batch and not self.jobs.empty():
                another = self.jobs.get_nowait()
                if another is None:
                    ended = True
                    break
                jobs.append(another)
            result = self._run(jobs)
            assert self.loop is not None
            self.loop.call_soon_threadsafe(self._resolve, *result)
            if ended:
                return

    def _run(self, jobs: list[Job]) -> tuple[list[Job], list[list[float]] | Exception, float]:
        jobs = [
            job for job in jobs if not job.answer.done()
        ]  # nobody waits any more for those past the deadline
        start = time.perf_counter()
        try:
            rows = self.compute(np.stack([job.pixels for job in jobs])).tolist() if jobs else []
        except Exception as error:
            return jobs, error, time.perf_counter() - start
        return jobs, rows, time.perf_counter() - start

    def _resolve(self, jobs: list[Job], rows: list[list[float]] | Exception, seconds: float) -> None:
        if not jobs:
            return
        self.observe(len(jobs))
        self.door.seconds_per_image += 0.1 * (seconds / len(jobs) - self.door.seconds_per_image)
        for index, job in enumerate(jobs):
            if job.answer.done():
                continue
            if isinstance(rows, Exception):
                job.answer.set_exception(rows)
            else:
                job.answer.set_result(rows[index])

    def _measure(self, size: int, shape: Sequence[int]) -> float:
        pixels = np.zeros((size, *shape), np.uint8)
        self.compute(pixels)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            self.compute(pixels)
            times.append(time.perf_counter() - start)
        return min(times)
