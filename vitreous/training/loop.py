"""The one training loop, read from top to bottom; what is learned is an objective, so one loop serves all.

A run is a function of its plan: order, augmentation and dropout follow from (seed, step), the learning rate
from the step. A checkpoint therefore holds weights, their average, optimizer state, and a few numbers.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitreous import console, parallel
from vitreous.config import TrainConfig
from vitreous.data import Batch, Dataset, Loader
from vitreous.errors import DataError
from vitreous.evals.outputs import Inference, Interrupted
from vitreous.objectives import Objective
from vitreous.training import budget, clock, loaders, refusal, results, schedule
from vitreous.training.checkpoints import Checkpoints, Saved
from vitreous.training.clock import Clock
from vitreous.training.log import Log
from vitreous.training.plan import Plan
from vitreous.training.schedule import Stage
from vitreous.training.signals import StopSignal
from vitreous.training.state import Position, State
from vitreous.training.step import Outcome, Step
from vitreous.training.watch import Watch

LAG = 8
"""Steps that a GPU may lag behind the host: outcomes are read, and ranks agree, that much later."""


@dataclass(frozen=True)
class Flight:
    """A step that was taken but whose outcome has not been read yet."""

    position: Position
    """Where the run was before it."""
    lr: float
    indices: Tensor
    """The images of its batch."""
    outcome: Outcome | None
    """None: it was left out."""


@dataclass(frozen=True)
class Flags:
    """What the host knows between two steps, on any rank."""

    stop: bool = False
    save: bool = False
    late: bool = False


class Training:
    """A run in progress."""

    # Put together in `assembly.py`: what is learned, what feeds it, what moves it.
    objective: Objective
    step: Step
    state: State
    loader: Loader
    validation: Loader | None
    checkpoints: Checkpoints
    saved: Saved | None
    """The checkpoint that the run goes on from."""
    pixels: loaders.Where
    # Taken up in `resume.py`: where the run is.
    position: Position
    clock: Clock
    log: Log
    best: list[float] | None
    """The score of the best evaluation."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        stages: list[Stage],
        options: TrainConfig,
        dataset: Dataset,
        world: parallel.World,
        stop: StopSignal,
        watch: Watch | None = None,
    ) -> None:
        self.watch = watch or Watch()
        self.folder, self.plan, self.options = folder, plan, options
        self.stages, self.stage = stages, stages[-1]
        self.dataset, self.world, self.stop = dataset, world, stop
        self.flights: deque[Flight] = deque()
        # Sharded optimizers can't refuse an update on the device; a CPU is never ahead of itself.
        self.lag = LAG if world.device.type == "cuda" and not options.shard else 0

    def note(self, message: str) -> None:
        """Print a note for the user, once for all ranks."""
        if self.world.is_main:
            console.note(message)

    def close(self) -> None:
        """Release files and loaders: their workers end now, not at Python's next garbage collection, which
        would take seconds for each of them."""
        self.checkpoints.close()
        del self.loader, self.validation

    # -- the loop --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take steps until there are enough; record, evaluate, save and stop on the way."""
        per_epoch = self.loader.steps_per_epoch
        self.stop.armed = True
        self.clock.begin()
        self.make_up_evaluation()
        while self.position.step < self.position.steps:
            for batch in self._batches(*divmod(self.position.step, per_epoch)):
                self.take_step(batch)
                flags = self._agree()
                budget.keep_to(self, flags.late)
                evaluate = self.evaluation_due()
                ended = self.position.step == self.position.steps
                if not self.settle(everything=evaluate or ended or flags.save or flags.stop):
                    break  # a step was refused: go on from the checkpoint before it
                stop = flags.stop
                if evaluate:
                    stop = not self.evaluate() or stop
                if ended or flags.save or stop:
                    self.save()
                if stop:
                    self.leave()
                if ended:
                    break
            self.clock.begin()
            alone = self.world.size == 1
            if self.stop.received and alone and self.settle(everything=True):
                self.save()  # the loader's workers were told to end as well
                self.leave()

    def evaluation_due(self) -> bool:
        """Tell whether the run should be evaluated where it is."""
        return self.validation is not None and clock.evaluation_due(
            self.position, self.loader.steps_per_epoch
        )

    def make_up_evaluation(self) -> None:
        """Evaluate the run if a signal ended it when that was due: its best model may be this one."""
        if self.position.evaluated < self.position.step and self.evaluation_due():
            completed = self.evaluate()
            self.save()
            if not completed:
                self.leave()

    def take_step(self, batch: Batch) -> None:
        """Take one step, or leave it out where it was refused before."""
        position = self.position
        before = Position(**vars(position))
        lr, left_out = self.learning_rate(), position.step in position.skipped
        progress = schedule.progress(self.stages, position)
        outcome = None if left_out else self.step(batch, position.step, lr, progress)
        self.flights.append(Flight(before, lr, batch.indices, outcome))
        position.step += 1
        self.clock.step()

    def learning_rate(self) -> float:
        """Return the rate of the next step."""
        return schedule.learning_rate(self.plan, self.stages, self.position)

    def settle(self, *, everything: bool) -> bool:
        """Read the outcomes that must have arrived; False: the run had to go back to a checkpoint."""
        while self.flights and (everything or len(self.flights) > self.lag):
            flight = self.flights.popleft()
            figures = flight.outcome.read() if flight.outcome else {}
            self.clock.arrived()
            if figures.get("refused"):
                self.flights.clear()  # all that followed were refused as well
                self.position = refusal.go_back(self, flight, figures)
                return False
            self.log.step(flight.position.step + 1, figures, steps=self.position.steps, lr=flight.lr)
        self.log.show(self.position.step, self.position.steps, self.clock.seconds_per_step)
        self.log.unreadable(self.loader)
        return True

    def evaluate(self) -> bool:
        """Evaluate the run on its validation images, and seal it if it is the best so far.

        False: a signal came in between.
        """
        assert self.validation is not None
        paused = self.log.pause()
        inference = Inference(
            world=self.world,
            precision=self.plan.precision,
            micro_batch=self.step.gradients.micro_batch,
            stopped=lambda: self.stop.received,
        )
        try:
            with self.state.averaged(), parallel.uncompiled():
                figures = dict(self.objective.evaluate(self.validation, inference).figures)
        except Interrupted:
            return False
        results.require_finite(figures, f"at step {self.position.step:,}")
        self.log.evaluation(self.position.step, "val", figures)
        score = self.objective.score(figures)
        if self.best is None or score > self.best:
            self.best = score
            results.seal(self, "best.safetensors", {"val": figures})
        self.position.evaluated = self.position.step
        self.watch(self, figures)
        self.clock.evaluated()
        self.log.go_on(paused)
        return True

    @property
    def seconds(self) -> float:
        """Spent on the run so far, over all its starts and stages."""
        return self.stage.spent + self.clock.seconds

    def save(self) -> None:
        """Take a checkpoint; it becomes durable in the background."""
        self.position.seconds = self.seconds
        values = {**self.position.to_json(), "running": self.log.running()}
        values |= {"threads": torch.get_num_threads(), "pixels": self.pixels}
        self.checkpoints.save(self.position.step, self.state.tensors(), values)
        self.clock.saved(self.position.step)

    def leave(self) -> None:
        """End the process as a signal asked, once the checkpoint is durable."""
        self.checkpoints.wait()
        step, steps = self.position.step, self.position.steps
        self.note(f"stopped at step {step:,} of {steps:,}: the same command goes on from here")
        self.stop.end_process()

    def _batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield an epoch's batches, up to where images are mixed no more; it is no error if a signal to stop
        has ended the workers too."""
        mixed = self._mixed()
        try:
            for batch in self.clock.waiting(self.loader.epoch(epoch, start=first, mixed=mixed)):
                yield batch
                if self._mixed() != mixed:
                    return
        except DataError:
            if not self.stop.received or self.world.size > 1:
                raise

    def _mixed(self) -> bool:
        """Tell whether the next step's images are mixed: the plan may leave the end of the run unmixed."""
        start = self.stage.start
        behind = (self.position.step - start) / max(1, self.position.steps - start)
        if self.stage.seconds is not None:
            behind = self.position.share
        return behind < 1.0 - self.plan.augment.unmixed

    def _agree(self) -> Flags:
        """Return what any rank knows; ranks that may run ahead of their devices ask each other less often."""
        if self.world.size > 1 and self.lag and self.position.step % self.lag:
            return Flags()
        due = self.world.is_main and self.clock.save_due(self.position.step, self.options.save_every)
        flags = [self.stop.received, due, self.clock.late, self.checkpoints.failed]
        stop, save, late, failed = parallel.any_rank(flags, self.world)
        if self.stage.seconds is not None:  # the schedule follows the time, and never goes back
            share = parallel.broadcast(self.clock.share, self.world)
            self.position.share = max(self.position.share, share)
        if failed:
            self.checkpoints.wait()  # raises what went wrong
        return Flags(stop, save, late)
