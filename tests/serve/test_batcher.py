"""Admission and batches: what is refused, how many refusals are slowed, that every worker answers rightly."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import numpy as np
import pytest
import torch
from torch import Tensor

from vitreous.predict import Prepared
from vitreous.serve import admission, batcher, lanes
from vitreous.serve.admission import Admission
from vitreous.serve.batcher import Batcher
from vitreous.serve.lanes import Lane
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
    entries = [counted.admit(1) for _ in range(31)]
    for entry in entries:
        entry.__enter__()
    assert counted.backlog_seconds == pytest.approx(3.1)
    with pytest.raises(Refusal, match="busy"):
        counted.admit(1).__enter__()
    entries[0].__exit__(None, None, None)
    assert counted.images == 30


def test_admission_follows_the_machine() -> None:
    """A busy neighbour, and its end, are known after about a second; a wait that is seen counts at once."""
    counted = Admission(Settings(deadline=10.0))
    counted.seconds_per_image = 0.01
    for _ in range(4):
        counted.computed(8, 0.5)
    assert 0.05 < counted.seconds_per_image < 0.0626
    counted.computed(1, 60.0)  # a standstill
    assert counted.seconds_per_image > 50
    for _ in range(100):
        counted.computed(1, 0.01)
    assert counted.seconds_per_image < 0.02
    assert counted.has_room(1)
    counted.waiting["first"] = time.perf_counter() - 4.0
    assert not counted.has_room(1) and counted.backlog_seconds >= 4.0


def test_what_is_let_in_is_answered_in_time_while_the_machine_slows_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flood, and neighbours that make the machine eight times slower; by a clock that only work moves."""
    now, latencies = [0.0], []
    for module in (admission, batcher):
        monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])

    def compute(pictures: Sequence[Prepared]) -> Tensor:
        slower = 2 ** sum(now[0] > moment for moment in (2.0, 6.0, 10.0))
        now[0] += 0.02 * slower * len(pictures)
        return sums(pictures)

    async def one(counted: Admission, made: Batcher) -> None:
        with suppress(Refusal), counted.admit(1):
            place, arrived = object(), now[0]
            counted.waiting[place] = arrived
            await made.submit(images(1)[0], arrived)
            del counted.waiting[place]
            latencies.append(now[0] - arrived)

    async def run() -> None:
        counted = Admission(Settings(deadline=10.0, queue=1000))
        counted.seconds_per_image = 0.02
        made = Batcher(compute, counted, lambda _: None)
        made.inline, made.max_batch = True, 4
        made.start()
        asked: list[asyncio.Task[None]] = []
        while now[0] < 20.0:
            asked += [asyncio.create_task(one(counted, made)) for _ in range(20)]
            await asyncio.sleep(0)
        await asyncio.gather(*asked)

    asyncio.run(run())
    assert len(latencies) > 250 and 3.0 < max(latencies) < 10.0


def test_one_sender_leaves_room_for_others() -> None:
    """Bodies that trickle in hold their places for the whole deadline: one address has half at most."""
    counted = Admission(Settings(queue=8, queue_bytes=800))
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(counted.receiving("slow", 10))
        with pytest.raises(Refusal, match="busy"):
            stack.enter_context(counted.receiving("slow", 10))
        stack.enter_context(counted.receiving("other", 350))
        with pytest.raises(Refusal, match="busy"):
            stack.enter_context(counted.receiving("other", 100))
    assert not counted.senders
    with counted.receiving("one", 800):
        pass


def test_decoding_is_counted_in_its_own_lane() -> None:
    counted, cheap = Admission(Settings(deadline=10.0)), Lane("cheap", 2)
    dear = Lane("dear", 2, slow=True)
    second = 1 / dear.pace
    with counted.admit(1) as first, counted.admit(1) as other:
        holds = first.decode(dear, [second] * 5 + [100 * second])  # no picture counts more than it may take
        assert dear.seconds == pytest.approx(5.0)
        with pytest.raises(Refusal, match="busy"):
            other.decode(dear, [second])
        other.decode(cheap, [second])
        for hold in holds[:3]:
            hold.release()
            hold.release()
        assert dear.seconds == pytest.approx(3.5)
        with pytest.raises(Refusal, match="fewer at once"):
            other.decode(dear, [second] * 13)
    assert dear.work == cheap.work == pytest.approx(0.0)
    for lane in (cheap, dear):
        lane.close()


