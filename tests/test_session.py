"""The clock against simulated time: budgets are used and kept, whatever the first steps cost."""

import time

import pytest
from vitreous.session import Clock, Progress
from vitreous.train import _evaluation_due, _fit_steps


class Time:
    """A clock that goes on only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.mark.parametrize(
    ("first", "then", "judging", "per_epoch"),
    [
        *[(0.1, 0.1, 1.0, 90), (1.0, 0.02, 0.5, 90), (0.02, 0.05, 0.5, 90)],  # even; slow start; slower later
        *[(0.1, 0.1, 20.0, 400), (2.0, 2.0, 5.0, 10_000)],  # long evaluations; not even one epoch
    ],
)
def test_a_budget_is_used_and_kept(
    monkeypatch: pytest.MonkeyPatch, first: float, then: float, judging: float, per_epoch: int
) -> None:
    """The first 30 steps cost `first` seconds each, the others `then`; an evaluation costs `judging`."""
    clock_time = Time(monkeypatch)
    budget = 300.0
    clock = Clock(clock_time.now, 0.0, budget)
    clock_time.now += 5.0  # data, model
    clock.begin()
    for _ in range(3):
        clock_time.now += first
        clock.step()
    clock.judging, clock.afterwards = 0.5 * judging, 2.0  # a guess, as before the first evaluation
    at = Progress(steps=_fit_steps(Progress(), per_epoch, clock))
    evaluations = 0
    while at.step < at.steps:
        clock_time.now += first if at.step < 30 else then
        late = clock.late
        at.step += 1
        clock.step()
        if late:
            at.steps = at.step
        elif at.step % max(1, at.steps // 50) == 0:
            at.steps = _fit_steps(at, per_epoch, clock)
        if _evaluation_due(at, per_epoch):
            clock_time.now += judging
            clock.judged()
            evaluations += 1
    clock_time.now += judging  # the test images
    assert 0.85 * budget < clock.seconds <= 1.02 * budget
    assert evaluations >= 1


def test_a_checkpoint_is_due_by_steps_or_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_time = Time(monkeypatch)
    clock = Clock(clock_time.now, 50.0, None)
    assert [step for step in range(1, 10) if clock.save_due(step, 4)] == [4, 8]
    assert not clock.save_due(1, None)
    clock_time.now += 301.0
    assert clock.save_due(1, None) and clock.seconds == 351.0 and not clock.late
    clock.saved()
    assert not clock.save_due(1, None)
