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
HEADROOM = 0.6
"""Requests are let in while the work before them takes this share of the deadline at most."""
CALM = 500
"""Refusals a second that are sent at once; of more, each waits a little (see `Door.delay`)."""
Compute = Callable[[np.ndarray], Tensor]
"""From uint8 pixels (B, H, W, C) to probabilities (B, K)."""


class Door:
    """Counts what is inside, and turns away what could not be answered in time. For the event loop only."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.images = self.bytes = 0
        self.seconds_per_image = 0.0
        self.refusals, self.second = 0.0, 0.0

    def delay(self) -> float:
        """Return how long a refusal should wait before it is sent: nothing, but in a storm of them.

        Clients that ask again at once would else take the processor from those who were let in.
        """
        now = time.perf_counter()
        self.refusals = self.refusals * max(0.0, 1.0 - (now - self.second)) + 1  # over about a second
        self.second = now
        return min(0.5, max(0.0, self.refusals - CALM) / 2000)

    @property
    def wait(self) -> float:
        """Seconds until everything that is inside now is done."""
        return self.images * self.seconds_per_image

    def open(self, size: int, images: int = 1) -> bool:
        """Tell whether there is room for more images, of so many bytes."""
        full = self.images + images > self.settings.queue
        heavy = self.bytes > 0 and self.bytes + size > self.settings.queue_bytes
        return not (full or heavy or self.wait > HEADROOM * self.settings.deadline)

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
        if not door.open(size, images):
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
    arrived: float
    """When its request was whole."""
    answer: "asyncio.Future[list[float]]"


class Batcher:
    """Computes jobs in the order in which they came; knows its loop from `start` on."""

    def __init__(self, compute: Compute, door: Door, observe: Callable[[int], None]) -> None:
        self.compute, self.door, self.observe = compute, door, observe
        self.max_batch, self.workers, self.inline = 1, 1, False
        self.cores = torch.get_num_threads()
        self.waiting: list[Job] = []
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.side = ThreadPoolExecutor(1, thread_name_prefix="attention")
        self.threads: list[threading.Thread] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        self.last, self.busy, self.lock = 0.0, 0, threading.Lock()

    def calibrate(self, shape: Sequence[int], device: torch.device) -> None:
        """Warm the model up, and find the smallest batch that is as good as any for throughput.

        On a CPU that is either one batch at a time on all cores, or one on each core: cores that wait for
        each other, or for one that decodes an image, cost more than they bring. A model that one core
        computes in an instant stays on one.
        """
        crews = [1]
        if device.type == "cpu":
            torch.set_num_threads(1)
            self.inline = self._measure(1, shape, 1) < INLINE_SECONDS
            crews = [1] if self.inline or self.cores == 1 else [1, self.cores]
        best = float("inf")
        for workers in crews:
            threads = 1 if self.inline else max(1, self.cores // workers)
            longest = LOOP_SECONDS / 3 if self.inline else self.door.settings.deadline / 20
            size = 1
            while size <= self.door.settings.max_batch:
                seconds = self._measure(size, shape, threads, workers)
                each = seconds / (size * workers)
                if each > PAYS * best or (size > 1 and seconds > longest):
                    break  # no gain, or everybody would wait too long
                best, self.max_batch, self.workers = each, size, workers
                size *= 2
        torch.set_num_threads(self.cores)
        self.door.seconds_per_image = best

    def start(self) -> None:
        """Begin to take jobs from this event loop."""
        self.loop = asyncio.get_running_loop()
        if self.inline:
            torch.set_num_threads(1)  # of this thread, which computes
            return
        for number in range(self.workers):
            thread = threading.Thread(target=self._work, name=f"compute-{number}", daemon=True)
            self.threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Finish what is waiting, then end."""
        for _ in self.threads:
            self.jobs.put(None)
        for thread in self.threads:
            thread.join()
        self.side.shutdown()

    def submit(self, pixels: np.ndarray, arrived: float) -> "asyncio.Future[list[float]]":
        """Return the future probabilities of one image, of which the model's pixels are given."""
        assert self.loop is not None
        job = Job(pixels, arrived, self.loop.create_future())
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
            share = -(-(self.jobs.qsize() + 1) // self.workers)  # the others take theirs
            while len(jobs) < min(share, self.max_batch):
                try:
                    another = self.jobs.get_nowait()
                except queue.Empty:
                    break
                if another is None:
                    ended = True
                    break
                jobs.append(another)
            # One image alone has all cores; with more about, each worker keeps to its own.
            with self.lock:
                alone = self.busy == 0 and share == 1
                self.busy += 1
            torch.set_num_threads(self.cores if alone else max(1, self.cores // self.workers))
            result = self._run(jobs)
            with self.lock:
                self.busy -= 1
            assert self.loop is not None
            self.loop.call_soon_threadsafe(self._resolve, *result)
            if ended:
                return

    def _run(self, jobs: list[Job]) -> tuple[list[Job], list[list[float]] | Exception]:
        jobs = [job for job in jobs if not job.answer.done()]  # nobody waits for those past the deadline
        try:
            return jobs, self.compute(np.stack([job.pixels for job in jobs])).tolist() if jobs else []
        except Exception as error:
            return jobs, error

    def _resolve(self, jobs: list[Job], rows: list[list[float]] | Exception) -> None:
        if not jobs:
            return
        self.observe(len(jobs))
        # Time since the last answers, if work was there all along: how fast the room empties, come what may.
        now = time.perf_counter()
        each = (now - max(self.last, jobs[0].arrived)) / len(jobs)
        self.last = now
        self.door.seconds_per_image += 0.1 * (each - self.door.seconds_per_image)
        for index, job in enumerate(jobs):
            if job.answer.done():
                continue
            if isinstance(rows, Exception):
                job.answer.set_exception(rows)
            else:
                job.answer.set_result(rows[index])

    def _measure(self, size: int, shape: Sequence[int], threads: int, workers: int = 1) -> float:
        """Return the seconds of a batch, while so many workers compute one each on so many threads."""
        pixels = np.zeros((size, *shape), np.uint8)

        def work(_: int) -> float:
            torch.set_num_threads(threads)
            self.compute(pixels)
            begun.wait()
            times = []
            for _ in range(3):
                start = time.perf_counter()
                self.compute(pixels)
                times.append(time.perf_counter() - start)
            return min(times)

        begun = threading.Barrier(workers)
        with ThreadPoolExecutor(workers) as pool:
            return max(pool.map(work, range(workers)))
