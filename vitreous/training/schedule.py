"""Where a run is in its schedule, and the learning rate that follows from it; pure functions of both.

A run is a list of stages: the one of its plan, and one for each `--extend`, whose learning rate rises again,
to a share of the peak, and falls to zero along a cosine: at the rate at which a run ends, next to zero,
nothing more would be learned.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vitreous import optim
from vitreous.training.plan import Plan
from vitreous.training.state import Position

PEAK = 0.5
"""Share of the plan's peak that the learning rate rises to again."""
WARMUP = 0.1
"""Part of the extension over which it rises."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a run with a length and a schedule of its own."""

    start: int = 0
    """The step that it begins with."""
    epochs: int | None
    """None: as many as fit into the time."""
    seconds: float | None
    """Its time budget."""
    spent: float = 0.0
    """Seconds that the run had taken before it."""
    asked: str = ""
    """The value of `--extend`."""


def progress(stages: Sequence[Stage], position: Position) -> float:
    """Return the part of the plan, or of its last extension, that is behind the next step: 0 to 1."""
    _, step, steps = _within(stages, position)
    return min(1.0, step / max(1, steps))


def _within(stages: Sequence[Stage], position: Position) -> tuple[int, float, int]:
    """Return the number of the stage that the next step is in, how many steps into it that step is (by the
    share of its time that has passed, where it has a time), and how many steps the stage has."""
    number = max(number for number, stage in enumerate(stages) if stage.start <= position.step)
    stage, last = stages[number], number == len(stages) - 1
    steps = (position.steps if last else stages[number + 1].start) - stage.start
    by_time = last and stage.seconds is not None
    return number, position.share * steps if by_time else position.step - stage.start, steps


def learning_rate(plan: Plan, stages: Sequence[Stage], position: Position) -> float:
    """Return the rate of the next step."""
    number, step, steps = _within(stages, position)
    if not number or plan.schedule == "constant":
        cooldown = steps // 5 if plan.schedule == "rsqrt" else 0
        warmup = 0 if number else round(plan.warmup * steps)
        about = {"warmup": warmup, "schedule": plan.schedule, "cooldown": cooldown}
        return optim.learning_rate(step, peak=plan.lr, steps=steps, **about)
    return optim.learning_rate(step, peak=PEAK * plan.lr, steps=steps, warmup=round(WARMUP * steps))
