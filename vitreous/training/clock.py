"""How long a run has taken over all its starts, and how it ends within a time budget; never what it does."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from vitreous.training.state import Position

Value = TypeVar("Value")

SAVE_SECONDS = 300.0
MARGIN = 0.98
"""Share of a time budget that is planned for; the rest is for what can't be foreseen."""
OUTLIER = 10.0
"""A step that takes more than this many times the median does not count towards the pace."""
EVALUATIONS = 25
"""About how many evaluations a run has."""


class Clock:
    """Measures steps and evaluations, and tells how many more fit."""

    def __init__(
        self,
        started: float,
        before: float,
        budget: float | None,
        *,
        tests: float,
        afterwards: float = 0.5,
    ) -> None:
        """`before`: seconds that earlier starts of the run have spent.

        After the last step come an evaluation, others of `tests` times its images, and `afterwards` seconds.
        """
        self.started, self.before, self.budget = started, before, budget
        self.tests, self.afterwards = tests, afterwards
        self.evaluation = 0.0
        """Seconds of the latest evaluation."""
        self.start: float | None = None
        """Seconds from the start of this process's run until its first step was done."""
        self.waited = 0.0
        """Seconds that the loop has waited for batches."""
        self._durations: deque[float] = deque(maxlen=100)  # of the latest steps: the first are slow
        self._mark = self._saved = time.monotonic()
        self._schedule = 0.0
        self._saved_step = 0

    @property
    def seconds(self) -> float:
        """Spent on the run so far."""
        return self.before + time.monotonic() - self.started

    @property
    def late(self) -> bool:
        """Whether the time budget is used up."""
        return self.budget is not None and self.seconds > MARGIN * self.budget - self._reserve

    @property
    def share(self) -> float:
        """The part of the time for steps that has passed since `begin_schedule`, 0 to 1."""
        assert self.budget is not None
        end = MARGIN * self.budget - self._reserve
        passed, whole = self.seconds - self._schedule, end - self._schedule
        return min(1.0, max(0.0, passed / whole)) if whole > 0 else 1.0

    @property
    def seconds_per_step(self) -> float:
        """The mean of the latest steps; one that took far longer than most (to compile, say) is left out."""
        typical = statistics.median(self._durations) if self._durations else 0.0
        usual = [each for each in self._durations if each <= OUTLIER * typical]
        return statistics.fmean(usual) if usual else 0.0

    @property
    def _reserve(self) -> float:
        return self.evaluation * (1.0 + self.tests) + self.afterwards

    def begin_schedule(self, passed: float = 0.0) -> None:
        """Let the schedule of a time budget begin now; `passed`: the share of it that is already behind."""
        now = self.seconds
        end = MARGIN * (self.budget or 0.0) - self._reserve
        self._schedule = now if passed >= 1.0 else now - passed / (1.0 - passed) * max(0.0, end - now)

    def begin(self) -> None:
        """Start measuring a step, or something else that `step` or `evaluated` ends."""
        self._mark = time.monotonic()

    def step(self) -> None:
        """End a step, and begin the next."""
        now = time.monotonic()
        self._durations.append(now - self._mark)
        self._mark = now

    def waiting(self, batches: Iterable[Value]) -> Iterator[Value]:
        """Pass batches on, and measure how long the loop waits for them."""
        source = iter(batches)
        while True:
            asked = time.monotonic()
            batch = next(source, None)
            self.waited += time.monotonic() - asked
            if batch is None:
                return
            yield batch

    def arrived(self) -> None:
        """Note that a step's outcome is here: with the first, the start is over."""
        if self.start is None:
            self.start, self.waited = time.monotonic() - self.started, 0.0

    def evaluated(self) -> None:
        """End an evaluation, and begin a step."""
        now = time.monotonic()
        self.evaluation, self._mark = now - self._mark, now

    def save_due(self, step: int, every: int | None) -> bool:
        """Tell whether a checkpoint is due: five minutes, or a multiple of `every` steps, after the last."""
        if every is not None:
            return step // every > self._saved_step // every  # ranks may ask at every eighth step only
        return time.monotonic() - self._saved > SAVE_SECONDS

    def saved(self, step: int) -> None:
        """Note that a checkpoint was just taken after this step."""
        self._saved, self._saved_step = time.monotonic(), step

    def steps_left(self, step: int, evaluations: Callable[[int], int]) -> int:
        """Return how many more steps fit into the budget, at the pace of the latest.

        `evaluations` returns how many are still to come in a run of so many steps: each depends on the other.
        """
        assert self.budget is not None
        left = MARGIN * self.budget - self.seconds - self._reserve
        possible = 1
        for _ in range(4):
            spare = left - evaluations(step + possible) * self.evaluation
            possible = max(1, int(spare / max(1e-9, self.seconds_per_step)))
        return possible


def evaluation_every(steps: int, per_epoch: int) -> int:
    """Return the steps between evaluations: whole epochs, for at most about 25 evaluations in a run."""
    return max(1, -(-steps // (per_epoch * EVALUATIONS))) * per_epoch


def evaluation_due(position: Position, per_epoch: int) -> bool:
    """Tell whether the run should be evaluated where it is."""
    every = evaluation_every(position.steps, per_epoch)
    return position.step == position.steps or position.step % every == 0


def fit(position: Position, per_epoch: int, clock: Clock) -> int:
    """Return how many steps the run should have in all to end with its time budget."""

    def evaluations(steps: int) -> int:  # still to come, before the last
        every = evaluation_every(steps, per_epoch)
        return max(0, (steps - 1) // every - position.step // every)

    return position.step + clock.steps_left(position.step, evaluations)
