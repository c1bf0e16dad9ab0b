"""The one training loop, read from top to bottom; what is learned is an objective, so one loop serves all.

A run is a function of its plan: order, augmentation and dropout follow from (seed, step), the learning rate
from the step. A checkpoint therefore holds weights, their average, optimizer state, and a few numbers.
"""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from vitreous import console, objectives, optim, parallel
from vitreous.config import TrainConfig
from vitreous.data import Batch, Dataset, InMemory, Loader, open_data
from vitreous.errors import DataError, ResumeError, TrainingError
from vitreous.evals.outputs import Inference, Interrupted
from vitreous.models import zoo
from vitreous.objectives import Objective
from vitreous.training import (
    advice,
    clock,
    extension,
    find_lr,
    head,
    loaders,
    refusal,
    results,
    schedule,
    setup,
    threads,
    tuning,
)
from vitreous.training import folder as run_folder
from vitreous.training.caller import Caller
from vitreous.training.capture import CapturedStep
from vitreous.training.checkpoints import Checkpoints, Saved
from vitreous.training.clock import Clock
from vitreous.training.gradients import Gradients
from vitreous.training.log import Log
from vitreous.training.plan import SUPERVISED, Plan, Task
from vitreous.training.results import Result
from vitreous.training.schedule import Stage
from vitreous.training.setup import Start
from vitreous.training.signals import StopSignal
from vitreous.training.state import Position, State
from vitreous.training.step import Outcome, Step
from vitreous.training.watch import Watch

LAG = 8
"""Steps that a GPU may lag behind the host: outcomes are read, and ranks agree, that much later."""
TIMED = 3
"""Fewest steps that are timed to plan a time budget."""


def train(
    data: str | InMemory,
    options: TrainConfig,
    *,
    make_objective: objectives.Build | None = None,
    start: Start | None = None,
    task: Task = SUPERVISED,
    dataset: Dataset | None = None,
    caller: Caller | None = None,
    watch: Watch | None = None,
) -> Result:
    """Train a model on the data, or go on with a run that was stopped; return its folder and figures.

    Without a `start` the model is fresh; with one it is already trained, and all or part of it learns on.
    `task`: what is learned, if not the labels. `dataset`: what `data` names, if it is already open. `watch`:
    looks at the figures of each evaluation.
    """
    caller = caller or Caller()
    setup.check_options(options)
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignal())
        world = stack.enter_context(parallel.join(options.device))
        if dataset is None:
            dataset = open_data(data, data_root=options.data_root, seed=setup.seed(options))
        data = str(data)
        if make_objective is None and task.labels:
            setup.require_classes(dataset)
        folder = _hold_folder(
            stack, world, options.out, data, setup.identity(data, dataset, options, start, task)
        )

        if options.extend is not None:
            parallel.on_main(lambda: extension.require_run(folder), world)
        if world.is_main:
            stack.enter_context(run_folder.undone_if_refused(folder))
        # As written down when the run started, or chosen now.
        plan = setup.agree_on_plan(folder, data, dataset, options, world, start, task)
        if options.find_lr:
            build = make_objective or objectives.builder(plan.objective)
            scratch = Path(stack.enter_context(TemporaryDirectory()))
            first = [Stage(epochs=plan.epochs, seconds=plan.time_budget)]
            training = Training(scratch, plan, first, options, dataset, world, stop)
            training.build(build, start)
            stack.callback(training.close)
            found = find_lr.sweep(training)
            return Result(folder / "find-lr", dataset, found, world.is_main, str(world.device))
        stages = extension.agree(folder, options.extend, plan, world)
        if (ended := results.finished(folder, dataset, len(stages) - 1, world)) is not None:
            if world.is_main:
                console.note(
                    f"the run in {folder} has ended: --extend goes on with it, other options start another"
                )
            return ended
        training = Training(folder, plan, stages, options, dataset, world, stop, watch)
        training.build(make_objective or objectives.builder(plan.objective), start)
        stack.callback(training.close)
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        training.take_up(caller)
        with training.log:
            training.run()
            training.checkpoints.wait()
            return results.conclude(training)


