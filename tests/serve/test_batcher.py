"""Admission and batches: what is refused, how many refusals are slowed, that every worker answers rightly."""

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from vitreous.predict import Prepared
from vitreous.serve import admission
from vitreous.serve.admission import Admission
from vitreous.serve.batcher import Batcher
from vitreous.serve.settings import Refusal, Settings


def sums(pictures: Sequence[Prepared]) -> Tensor:
    """A model that says of each picture its first pixel and the sum of all."""
    pixels = np.stack([each.pixels for each in pictures])
    whole = torch.from_numpy(pixels.reshape(len(pixels), -1)).float()
    return torch.stack([whole[:, 0], whole.sum(1)], 1)


def images(count: int) -> list[Prepared]:
    return [Prepared(np.full((2, 2, 1), number % 250, np.uint8), None) for number in range(count)]


@pytest.mark.parametrize(("inline", "workers"), [(True, 1), (False, 1), (False, 3)])
def test_everybody_gets_the_answer_of_their_own_image(inline: bool, workers: int) -> None:
    sizes: list[int] = []

    async def run() -> list[list[float]]:
        made = Batcher(sums, Admission(Settings()), sizes.append)
        made.inline, made.workers, made.max_batch = inline, workers, 4
        made.start()
        futures = [made.submit(picture, time.perf_counter()) for picture in images(200)]
        answers = await asyncio.wait_for(asyncio.gather(*futures), 30)
        await asyncio.get_running_loop().run_in_executor(None, made.stop)
        return answers

    answers = asyncio.run(run())
    assert answers == [[float(n % 250), 4.0 * (n % 250)] for n in range(200)]
    assert sum(sizes) == 200 and max(sizes) == 4


def test_a_turn_of_the_loop_computes_all_that_waits() -> None:
    async def run() -> int:
        made = Batcher(sums, Admission(Settings()), lambda _: None)
        made.inline, made.max_batch = True, 4
        made.start()
        futures = [made.submit(picture, time.perf_counter()) for picture in images(40)]
        await asyncio.sleep(0)  # one turn
        return sum(future.done() for future in futures)

    assert asyncio.run(run()) == 40


def test_admission_counts_with_the_measured_pace() -> None:
    counted = Admission(Settings(deadline=10.0, queue=1000))
    counted.seconds_per_image = 0.1
    entries = [counted.admit(1) for _ in range(61)]
    for entry in entries:
        entry.__enter__()
    assert counted.backlog_seconds == pytest.approx(6.1)
    with pytest.raises(Refusal, match="busy"):
        counted.admit(1).__enter__()
    entries[0].__exit__(None, None, None)
    assert counted.images == 60


def test_only_very_many_refusals_are_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(admission.time, "perf_counter", lambda: now[0])

    def refuse(count: int, a_second: float) -> float:
        counted, delay = Admission(Settings()), 0.0
        for _ in range(count):
            now[0] += 1 / a_second
            delay = counted.refusal_delay()
        return delay

    assert refuse(3000, a_second=400) == 0.0
    assert 0.0 < refuse(5000, a_second=1000) <= 0.5
    assert refuse(30000, a_second=9000) == 0.5
