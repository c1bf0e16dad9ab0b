"""The one training loop, read from top to bottom; what is learned is an objective: one loop serves all.

A run is a function of its plan: order, augmentation and dropout follow from (seed, step), the learning rate
from the step. A checkpoint therefore holds weights, optimizer state, their average, and a few numbers.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous import console, optim, outcome, parallel, planning, resume, tuning
from vitreous.config import TrainConfig
from vitreous.data import Batch, Dataset, Loader, class_weights, open_data
from vitreous.defaults import Plan
from vitreous.errors import DataError, TrainingError
from vitreous.evals import validation
from vitreous.models import zoo
from vitreous.objectives import Objective
from vitreous.objectives.supervised import Supervised
from vitreous.outcome import Result
from vitreous.session import Clock, Log, Progress, Say, State, Stop
from vitreous.tuning import Beginning

ROLLBACKS = 3
EVALUATIONS = 25
"""About how many evaluations a run has."""

MakeObjective = Callable[[nn.Module, Plan, TrainConfig, Dataset], Objective]


def supervised(model: nn.Module, plan: Plan, options: TrainConfig, dataset: Dataset) -> Supervised:
    """Return the objective of `vitreous train`."""
    split = dataset.splits["train"]
    weights = class_weights(split.targets, split.classes).tolist() if options.balance == "loss" else None
    return Supervised(model, loss=plan.loss, label_smoothing=plan.label_smoothing, class_weights=weights)


def train(
    data: str,
    options: TrainConfig,
    *,
    make_objective: MakeObjective = supervised,
    beginning: Beginning | None = None,
    dataset: Dataset | None = None,
) -> Result:
    """Train a model on the data, or go on with a run that was stopped; return its folder and figures.

    Without a `beginning` the model is fresh; with one it is trained already, and all or part of it learns on.
    `dataset` is what `data` names, where it is open already.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        # Who trains, and that no one else writes here.
        stop = stack.enter_context(Stop())
        world = stack.enter_context(parallel.join(options.device))
        say: Say = console.note if world.leads else lambda _: None
        folder = Path(options.out or Path("runs") / Path(data).stem)
        parallel.leader_does(lambda: stack.callback(resume.RunLock(folder).release), world)

        # On what, and how: as it was written down when the run started, or chosen now.
        if dataset is None:
            dataset = open_data(data, data_root=options.data_root, seed=options.seed)
        plan = planning.agree_on_plan(folder, data, dataset, options, world, beginning)
        if (ended := outcome.finished(folder, dataset, world)) is not None:
            say(f"the run in {folder} has ended: give another --out for a new one")
            return ended
        loader, judge = planning.loaders(dataset, plan, options, world)
        images, per_epoch = min(plan.batch_size, len(loader.split)), loader.steps_per_epoch

        # The model inside its objective, on its device, and what moves it.
        torch.manual_seed(options.seed)
        model = zoo.build(plan.architecture)
        if beginning is not None:
            model.load_state_dict(beginning.tensors)
            say(f"learning: {tuning.apply(model, beginning.tune)}")
        objective = make_objective(model, plan, options, dataset)
        module = parallel.prepare(
            objective,
            world,
            shard=options.shard,
            compile=planning.compile_mode(options, world),
            checkpointing=options.checkpointing,
            precision=plan.precision,
        )
        state = State(objective, plan, options)

        # Where it is: at the newest checkpoint that is intact, or at the start.
        checkpoints = resume.Checkpoints(folder / "resume", keep=options.keep)
        stack.callback(checkpoints.close)
        at = Progress(steps=(plan.epochs or 0) * per_epoch)
        saved = checkpoints.newest()
        if saved is not None:
            at = Progress(**saved.values)
            state.restore(checkpoints, saved)
            say(f"going on from step {at.step:,} of {at.steps:,}")
        clock = Clock(started, at.seconds, plan.time_budget)
        micro = options.micro_batch or -(-plan.batch_size // world.size)
        accumulate = Accumulate(module, objective, images, plan, options.seed, world, micro, say)
        if saved is None:
            if plan.time_budget is not None:
                at.steps = parallel.from_leader(
                    _fit_budget(accumulate, state, loader, judge, dataset, clock), world
                )
                fits = f"{at.steps / per_epoch:.1f} epochs"
                say(f"epochs: {fits} ({fits} fit into {console.duration(plan.time_budget)})")
            checkpoints.save(0, state.tensors(), at.to_json())  # a rollback always has one to go back to
        log = stack.enter_context(Log(folder, at, options, world, about=plan.to_json()))

        stop.armed = True
        clock.begin()
        while at.step < at.steps:
            epoch, position = divmod(at.step, per_epoch)
            for batch in _batches(loader, epoch, position, stop, world):
                # One step: learning rate, gradients, and one message between the ranks.
                objective.train()
                lr = _learning_rate(at, plan, options)
                optim.set_learning_rate(state.optimizers, lr)
                figures = accumulate(batch, at.step)
                norm = optim.gradient_norm(objective.parameters())
                wrong = ~(torch.isfinite(figures["loss"]) & torch.isfinite(norm))
                due = world.leads and clock.save_due(at.step + 1, options.save_every)
                bad, stopped, failed, due, late = parallel.any_rank(
                    [wrong, stop.asked, checkpoints.failed, due, clock.late], world
                )
                if failed:
                    checkpoints.wait()  # raises what went wrong
                skipped = at.step in at.skipped
                if bad and not skipped:
                    state.clear()
                    reported = _report_bad(folder, batch, loader, figures["loss"], norm, lr, at, world)
                    if options.on_nan == "stop" or at.rollbacks == ROLLBACKS:
                        at.seconds = clock.seconds
                        checkpoints.save(at.step, state.tensors(), at.to_json())
                        checkpoints.wait()
                        raise _not_finite(reported, at, folder)
                    at = _roll_back(checkpoints, state, at)
                    say(f"{reported}: rolled back to step {at.step:,}; that batch will be left out")
                    log.restart()
                    break

                # The update, which no rank makes unless all have finite gradients.
                if not skipped:
                    if plan.clip:
                        optim.clip_gradients(objective.parameters(), plan.clip, norm)
                    state.update(at.step)
                    log.step(figures)
                state.clear()
                at.step += 1
                clock.step()
                log.show(at, images, clock)
                if late:
                    at.steps = at.step  # the time is up: evaluate what there is, and end
                elif plan.time_budget is not None and at.step % max(1, at.steps // 50) == 0:
                    at.steps = parallel.from_leader(_fit_steps(at, per_epoch, clock), world)

                # Now and then: a record, an evaluation, a checkpoint.
                if log.due(at, per_epoch):
                    log.record(at, images, per_epoch, lr, norm)
                    log.unreadable(loader)
                if judge is not None and _evaluation_due(at, per_epoch):
                    found = _judge(state, judge, plan, world, accumulate.micro, lambda: stop.asked)
                    clock.judged()
                    log.restart()
                    stopped = stopped or found is None
                    if found is not None:
                        log.evaluation(at, "val", found)
                        standing = validation.standing(found)
                        if at.best is None or standing > at.best[:2]:
                            at.best = [*standing, at.step]
                            outcome.seal(
                                folder / "best.safetensors", state, plan, dataset, at, world, {"val": found}
                            )
                if due or stopped or at.step == at.steps:
                    at.seconds = clock.seconds
                    checkpoints.save(at.step, state.tensors(), at.to_json())
                    clock.saved()
                if stopped:
                    _leave(checkpoints, at, stop, say)
                if at.step == at.steps:
                    break
            clock.begin()
            if stop.asked and world.size == 1:  # the loader's workers were told to end as well
                at.seconds = clock.seconds
                checkpoints.save(at.step, state.tensors(), at.to_json())
                _leave(checkpoints, at, stop, say)

        # What came of it.
        checkpoints.wait()
        return outcome.conclude(
            folder, state, plan, options, dataset, at, clock, log, world, accumulate.micro
        )


# -- the loop's verbs ----------------------------------------------------------------------------------------


def _fit_budget(
    accumulate: "Accumulate",
    state: State,
    loader: Loader,
    judge: Loader | None,
    dataset: Dataset,
    clock: Clock,
) -> int:
    """Time a few steps that move nothing, and return how many fit into the budget."""
    assert clock.budget is not None
    until = clock.seconds + 0.03 * clock.budget
    for number, batch in enumerate(loader.epoch(0)):
        accumulate(batch, number)
        optim.gradient_norm(state.module.parameters()).item()
        state.clear()
        clock.step() if number else clock.begin()  # the first is slow for reasons of its own
        if number >= 2 and clock.seconds > until:
            break
    if judge is not None:
        # An image that is only evaluated costs about a third of one that is trained on, and reading it.
        clock.judging = 0.5 * clock.pace / accumulate.images * len(judge.split)
        clock.afterwards = 1.0 + len(dataset.splits.get("test", ())) / len(judge.split)
    return _fit_steps(Progress(), loader.steps_per_epoch, clock)


class Accumulate:
    """Adds up the gradients of a batch in parts that fit into memory; called by every rank with its share."""

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        images: int,
        plan: Plan,
        seed: int,
        world: parallel.World,
        micro: int,
        say: Say,
    ) -> None:
        self.module, self.objective, self.images = module, objective, images
        self.plan, self.seed, self.world, self.micro, self.say = plan, seed, world, micro, say
        self.tried = False

    def __call__(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return this rank's share of the global batch's mean loss and metrics; ranks add up."""
        if self.world.size > 1 and not self.tried:
            self._try(batch, step)
        while True:
            try:
                return self._run(self.module, batch, step)
            except (RuntimeError, MemoryError) as error:
                if not parallel.out_of_memory(error):
                    raise
            self._halve()  # outside of the except clause, which holds on to the tensors

    def _try(self, batch: Batch, step: int) -> None:
        """Find what fits before ranks wait for each other: one that fails alone leaves the rest hanging."""
        self.tried = True
        while True:
            failed = False
            try:
                self._run(self.objective, batch, step)
            except (RuntimeError, MemoryError) as error:
                if not parallel.out_of_memory(error):
                    raise
                failed = True
            self.objective.zero_grad(set_to_none=True)
            if not parallel.any_rank([failed], self.world)[0]:
                return
            self._halve()

    def _run(self, module: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        parallel.seed_step(self.seed, step, self.world.rank)  # here: what is tried twice draws the same
        figures: dict[str, Tensor] = {}
        parts = split(batch, self.micro)
        for number, part in enumerate(parts):
            share = len(part) / self.images
            with parallel.accumulating(module, last=number == len(parts) - 1):
                with parallel.autocast(self.world.device, self.plan.precision):
                    loss, metrics = module(part)
                # Ranks take the mean of their gradients; ours are shares of a sum.
                (loss * share * self.world.size).backward()
            for name, value in {"loss": loss, **metrics}.items():
                added = value.detach() * share
                figures[name] = figures[name] + added if name in figures else added
        return figures

    def _halve(self) -> None:
        if self.micro == 1:
            raise TrainingError(
                "out of memory with a single image: a smaller --model or --image-size, or --checkpointing"
            )
        self.objective.zero_grad(set_to_none=True)
        if hasattr(self.objective, "reset_iter_state"):  # FSDP2 since torch 2.15: forget the step that failed
            self.objective.reset_iter_state()  # pyright: ignore[reportCallIssue]
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()
        self.micro = -(-self.micro // 2)
        self.say(f"out of memory: computing {self.micro} images at a time; the batch stays {self.images}")


def split(batch: Batch, size: int) -> list[Batch]:
    """Cut a batch into parts of at most `size` images; an empty one stays as it is."""
    if len(batch) <= size:
        return [batch]
    return [
        Batch(
            batch.images[start : start + size],
            batch.targets[start : start + size],
            batch.indices[start : start + size],
            None if batch.mask is None else batch.mask[start : start + size],
        )
        for start in range(0, len(batch), size)
    ]


def _batches(loader: Loader, epoch: int, position: int, stop: Stop, world: parallel.World) -> Iterator[Batch]:
    """Yield an epoch's batches; that a signal which asks us to stop also ends the workers is no error."""
    try:
        yield from loader.epoch(epoch, start=position)
    except DataError:
        if not stop.asked or world.size > 1:
            raise


def _leave(checkpoints: resume.Checkpoints, at: Progress, stop: Stop, say: Say) -> None:
    """End the process as it was asked to, once the checkpoint is durable."""
    checkpoints.wait()
    say(f"stopped at step {at.step:,} of {at.steps:,}: the same command goes on from here")
    stop.leave()


def _learning_rate(at: Progress, plan: Plan, options: TrainConfig) -> float:
    warmup = round(options.warmup * at.steps)
    cooldown = at.steps // 5 if plan.schedule == "rsqrt" else 0
    return optim.learning_rate(
        at.step, peak=plan.lr, steps=at.steps, warmup=warmup, schedule=plan.schedule, cooldown=cooldown
    )


def _evaluation_every(steps: int, per_epoch: int) -> int:
    """Return the steps between evaluations: whole epochs, some 25 times a run."""
    return max(1, -(-steps // per_epoch) // EVALUATIONS) * per_epoch


def _evaluation_due(at: Progress, per_epoch: int) -> bool:
    return at.step == at.steps or at.step % _evaluation_every(at.steps, per_epoch) == 0


def _fit_steps(at: Progress, per_epoch: int, clock: Clock) -> int:
    """Return how many steps there should be to end with the time budget."""

    def evaluations(steps: int) -> int:  # still to come, before the last
        every = _evaluation_every(steps, per_epoch)
        return max(0, (steps - 1) // every - at.step // every)

    return clock.fit(at.step, at.steps, evaluations)


def _judge(
    state: State, judge: Loader, plan: Plan, world: parallel.World, micro: int, stop: Callable[[], bool]
) -> dict[str, float] | None:
    """Evaluate the average where there is one, else the weights; None: a signal came."""
    objective = state.module
    assert isinstance(objective, Objective)
    with state.ema.applied() if state.ema else nullcontext():
        if isinstance(objective, Supervised):
            return validation.validate(
                objective.model,
                judge,
                objective.losses,
                world,
                precision=plan.precision,
                micro_batch=micro,
                stop=stop,
            )
        return validation.mean_loss(objective, judge, world, precision=plan.precision, stop=stop)


def _report_bad(
    folder: Path,
    batch: Batch,
    loader: Loader,
    loss: Tensor,
    norm: Tensor,
    lr: float,
    at: Progress,
    world: parallel.World,
) -> str:
    """Write down what is known of a step without a finite loss or gradient, and return it in one line."""
    mine = loader.files(batch.indices)
    known = parallel.gather((bool(torch.isfinite(loss)), loss.item(), mine), world)
    wrong = [files for finite, _, files in known if not finite] or [files for _, _, files in known]
    files = [file for part in wrong for file in part]
    report = {
        "step": at.step,
        "learning_rate": lr,
        "loss": [str(value) for _, value, _ in known],
        "gradient_norm": str(norm.item()),
        "files": files,
    }
    path = folder / f"nonfinite-{at.step:08}.json"
    if world.leads:
        resume.write_json(path, report)
    some = ", ".join(files[:3]) + (f" and {len(files) - 3} more (in {path})" if len(files) > 3 else "")
    return f"loss or gradient is not finite at step {at.step:,}, learning rate {lr:.3g}, files {some}"


def _not_finite(reported: str, at: Progress, folder: Path) -> TrainingError:
    tried = f" after {at.rollbacks} rollbacks" if at.rollbacks else ""
    return TrainingError(
        f"{reported}{tried}: the weights before it are kept in {folder / 'resume'}; "
        f"look at those files, lower --lr in another --out, or go on without them with --on-nan rollback"
    )


def _roll_back(checkpoints: resume.Checkpoints, state: State, at: Progress) -> Progress:
    """Take the newest checkpoint again, and remember to leave the bad step out."""
    saved = checkpoints.newest()
    assert saved is not None  # one is taken before the first step
    state.restore(checkpoints, saved)
    again = Progress(**saved.values)
    again.skipped, again.rollbacks, again.steps = [*at.skipped, at.step], at.rollbacks + 1, at.steps
    return again