def _hold_folder(
    stack: ExitStack, world: parallel.World, out: str | None, data: str, now: dict[str, Any]
) -> Path:
    """Choose the folder of the run, and hold it until the stack is left; return its path."""
    held: list[Path] = []

    def hold() -> None:
        lock = run_folder.take(out, data, now)
        stack.callback(lock.release)
        held.append(lock.folder)

    parallel.on_main(hold, world)
    chosen = parallel.broadcast(held[0] if held else None, world)
    assert chosen is not None
    return chosen


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

    # Made by `build`: what is learned, what feeds it, what moves it.
    objective: Objective
    step: Step
    state: State
    loader: Loader
    validation: Loader | None
    checkpoints: Checkpoints
    saved: Saved | None
    """The checkpoint that the run goes on from."""
    pixels: loaders.Where
    # Made by `take_up`: where the run is.
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

    # -- before the first step -------------------------------------------------------------------------

    def build(self, make_objective: objectives.Build, start: Start | None) -> None:
        """Make the model inside its objective, on its device, the loaders, and what moves it."""
        plan, options, world = self.plan, self.options, self.world
        torch.manual_seed(plan.seed)
        if start is None:
            model = zoo.build(plan.architecture, plan.initialization)
        else:
            model = start.model(plan.architecture)
            self.note(f"learning: {tuning.apply(model, plan.tune)}")
        self.objective = make_objective(model, plan, self.dataset)
        self.checkpoints = Checkpoints(self.folder / "resume", keep=options.keep)
        self.saved = self.checkpoints.newest()
        self.pixels = loaders.where_to_train(
            self.dataset.splits["train"],
            plan,
            options,
            world,
            small=self.objective.small,
            before=self.saved.values.get("pixels") if self.saved else None,
        )
        views = {"views": self.objective.views, "small": self.objective.small}
        self.loader = loaders.training_loader(self.dataset, plan, options, world, self.pixels, **views)
        self.validation = None
        if (name := loaders.validation_split(self.dataset)) is not None:
            self.validation = loaders.evaluation_loader(self.dataset.splits[name], plan, options, world)
        module = parallel.prepare(
            self.objective,
            world,
            shard=options.shard,
            compile=setup.compile_mode(options, world),
            checkpointing=options.checkpointing,
            precision=plan.precision,
            frozen=self.objective.frozen,
        )
        if plan.fit_head and options.shard:
            self.note("head: starts at zero, because --shard leaves no rank with the whole model to fit it")
        elif plan.fit_head and self.saved is None:
            head.fit(self.objective.model, self.dataset, plan.preprocessing, world, plan.precision)
        self.state = State(self.objective, plan, capturable=bool(self.lag))
        gradients = Gradients(
            module,
            self.objective,
            world,
            images=min(plan.batch_size, len(self.loader.split)),
            micro_batch=options.micro_batch or -(-plan.batch_size // world.size),
            precision=plan.precision,
            seed=plan.seed,
            note=self.note,
        )
        if self.lag and world.size == 1:
            self.step = CapturedStep(gradients, self.state, clip=plan.clip)
        else:
            self.step = Step(gradients, self.state, clip=plan.clip, wait=not self.lag)

    def close(self) -> None:
        """Release files and loaders: their workers end now, not at Python's next garbage collection, which
        would take seconds for each of them."""
        self.checkpoints.close()
        del self.loader, self.validation

    def take_up(self, caller: Caller) -> None:
        """Go to the newest intact checkpoint, or to the start; start the clock and the log."""
        plan, per_epoch, stage = self.plan, self.loader.steps_per_epoch, self.stage
        begins = self._restore(self.saved)
        after = len(self.dataset.splits.get("test", ())) + min(advice.SAMPLE, len(self.loader.split))
        self.clock = Clock(
            caller.started,
            self.position.seconds - stage.spent,
            stage.seconds,
            tests=after / len(self.validation.split) if self.validation else 0.0,
            afterwards=caller.afterwards,
        )
        self.clock.saved(self.position.step)
        self.best = results.best_score(self)
        if begins and stage.seconds is not None:
            self.plan_budget(stage.seconds)
        self.clock.begin_schedule(self.position.share)
        self.objective.before_step(schedule.progress(self.stages, self.position))  # for an evaluation
        self.log = Log(
            self.folder,
            self.options,
            self.world,
            step=self.position.step,
            steps=self.position.steps,
            images=self.step.gradients.images,
            per_epoch=per_epoch,
            about=plan.to_json(),
            caller=caller,
            warm=1 + self.lag,
        )
        if self.saved is None:
            self.save()  # a rollback always has one to go back to
        else:
            self.log.go_on_with(self.saved.values.get("running", {}))

    def _restore(self, saved: Saved | None) -> bool:
        """Go to where a checkpoint was taken, or to the start; return whether a stage of the run begins."""
        plan, per_epoch, stage = self.plan, self.loader.steps_per_epoch, self.stage
        self.position = Position(steps=(stage.epochs or 0) * per_epoch)
        if saved is None:
            if stage.start:
                raise ResumeError(
                    f"{self.folder / 'resume'} holds no state to go on from: use finetune instead"
                )
            threads.settle(self.objective.model, plan, self.world)
            return True
        threads.keep(saved.values)
        self.position = Position.from_json(saved.values)
        self.state.restore(self.checkpoints, saved)
        begins = 0 < stage.start and self.position.step <= stage.start
        if not begins:
            self.note(f"going on from step {self.position.step:,} of {self.position.steps:,}")
            return False
        self.position.steps = stage.start + (stage.epochs or 0) * per_epoch
        self.position.share, self.position.seconds = 0.0, stage.spent
        parallel.on_main(lambda: extension.begin(self.folder, self.stages), self.world)
        self.note(extension.describe(plan, stage))
        return True

    def plan_budget(self, budget: float) -> None:
        """Time a few steps that change no weight, and plan for as many as fit."""
        gradients, epoch, timed = self.step.gradients, 0, 0
        self.objective.train()  # as in the steps that are planned for
        enough = False
        while not enough:
            for batch in self.loader.epoch(epoch):
                gradients(batch, timed)
                optim.gradient_norm(self.objective.parameters()).item()
                self.state.clear_gradients()
                self.clock.step() if timed else self.clock.begin()  # the first is slow for its own reasons
                timed += 1
                # The main rank's clock decides for all: one that left by its own would keep others waiting.
                spent = timed > TIMED and self.clock.seconds - self.clock.before > 0.03 * budget
                enough = parallel.broadcast(spent, self.world)
                if enough:
                    break
            epoch += 1
        if self.validation is not None:
            # An image that is only evaluated costs one forward pass, and reading it.
            part = min(1.0, 1.5 / tuning.passes(self.plan.architecture, self.plan.tune))
            share = len(self.validation.split) / gradients.images
            self.clock.evaluation = part * self.clock.seconds_per_step * share
        self._replan()
        epochs = f"{(self.position.steps - self.position.step) / self.loader.steps_per_epoch:.1f} epochs"
        self.note(f"epochs: {epochs} ({epochs} fit into {console.duration(budget)})")

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
                self._keep_to_budget(flags.late)
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
        if wrong := [name for name, value in figures.items() if not math.isfinite(value)]:
            raise TrainingError(
                f"the evaluation at step {self.position.step:,} is not finite ({', '.join(wrong)}): "
                f"lower --lr in another --out, or try --precision float32"
            )
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
        """Yield an epoch's batches; it is no error if a signal to stop has ended the workers too."""
        try:
            batches = self.loader.epoch(epoch, start=first, mixed=self._mixed(epoch))
            yield from self.clock.waiting(batches)
        except DataError:
            if not self.stop.received or self.world.size > 1:
                raise

    def _mixed(self, epoch: int) -> bool:
        """Tell whether an epoch's images are mixed: the plan may leave the end of the run unmixed."""
        start = self.stage.start
        behind = (epoch * self.loader.steps_per_epoch - start) / max(1, self.position.steps - start)
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

    def _keep_to_budget(self, late: bool) -> None:
        """Keep to the time budget: make this the last step once it is used up; else replan now and then."""
        position = self.position
        if self.stage.seconds is None:
            return
        if late:
            position.steps = position.step
        elif position.step >= position.steps or position.step % max(1, position.steps // 50) == 0:
            self._replan()

    def _replan(self) -> None:
        fitting = clock.fit(self.position, self.loader.steps_per_epoch, self.clock)
        self.position.steps = parallel.broadcast(fitting, self.world)
