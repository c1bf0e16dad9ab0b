"""A run from its folder to its results: held, planned, assembled, taken up, trained, concluded."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vitreous import console, objectives, parallel
from vitreous.config import TrainConfig
from vitreous.data import Dataset, InMemory, open_data
from vitreous.training import assembly, extension, find_lr, results, resume, setup
from vitreous.training import folder as run_folder
from vitreous.training.caller import Caller
from vitreous.training.loop import Training
from vitreous.training.plan import SUPERVISED, Task
from vitreous.training.results import Result
from vitreous.training.schedule import Stage
from vitreous.training.setup import Start
from vitreous.training.signals import StopSignal
from vitreous.training.watch import Watch


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
        stack.callback(torch.set_num_threads, torch.get_num_threads())  # the run may settle for fewer
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
        stack.enter_context(run_folder.full_disk_told(folder))
        # As written down when the run started, or chosen now.
        plan = setup.agree_on_plan(folder, data, dataset, options, world, start, task)
        if options.find_lr:
            build = make_objective or objectives.builder(plan.objective)
            scratch = Path(stack.enter_context(TemporaryDirectory()))
            first = [Stage(epochs=plan.epochs, seconds=plan.time_budget)]
            training = Training(scratch, plan, first, options, dataset, world, stop)
            assembly.build(training, build, start)
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
        assembly.build(training, make_objective or objectives.builder(plan.objective), start)
        stack.callback(training.close)
        resume.take_up(training, caller)
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
        with run_folder.full_disk_told(Path(out or "runs")):
            lock = run_folder.take(out, data, now)
        stack.callback(lock.release)
        held.append(lock.folder)

    parallel.on_main(hold, world)
    chosen = parallel.broadcast(held[0] if held else None, world)
    assert chosen is not None
    return chosen
