"""The stopwatch: contenders take turns, medians count, and one that has no room is left out."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch

from vitreous.bench import measure
from vitreous.bench.measure import Contender, Timed

CPU = torch.device("cpu")


class Stopwatch:
    """A clock whose times are given."""

    def __init__(self, *seconds: float) -> None:
        self.left: Iterator[float] = iter(seconds)

    def __call__(self, work: Callable[[], object]) -> float:
        work()
        return next(self.left)


def test_rounds_alternate_and_the_median_counts() -> None:
    calls: list[str] = []
    ready = [
        Timed(Contender(name, lambda name=name: calls.append(name), images), 0.0, 2, None)
        for name, images in (("ours", 10), ("peer", 10))
    ]
    #                        ours  peer  ours  peer  ours  peer
    timed = Stopwatch(1.0, 4.0, 2.0, 8.0, 100.0, 5.0)
    measure.take_turns(ready, 3, timed, lambda: calls.append("|"))
    assert calls == ["|", "ours", "ours", "peer", "peer"] * 3
    assert ready[0].rates == [20.0, 10.0, 0.2] and ready[0].rate == 10.0  # one bad round moves nothing
    assert ready[1].rates == [5.0, 2.5, 4.0] and ready[1].rate == 4.0


def test_processor_time_is_counted_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that others use makes a round longer, and its processor time hardly."""
    spent = iter([10.0, 12.0])
    monkeypatch.setattr(measure.time, "process_time", lambda: next(spent))
    ready = [Timed(Contender("ours", lambda: None, 10), 0.0, 3, None)]
    measure.take_turns(ready, 1, Stopwatch(60.0))
    assert (ready[0].rate, ready[0].core_rate) == (0.5, 15.0)


def test_the_first_call_is_told_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 1.0)
    calls: list[int] = []
    contender = Contender("ours", lambda: calls.append(1), 4)
    (timed,) = measure.make_ready(iter([contender]), CPU, Stopwatch(30.0, 0.3))
    assert (timed.first, timed.calls, len(calls)) == (30.0, 4, 2)  # 4 calls of 0.3 s are a round of a second
    assert timed.memory is None  # the heap of a CPU's process is everyone's


def test_a_slow_call_is_a_round_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 1.0)
    (timed,) = measure.make_ready(iter([Contender("ours", lambda: None, 4)]), CPU, Stopwatch(60.0, 50.0))
    assert timed.calls == 1


def test_one_that_memory_has_no_room_for_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    closed: list[str] = []

    def greedy() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    contenders = [
        Contender("greedy", greedy, 1, close=lambda: closed.append("greedy")),
        Contender("modest", lambda: None, 1),
    ]
    ready = measure.make_ready(iter(contenders), CPU, measure.wall)
    assert [each.contender.name for each in ready] == ["modest"] and closed == ["greedy"]
    assert capsys.readouterr().err == (
        "warning: greedy is left out: out of memory: give a smaller --batch-size\n"
    )


def test_one_that_memory_has_no_room_to_build_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def contenders() -> Iterator[Contender]:
        yield Contender("ours", lambda: None, 1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    ready = measure.make_ready(contenders(), CPU, measure.wall)
    assert [each.contender.name for each in ready] == ["ours"]
    assert capsys.readouterr().err.startswith("warning: the next is left out: out of memory")


def test_another_error_is_not_hidden() -> None:
    def broken() -> None:
        raise RuntimeError("a shape does not fit")

    with pytest.raises(RuntimeError, match="a shape does not fit"):
        measure.make_ready(iter([Contender("broken", broken, 1)]), CPU, measure.wall)


def test_a_contender_is_made_after_the_one_before_it_is_warm() -> None:
    """So that what each holds on a device can be told apart."""
    said: list[str] = []

    def contenders() -> Iterator[Contender]:
        for name in ("ours", "peer"):
            said.append(f"make {name}")
            yield Contender(name, lambda name=name: said.append(name), 1)

    measure.make_ready(contenders(), CPU, measure.wall)
    assert said == ["make ours", "ours", "ours", "make peer", "peer", "peer"]


def test_closing_lets_go_of_all() -> None:
    closed: list[str] = []
    ready = [Timed(Contender("ours", lambda: None, 1, close=lambda: closed.append("ours")), 0.0, 1, None)]
    measure.close(ready, CPU)
    assert closed == ["ours"] and ready == []


def test_the_clock_of_a_cpu_counts_seconds() -> None:
    import time

    assert measure.clock(CPU)(lambda: time.sleep(0.02)) >= 0.02


class Gpu:
    """Stands in for torch.cuda: a queue that is done at once, a clock of milliseconds, an allocator."""

    def __init__(self) -> None:
        self.now, self.held, self.peak, self.said = 0.0, 0, 0, []

    def event(self, enable_timing: bool) -> "Gpu.Event":
        assert enable_timing
        return Gpu.Event(self)

    class Event:
        def __init__(self, gpu: "Gpu") -> None:
            self.gpu = gpu

        def record(self) -> None:
            self.at = self.gpu.now

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: "Gpu.Event") -> float:
            return end.at - self.at

    def hold(self, count: int) -> None:
        self.held += count
        self.peak = max(self.peak, self.held)

    def forget(self, device: object) -> None:
        self.peak = self.held


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", made.forget)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: made.held)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: made.peak)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: made.said.append("emptied"))
    return made


def test_the_clock_of_a_gpu_is_its_events(gpu: Gpu) -> None:
    def work() -> None:
        gpu.now += 250.0  # milliseconds

    assert measure.clock(torch.device("cuda", 0))(work) == 0.25


def test_memory_is_what_a_contender_adds(gpu: Gpu) -> None:
    """Its weights and what a call needs for a while; not what those before it hold."""
    device = torch.device("cuda", 0)

    def contenders() -> Iterator[Contender]:
        for name, weights, call in (("ours", 100, 50), ("peer", 10, 7)):
            gpu.hold(weights)
            yield Contender(name, lambda call=call: (gpu.hold(call), gpu.hold(-call)), 1)

    gpu.hold(1000)
    ready = measure.make_ready(contenders(), device, measure.wall)
    assert [each.memory for each in ready] == [150, 17]
    measure.close(ready, device)
    assert gpu.said == ["emptied"]
