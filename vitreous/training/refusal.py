"""What follows a step whose loss or gradient is not finite: a report, then the end or a rollback."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous import files, parallel
from vitreous.errors import TrainingError
from vitreous.training.state import Position

if TYPE_CHECKING:
    from vitreous.training.loop import Flight, Training

ROLLBACKS = 3


def go_back(training: "Training", flight: "Flight", figures: dict[str, float]) -> Position:
    """Go back to the newest checkpoint, to go on without that batch; or save what there is, and stop."""
    position = flight.position
    reported = _report(training, flight, figures)
    if training.options.on_nan == "stop" or position.rollbacks == ROLLBACKS:
        training.position = position  # no weight has changed since
        training.save()
        training.checkpoints.wait()
        raise _error(reported, position, training.folder)
    saved = training.checkpoints.newest()
    assert saved is not None  # one is taken before the first step
    training.state.restore(training.checkpoints, saved)
    training.step.resume()
    again = Position.from_json(saved.values)
    again.skipped, again.rollbacks = [*position.skipped, position.step], position.rollbacks + 1
    again.steps, again.share = training.position.steps, training.position.share
    training.note(f"{reported}: rolled back to step {again.step:,}; that batch will be left out")
    training.log.rewind(again.step, again.evaluated)
    training.log.go_on_with(saved.values.get("running", {}))
    return again


def _report(training: "Training", flight: "Flight", figures: dict[str, float]) -> str:
    """Write a file with what is known of the step, and return it in one line."""
    step, loss, world = flight.position.step, figures["loss"], training.world
    mine = training.loader.files(flight.indices)
    known = parallel.gather((math.isfinite(loss), loss, mine), world)
    wrong = [names for finite, _, names in known if not finite] or [names for _, _, names in known]
    names = [name for part in wrong for name in part]
    path = training.folder / f"nonfinite-{step:08}.json"
    if world.is_main:
        files.write_json(
            path,
            {
                "step": step,
                "learning_rate": flight.lr,
                "loss": [str(value) for _, value, _ in known],
                "gradient_norm": str(figures["gradient_norm"]),
                "files": names,
            },
        )
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more (in {path})" if len(names) > 3 else "")
    return f"loss or gradient is not finite at step {step:,}, learning rate {flight.lr:.3g}, files {some}"


def _error(reported: str, position: Position, folder: Path) -> TrainingError:
    tried = f" after {position.rollbacks} rollbacks" if position.rollbacks else ""
    return TrainingError(
        f"{reported}{tried}: the weights before it are kept in {folder / 'resume'}; "
        f"look at those files, lower --lr in another --out, or go on without them with --on-nan rollback"
    )
