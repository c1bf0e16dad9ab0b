"""A time budget: how many steps fit into it, planned from a few that are timed, and kept to on the way."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vitreous import console, optim, parallel
from vitreous.data import Batch, Loader
from vitreous.training import clock, tuning

if TYPE_CHECKING:
    from vitreous.training.loop import Training

TIMED = 3
"""Fewest steps that are timed to plan a time budget."""


def plan(training: "Training", budget: float) -> None:
    """Time a few steps that change no weight, and plan for as many as fit."""
    gradients, clock, timed = training.step.gradients, training.clock, 0
    training.objective.train()  # as in the steps that are planned for
    for batch in _batches(training.loader):
        gradients(batch, timed)
        optim.gradient_norm(training.objective.parameters()).item()
        training.state.clear_gradients()
        clock.step() if timed else clock.begin()  # the first is slow for its own reasons
        timed += 1
        # The main rank's clock decides for all: one that left by its own would keep others waiting.
        spent = timed > TIMED and clock.seconds - clock.before > 0.03 * budget
        if parallel.broadcast(spent, training.world):
            break
    if training.validation is not None:
        # An image that is only evaluated costs one forward pass, and reading it.
        part = min(1.0, 1.5 / tuning.passes(training.plan.architecture, training.plan.tune))
        clock.evaluation = part * clock.seconds_per_step * len(training.validation.split) / gradients.images
    _replan(training)
    if clock.seconds > budget and training.world.is_main:
        console.warn(
            f"the start alone took {console.duration(clock.seconds)}, so nothing is left of "
            f"{console.duration(budget)}: the run ends after one step"
        )
    position = training.position
    epochs = f"{(position.steps - position.step) / training.loader.steps_per_epoch:.1f} epochs"
    training.note(f"epochs: {epochs} ({epochs} fit into {console.duration(budget)})")


def _batches(loader: Loader) -> Iterator[Batch]:
    """Yield the batches of one epoch after another, without end."""
    for epoch in itertools.count():
        yield from loader.epoch(epoch)


def keep_to(training: "Training", late: bool) -> None:
    """Keep to the time budget: make this the last step once it is used up; else replan now and then."""
    position = training.position
    if training.stage.seconds is None:
        return
    if late:
        position.steps = position.step
    elif position.step >= position.steps or position.step % max(1, position.steps // 50) == 0:
        _replan(training)


def _replan(training: "Training") -> None:
    """Plan the steps anew, by the pace of the latest; the main rank decides for all."""
    fitting = clock.fit(training.position, training.loader.steps_per_epoch, training.clock)
    training.position.steps = parallel.broadcast(fitting, training.world)