def test_nobody_waits_for_what_arrives_or_is_decoded_slowly() -> None:
    """A model that takes two seconds for an image, four bodies that trickle in, and four dear pictures."""
    counted, dear = Admission(Settings(deadline=10.0)), Lane("dear", 2, slow=True)
    counted.seconds_per_image = 2.0
    with ExitStack() as stack:
        slow = [ExitStack() for _ in range(4)]
        for each in slow:
            stack.enter_context(counted.admit(1))
            each.enter_context(counted.receiving("slow", 1))
        held = [hold for _ in range(4) for hold in stack.enter_context(counted.admit(1)).decode(dear, [1.0])]
        assert counted.has_room(1)
        for hold in held[:2]:
            hold.release()
            hold.release()
        assert counted.backlog_seconds == pytest.approx(4.0) and not counted.has_room(1)
        for each in slow:
            with pytest.raises(Refusal, match="busy"):
                each.close()  # it has arrived, and would come too late
    assert (counted.images, counted.arriving, counted.decoding) == (0, 0, 0)
    dear.close()


def test_a_lane_learns_from_what_was_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(lanes.time, "perf_counter", lambda: now[0])

    def ended(seconds: float) -> None:
        now[0] += seconds
        raise Refusal(422, "too_costly", "ended")

    async def run() -> list[float]:
        lane, paces = Lane("test", 1), []
        for seconds in (0.001, 5.0):  # one that was damaged, one that took all its time
            with suppress(Refusal):
                await lane.run(50e6, ended, seconds)
            paces.append(lane.pace / lanes.UNIT_SECONDS)
        lane.close()
        return paces

    first, second = asyncio.run(run())
    assert first == 1.0 and 4.9 < second < 5.0


def test_one_image_keeps_to_one_core_while_the_machine_is_crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(batcher.time, "perf_counter", lambda: now[0])
    made = Batcher(sums, Admission(Settings()), lambda _: None)
    made.cores, made.workers, made.one_core = 4, 2, 0.1
    assert made._threads(alone=True) == 4 and made._threads(alone=False) == 2
    made._judge(2, 0.15)
    assert made._threads(alone=True) == 4
    made.shared = lambda: True
    assert made._threads(alone=True) == 1
    made.shared = lambda: False
    made._judge(1, 2.0)
    assert made._threads(alone=True) == made._threads(alone=False) == 1
    now[0] += 11
    assert made._threads(alone=True) == 4
    made._judge(1, 2.0)  # still: for longer
    now[0] += 11
    assert made._threads(alone=True) == 1
    now[0] += 11
    made._judge(1, 0.05)
    made._judge(1, 2.0)
    now[0] += 11
    assert made._threads(alone=True) == 4


def test_workers_see_that_cores_are_crowded() -> None:
    """A model that is slow whenever it has two threads."""
    threads: list[int] = []

    def compute(pictures: Sequence[Prepared]) -> Tensor:
        threads.append(torch.get_num_threads())
        return sums(pictures)

    async def run() -> None:
        made = Batcher(compute, Admission(Settings()), lambda _: None)
        made.cores, made.one_core = 2, 0.0  # any time is longer
        made.start()
        for picture in images(3):
            await asyncio.wait_for(made.submit(picture, time.perf_counter()), 30)
        await asyncio.get_running_loop().run_in_executor(None, made.stop)

    asyncio.run(run())
    assert threads == [2, 1, 1]


class Body(bytearray):
    """A body that can be watched."""


def test_who_gives_up_leaves_nothing_in_a_lane() -> None:
    gate = threading.Event()

    async def run() -> int:
        lane = Lane("test", 1)
        first = asyncio.create_task(lane.run(0, gate.wait, 20))
        sent = [Body(8) for _ in range(50)]
        held = [weakref.ref(each) for each in sent]
        tasks = [asyncio.create_task(lane.run(0, len, each)) for each in sent]
        await asyncio.sleep(0.01)
        all(task.cancel() for task in tasks)
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks = sent = []
        await asyncio.sleep(0)
        gc.collect()
        left = sum(each() is not None for each in held)
        gate.set()
        await first
        assert await lane.run(0, int, "7") == 7
        lane.close()
        return left

    assert asyncio.run(run()) == 0


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
