"""Time budgets: used and kept, with a schedule that comes to its end, whatever the steps cost."""

import math
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests import ranks
from tests.training.conftest import stripes
from tests.training.runs import OPTIONS, records, run
from vitreous import parallel
from vitreous.data import Batch, Loader
from vitreous.evals.outputs import Inference
from vitreous.training import Caller, resume, train
from vitreous.training.clock import EVALUATIONS, Clock, evaluation_due, fit
from vitreous.training.gradients import Gradients
from vitreous.training.state import Position


class Time:
    """A clock that goes on only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.mark.parametrize(
    ("first", "then", "evaluation", "per_epoch"),
    [
        *[(0.1, 0.1, 1.0, 90), (1.0, 0.02, 0.5, 90), (0.02, 0.05, 0.5, 90)],  # even; slow start; slower later
        *[(0.1, 0.1, 20.0, 400), (2.0, 2.0, 5.0, 10_000)],  # long evaluations; not even one epoch
    ],
)
def test_a_budget_is_used_and_kept(
    monkeypatch: pytest.MonkeyPatch, first: float, then: float, evaluation: float, per_epoch: int
) -> None:
    """The first 30 steps cost `first` seconds each, the others `then`; an evaluation costs `evaluation`."""
    clock_time = Time(monkeypatch)
    budget = 300.0
    clock = Clock(clock_time.now, 0.0, budget, tests=1.0)
    clock_time.now += 5.0  # data, model
    clock.begin()
    for _ in range(3):
        clock_time.now += first
        clock.step()
    clock.evaluation, clock.afterwards = 0.5 * evaluation, 2.0  # a guess, as before the first evaluation
    position = Position(steps=fit(Position(), per_epoch, clock))
    evaluations = 0
    while position.step < position.steps:
        clock_time.now += first if position.step < 30 else then
        late = clock.late
        position.step += 1
        clock.step()
        if late:
            position.steps = position.step
        elif position.step % max(1, position.steps // 50) == 0:
            position.steps = fit(position, per_epoch, clock)
        if evaluation_due(position, per_epoch):
            clock_time.now += evaluation
            clock.evaluated()
            evaluations += 1
    clock_time.now += evaluation  # the test images
    assert 0.85 * budget < clock.seconds <= 1.02 * budget
    assert evaluations >= 1


def test_one_slow_step_changes_neither_schedule_nor_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that compiles takes as long as hundreds: the schedule moves by its time, the pace forgets it."""
    clock_time = Time(monkeypatch)
    clock = Clock(clock_time.now, 0.0, 100.0, tests=0.0, afterwards=0.0)
    clock.begin_schedule()
    clock.begin()
    for seconds in (*[0.01] * 20, 5.0, *[0.01] * 20):
        clock_time.now += seconds
        clock.step()
    assert clock.share == pytest.approx(5.4 / 98)
    assert clock.seconds_per_step == pytest.approx(0.01)
    clock_time.now += 1000.0
    assert clock.share == 1.0 and clock.late


def test_a_budgets_schedule_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_time = Time(monkeypatch)
    clock = Clock(
        clock_time.now, 40.0, 100.0, tests=0.0, afterwards=0.0
    )  # 40 s were spent by an earlier start
    clock_time.now += 8.0  # and 8 s to start again
    clock.begin_schedule(0.3)
    assert clock.share == pytest.approx(0.3)
    clock_time.now += 25.0  # half of what is left
    assert clock.share == pytest.approx(0.65)


def test_a_checkpoint_is_due_by_steps_or_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_time = Time(monkeypatch)
    clock = Clock(clock_time.now, 50.0, None, tests=0.0)
    due = []
    for step in range(1, 10):
        if clock.save_due(step, 4):
            due.append(step)
            clock.saved(step)
    assert due == [4, 8]
    assert clock.save_due(16, 4) and clock.save_due(13, 4)  # one that was asked for too late is not left out
    assert not clock.save_due(1, None)
    clock_time.now += 301.0
    assert clock.save_due(1, None) and clock.seconds == 351.0 and not clock.late
    clock.saved(1)
    assert not clock.save_due(1, None)


