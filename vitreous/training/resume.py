"""Where a run begins or goes on: the newest intact checkpoint, or the start; then its clock and its log."""

from typing import TYPE_CHECKING

from vitreous import parallel
from vitreous.errors import ResumeError
from vitreous.training import advice, budget, extension, results, schedule
from vitreous.training.caller import Caller
from vitreous.training.checkpoints import Saved
from vitreous.training.clock import Clock
from vitreous.training.log import Log
from vitreous.training.state import Position

if TYPE_CHECKING:
    from vitreous.training.loop import Training


def take_up(training: "Training", caller: Caller) -> None:
    """Go to the newest intact checkpoint, or to the start; start the clock and the log."""
    stage, saved = training.stage, training.saved
    begins = _begin(training) if saved is None else _go_on(training, saved)
    position = training.position
    training.clock = _clock(training, caller)
    training.best = results.best_score(training)
    if begins and stage.seconds is not None:
        budget.plan(training, stage.seconds)
    training.clock.begin_schedule(position.share)
    training.objective.before_step(schedule.progress(training.stages, position))  # for an evaluation
    training.log = Log(
        training.folder,
        training.options,
        training.world,
        step=position.step,
        evaluated=position.evaluated,
        steps=position.steps,
        images=training.step.gradients.images,
        per_epoch=training.loader.steps_per_epoch,
        about=training.plan.to_json(),
        caller=caller,
        warm=1 + training.lag,
    )
    if saved is None:
        training.save()  # a rollback always has one to go back to
    else:
        training.log.go_on_with(saved.values.get("running", {}))


def _begin(training: "Training") -> bool:
    """Go to the start; return that a stage of the run begins."""
    stage = training.stage
    if stage.start:
        raise ResumeError(f"{training.folder / 'resume'} holds no state to go on from: use finetune instead")
    training.position = Position(steps=(stage.epochs or 0) * training.loader.steps_per_epoch)
    return True


def _go_on(training: "Training", saved: Saved) -> bool:
    """Go to where a checkpoint was taken; return whether an extension of the run begins there."""
    stage = training.stage
    parallel.keep_threads(saved.values)
    training.position = position = Position.from_json(saved.values)
    training.state.restore(training.checkpoints, saved)
    if not 0 < stage.start or position.step > stage.start:
        training.note(f"going on from step {position.step:,} of {position.steps:,}")
        return False
    position.steps = stage.start + (stage.epochs or 0) * training.loader.steps_per_epoch
    position.share, position.seconds = 0.0, stage.spent
    parallel.on_main(lambda: extension.begin(training.folder, training.stages), training.world)
    training.note(extension.describe(training.plan, stage))
    return True


def _clock(training: "Training", caller: Caller) -> Clock:
    """Start a clock that knows what earlier starts have spent and what comes after the last step."""
    stage, splits, validation = training.stage, training.dataset.splits, training.validation
    tests = len(splits.get("test", ())) + min(advice.SAMPLE, len(training.loader.split))
    clock = Clock(
        caller.started,
        training.position.seconds - stage.spent,
        stage.seconds,
        tests=tests / len(validation.split) if validation else 0.0,
        afterwards=caller.afterwards,
    )
    clock.saved(training.position.step)
    return clock
