"""A run put together before its first step: what is learned, what feeds it, and what moves it."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from vitreous import objectives, parallel
from vitreous.models import zoo
from vitreous.models.weights import Model
from vitreous.training import head, loaders, setup, tuning
from vitreous.training.capture import CapturedStep
from vitreous.training.checkpoints import Checkpoints
from vitreous.training.gradients import Gradients
from vitreous.training.setup import Start
from vitreous.training.state import State
from vitreous.training.step import Step

if TYPE_CHECKING:
    from vitreous.training.loop import Training


def build(training: "Training", make_objective: objectives.Build, start: Start | None) -> None:
    """Make the model inside its objective, on its device, the loaders, and what moves it."""
    plan, options, world = training.plan, training.options, training.world
    torch.manual_seed(plan.seed)
    training.objective = make_objective(_model(training, start), plan, training.dataset)
    training.checkpoints = Checkpoints(training.folder / "resume", keep=options.keep)
    training.saved = training.checkpoints.newest()
    if training.saved is None:
        parallel.settle(training.objective.model, plan.precision, world, batch=plan.batch_size)
    _feed(training)
    module = parallel.prepare(
        training.objective,
        world,
        shard=options.shard,
        compile=setup.compile_mode(options, world),
        checkpointing=options.checkpointing,
        precision=plan.precision,
        frozen=training.objective.frozen,
    )
    if plan.fit_head and options.shard:
        training.note("head: starts at zero, because --shard leaves no rank with the whole model to fit it")
    elif plan.fit_head and training.saved is None:
        head.fit(training.objective.model, training.dataset, plan.preprocessing, world, plan.precision)
    training.state = State(training.objective, plan, capturable=bool(training.lag))
    training.step = _step(training, module)


def _model(training: "Training", start: Start | None) -> Model:
    """Return a fresh model, or a trained one of which the chosen part learns on."""
    plan = training.plan
    if start is None:
        return zoo.build(plan.architecture, plan.initialization)
    model = start.model(plan.architecture)
    training.note(f"learning: {tuning.apply(model, plan.tune)}")
    return model


def _feed(training: "Training") -> None:
    """Make the loaders of what is learned and of what is evaluated on the way."""
    plan, options, world, splits = training.plan, training.options, training.world, training.dataset.splits
    objective, saved = training.objective, training.saved
    training.pixels = loaders.where_to_train(
        splits["train"],
        plan,
        options,
        world,
        small=objective.small,
        before=saved.values.get("pixels") if saved else None,
    )
    training.loader = loaders.training_loader(
        training.dataset,
        plan,
        options,
        world,
        training.pixels,
        views=objective.views,
        small=objective.small,
    )
    training.validation = None
    if (name := loaders.validation_split(training.dataset)) is not None:
        training.validation = loaders.evaluation_loader(splits[name], plan, options, world)


def _step(training: "Training", module: nn.Module) -> Step:
    """Return how a step is taken: as a recorded graph on one GPU that may lag behind, else call by call."""
    plan, options, world = training.plan, training.options, training.world
    gradients = Gradients(
        module,
        training.objective,
        world,
        images=min(plan.batch_size, len(training.loader.split)),
        micro_batch=options.micro_batch or -(-plan.batch_size // world.size),
        precision=plan.precision,
        seed=plan.seed,
        note=training.note,
    )
    if training.lag and world.size == 1:
        return CapturedStep(gradients, training.state, clip=plan.clip)
    return Step(gradients, training.state, clip=plan.clip, wait=not training.lag)