def paced(
    monkeypatch: pytest.MonkeyPatch, clock: Time, pace: Callable[[int], float], image: float
) -> list[float]:
    """Let steps (by their count) and evaluated images alone move the clock; return when each step ended."""
    compute, batches, taken = Gradients.__call__, Inference.batches, []

    def step(self: Gradients, batch: Batch, number: int, progress: float = 0.0) -> dict[str, Tensor]:
        clock.now += pace(len(taken))
        taken.append(clock.now)
        return compute(self, batch, number, progress)

    def evaluate(self: Inference, loader: Loader, model: Any) -> Any:
        clock.now += image * len(loader.split)
        return batches(self, loader, model)

    monkeypatch.setattr(Gradients, "__call__", step)
    monkeypatch.setattr(Inference, "batches", evaluate)
    monkeypatch.setattr(parallel, "matrix_rate", lambda *_: 1e12)
    return taken


def test_a_time_budget_is_kept(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Time(monkeypatch)
    paced(monkeypatch, clock, lambda _: 0.05, 0.001)
    result = run(data, tmp_path / "run", epochs=None, time_budget="6s")
    assert 5.0 < clock.now - 1000 <= 6.0 and result.figures["steps"] > 80  # it made use of the time
    rows = records(result.folder, "train")
    assert rows[-1]["lr"] < 0.05 * max(r["lr"] for r in rows)  # and the schedule came to its end


def test_a_budget_that_was_interrupted_is_not_planned_anew(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No step is timed again, what was spent counts, and the rate goes on where it was."""
    clock = Time(monkeypatch)
    taken: list[float] = []

    def pace(done: int) -> float:
        if done == 44:  # four that were timed, forty steps
            signal.raise_signal(signal.SIGTERM)
        return 0.05

    taken = paced(monkeypatch, clock, pace, 0.001)
    with pytest.raises(SystemExit):
        run(data, tmp_path / "run", epochs=None, time_budget="6s", warmup=0.0)
    before, _ = len(taken), capsys.readouterr()
    result = run(data, tmp_path / "run", epochs=None, time_budget="6s", warmup=0.0)
    said = capsys.readouterr().err
    assert "going on from step" in said and "fit into" not in said
    assert before + result.figures["steps"] - 41 == len(taken) and 5.0 < clock.now - 1000 <= 6.0
    rates = [row["lr"] for row in records(tmp_path / "run", "train")]
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.05 * rates[0]


@pytest.mark.parametrize(("pace", "timed"), [(1.0, 4), (0.4, 5)])
def test_a_run_that_goes_as_planned(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pace: float,
    timed: int,
) -> None:
    """Steps are timed for 3 % of a minute, four at least; an image costs half as much to evaluate as to train
    on, as the plan supposes. At the end come one evaluation, the test and the training images, and half a
    second."""
    data = stripes(tmp_path / "stripes.npz", train=96, val=30, test=160)
    clock = Time(monkeypatch)
    taken = paced(monkeypatch, clock, lambda _: pace, 0.5 * pace / 16)
    result = run(data, tmp_path / "run", epochs=None, time_budget="60s", warmup=0.0)
    steps = result.figures["steps"]
    assert len(taken) - steps == timed
    assert 56.5 - pace < clock.now - 1000 <= 59.5  # 2 % are for what can't be foreseen
    planned = re.search(r"^epochs: ([\d.]+)", capsys.readouterr().err, re.MULTILINE)
    assert planned and 6 * float(planned[1]) == pytest.approx(steps, rel=0.05)
    first, end = taken[timed - 1], 1000 + 0.98 * 60 - 0.5 * pace * (30 + 160 + 96) / 16 - 0.5
    for row in records(tmp_path / "run", "train"):  # the schedule follows the time, not the steps
        share = (taken[timed + row["step"] - 2] - first) / (end - first)
        assert row["lr"] == pytest.approx(2e-3 * (1 + math.cos(math.pi * share)) / 2, rel=1e-6)


def test_a_plan_gives_way_to_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps become three times as fast, and evaluations cost four times what was supposed."""
    data = stripes(tmp_path / "stripes.npz", train=96, val=10, test=60)
    clock = Time(monkeypatch)
    taken = paced(monkeypatch, clock, lambda done: 1.2 if done < 15 else 0.4, 2 * 1.2 / 16)
    run(data, tmp_path / "run", epochs=None, time_budget="60s")
    assert 56 < clock.now - 1000 < 60 and len(taken) > 30
    assert records(tmp_path / "run", "train")[-1]["lr"] < 1e-4


def test_a_budget_counts_from_the_start_of_the_command(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Time(monkeypatch)
    taken = paced(monkeypatch, clock, lambda _: 1.0, 0.01)
    options = replace(OPTIONS, out=str(tmp_path), epochs=None, time_budget="60s")
    train(data, options, caller=Caller(started=clock.now - 20, afterwards=10.0))
    assert 27 < clock.now - 1000 < 30 and len(taken) > 20  # of forty seconds the caller needs ten


def test_a_step_that_stalls_is_the_last_once_time_is_up(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Time(monkeypatch)
    taken = paced(monkeypatch, clock, lambda done: 60.0 if done == 20 else 0.5, 0.01)
    result = run(data, tmp_path, epochs=None, time_budget="60s")
    assert len(taken) == 21 and clock.now - 1000 < 75
    assert result.figures["test"]["count"] == 31  # what there is was evaluated


def test_one_step_per_epoch_is_planned_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """20 images are one batch: an epoch is a step, and the schedule still rises, falls and ends."""
    data = stripes(tmp_path / "few.npz", train=20, val=6, test=6)
    clock = Time(monkeypatch)
    paced(monkeypatch, clock, lambda _: 0.1, 0.001)
    result = run(data, tmp_path / "run", epochs=None, time_budget="5s", batch_size=None)
    steps = result.figures["steps"]
    assert steps > 30 and 4.0 < clock.now - 1000 <= 5.0
    rates = [record["lr"] for record in records(result.folder, "train")]
    peak = max(rates)
    assert len(rates) == steps  # one record per epoch
    assert rates[0] < 0.7 * peak and rates[-1] < 0.1 * peak
    assert 0 < rates.index(peak) < 0.6 * steps
    assert len(records(result.folder, "val")) <= 2 * EVALUATIONS  # not one per step
    planned = re.search(r"^epochs: ([\d.]+)", capsys.readouterr().err, re.MULTILINE)
    assert planned and steps / 8 < float(planned[1]) < 8 * steps


def test_the_first_step_does_not_set_the_pace(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It compiles, reads and allocates: here for two of eight seconds."""
    paced(monkeypatch, Time(monkeypatch), lambda done: 0.05 if done else 2.0, 0.001)
    run(data, tmp_path, epochs=None, time_budget="8s")
    planned = re.search(r"^epochs: ([\d.]+)", capsys.readouterr().err, re.MULTILINE)
    assert planned and 6 * float(planned[1]) > 60  # by the pace of the first, three steps would be left


class _Slow(Clock):
    """The clock of a rank that is behind the others."""

    @property
    def seconds(self) -> float:
        return super().seconds - 2.5


def _budgets_here(data: str, folder: Path) -> None:
    """Train three times with a time budget; ranks whose clocks differ must still agree on every step."""
    parallel.join = partial(parallel.join, timeout=timedelta(seconds=60))  # a deadlock is an error, soon
    if parallel.is_main():
        resume.Clock = _Slow  # type: ignore[misc]
    for number in range(3):
        result = run(data, folder / str(number), epochs=None, time_budget="4s")
        mine = f"{result.figures['steps']} {result.is_main}"
        (folder / f"{number}-{int(parallel.is_main())}").write_text(mine)


@pytest.mark.slow
def test_ranks_agree_on_a_time_budget(data: str, tmp_path: Path) -> None:
    ranks.run(2, _budgets_here, data, tmp_path)
    for number in range(3):
        main, other = ((tmp_path / f"{number}-{rank}").read_text().split() for rank in (1, 0))
        assert main[0] == other[0] and int(main[0]) > 0
        assert (main[1], other[1]) == ("True", "False")
        assert len(records(tmp_path / str(number), "test")) == 1


def test_a_plan_counts_the_evaluations_that_are_still_to_come() -> None:
    """One after each epoch of ten steps; the last step's has its own time."""
    asked: dict[tuple[int, int], int] = {}

    class Asking(Clock):
        def steps_left(self, step: int, evaluations: Callable[[int], int]) -> int:
            for steps in (9, 10, 11, 30, 31, 600):
                asked[step, steps] = evaluations(steps)
            return 7

    for step in (0, 10, 25):
        assert fit(Position(step=step, steps=40), 10, Asking.__new__(Asking)) == step + 7
    assert [asked[0, steps] for steps in (9, 10, 11, 30, 31)] == [0, 0, 1, 2, 3]
    assert [asked[10, steps] for steps in (11, 30, 31)] == [0, 1, 2]
    assert asked[25, 31] == 1 and asked[25, 30] == asked[25, 9] == 0
    assert asked[0, 600] == 19  # every third epoch: 25 at most
