"""Many requests, one model: batches of whatever is waiting when the model is free.

No image waits for a batch to fill: a batch is what has come in while the last one was computed. Whether
batches pay, and how large they should be, is measured on this device when the server warms up.
"""

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from vitreous.predict import Prepared
from vitreous.serve.admission import Admission

Result = TypeVar("Result")
INLINE_SECONDS = 0.003
"""An image that takes less on one core is computed on the event loop: handing it over would cost more."""
LOOP_SECONDS = 0.03
"""How long the event loop computes at a stretch before it looks at its sockets again."""
CROWDED_SECONDS = (10.0, 300.0)
"""How long batches keep to one core after several cores were slower than one: at first, and at most."""
MEASURED_SECONDS = 0.05
"""How long each batch size is tried at least: a shorter trial may lie within one hiccup of the machine."""
PAYS = 0.95
"""A larger batch must bring the time per image below this share of what it was."""
Compute = Callable[[Sequence[Prepared]], Tensor]
"""From prepared pictures to their probabilities (B, K)."""


@dataclass
class Job:
    """One image that waits for its probabilities."""

    picture: Prepared
    arrived: float
    """When its decoding was done."""
    answer: "asyncio.Future[list[float]]"


class Batcher:
    """Computes jobs in the order in which they came; has an event loop from `start` on."""

    def __init__(self, compute: Compute, admission: Admission, observe: Callable[[int], None]) -> None:
        self.compute, self.admission, self.observe = compute, admission, observe
        self.max_batch, self.workers, self.inline = 1, 1, False
        self.cores = torch.get_num_threads()
        self.waiting: list[Job] = []
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.side = ThreadPoolExecutor(1, thread_name_prefix="attention")
        self.threads: list[threading.Thread] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        self.last, self.busy, self.lock = 0.0, 0, threading.Lock()
        self.shared: Callable[[], bool] = lambda: False
        """Returns whether something else in this server is using the cores."""
        self.one_core, self.crowded_until, self.crowded_for = math.inf, -math.inf, CROWDED_SECONDS[0]

    def calibrate(self, example: Prepared, device: torch.device) -> None:
        """Warm the model up, and find the smallest batch that is as good as any for throughput.

        On a CPU that is either one batch at a time on all cores, or one on each core: cores that wait for
        each other, or for one that decodes an image, may cost more than they bring. A model that one core
        computes in an instant stays on one core.
        """
        worker_counts = [1]
        if device.type == "cpu":
            torch.set_num_threads(1)
            self.one_core = self._measure(1, example, 1)
            self.inline = self.one_core < INLINE_SECONDS
            worker_counts = [1] if self.inline or self.cores == 1 else [1, self.cores]
        best = float("inf")
        for workers in worker_counts:
            threads = 1 if self.inline else max(1, self.cores // workers)
            longest = LOOP_SECONDS / 3 if self.inline else self.admission.settings.deadline / 20
            size = 1
            while size <= self.admission.settings.max_batch:
                seconds = self._measure(size, example, threads, workers)
                each = seconds / (size * workers)
                if each > PAYS * best or (size > 1 and seconds > longest):
                    break  # no gain, or everybody would wait too long
                best, self.max_batch, self.workers = each, size, workers
                size *= 2
        torch.set_num_threads(self.cores)
        self.admission.seconds_per_image = best

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

    def submit(self, picture: Prepared, arrived: float) -> "asyncio.Future[list[float]]":
        """Return the future probabilities of one picture."""
        assert self.loop is not None
        job = Job(picture, arrived, self.loop.create_future())
        if not self.inline:
            self.jobs.put(job)
        else:
            self.waiting.append(job)
            if len(self.waiting) == 1:
                self.loop.call_soon(self._compute_here)
        return job.answer

    async def run_beside(self, function: Callable[[], Result]) -> Result:
        """Run something else that needs the model, in a thread of its own."""
        assert self.loop is not None
        return await self.loop.run_in_executor(self.side, function)

    def _compute_here(self) -> None:
        """Compute what is waiting on the loop, for `LOOP_SECONDS` at most; the rest in its next turn.

        Not just one batch per turn, because a turn may begin with hundreds of refusals: they would hold up
        the requests in progress.
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
            # One image alone gets all cores; with others waiting, each worker keeps to its share.
            with self.lock:
                alone = self.busy == 0 and share == 1
                self.busy += 1
            threads = self._threads(alone)
            torch.set_num_threads(threads)
            begun = time.perf_counter()
            result = self._run(jobs)
            with self.lock:
                self.busy -= 1
                if threads > 1:
                    self._judge(len(result[0]), time.perf_counter() - begun)
            assert self.loop is not None
            self.loop.call_soon_threadsafe(self._resolve, *result)
            if ended:
                return

    def _threads(self, alone: bool) -> int:
        """Return how many cores a batch gets: while the machine is crowded, each keeps to one."""
        if time.perf_counter() < self.crowded_until or self.shared():
            return 1
        return self.cores if alone else max(1, self.cores // self.workers)

    def _judge(self, images: int, seconds: float) -> None:
        """Check whether several cores were slower than one would be: threads that wait for each other can
        take twenty times as long on cores that others use too."""
        if seconds <= images * self.one_core:
            self.crowded_for = CROWDED_SECONDS[0]
            return
        self.crowded_until = time.perf_counter() + self.crowded_for
        self.crowded_for = min(2 * self.crowded_for, CROWDED_SECONDS[1])

    def _run(self, jobs: list[Job]) -> tuple[list[Job], list[list[float]] | Exception]:
        jobs = [job for job in jobs if not job.answer.done()]  # nobody waits for those past the deadline
        try:
            return jobs, self.compute([job.picture for job in jobs]).tolist() if jobs else []
        except Exception as error:
            return jobs, error

    def _resolve(self, jobs: list[Job], rows: list[list[float]] | Exception) -> None:
        if not jobs:
            return
        self.observe(len(jobs))
        # Time since the last answers, or since this batch arrived if nothing was waiting: the real pace.
        now = time.perf_counter()
        self.admission.computed(len(jobs), now - max(self.last, jobs[0].arrived))
        self.last = now
        for index, job in enumerate(jobs):
            if job.answer.done():
                continue
            if isinstance(rows, Exception):
                job.answer.set_exception(rows)
            else:
                job.answer.set_result(rows[index])

    def _measure(self, size: int, example: Prepared, threads: int, workers: int = 1) -> float:
        """Return the seconds of a batch, while `workers` compute one each on `threads` threads."""
        pictures = [example] * size

        def work(_: int) -> float:
            torch.set_num_threads(threads)
            self.compute(pictures)
            begun.wait()
            times: list[float] = []
            while len(times) < 3 or sum(times) < MEASURED_SECONDS:
                start = time.perf_counter()
                self.compute(pictures)
                times.append(time.perf_counter() - start)
            return min(times)

        begun = threading.Barrier(workers)
        with ThreadPoolExecutor(workers) as pool:
            return max(pool.map(work, range(workers)))
