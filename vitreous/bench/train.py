"""The step that `vitreous train` takes: made by its loop from its plan, on pixels that are on the device.

Peers step as the scripts of timm and torchvision do by default: autocast, smoothed cross entropy, AdamW
without decay of norms and biases; on a GPU compiled whole. They don't clip, check for NaN or average weights.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from vitreous import objectives, parallel
from vitreous.bench.cases import CLASSES, Case
from vitreous.bench.measure import Contender
from vitreous.bench.place import Place
from vitreous.config import Precision, TrainConfig
from vitreous.data import Batch, Dataset, Split
from vitreous.data.images import ArrayImages
from vitreous.errors import TrainingError
from vitreous.models.architecture import Architecture
from vitreous.training import assembly, defaults
from vitreous.training.facts import Facts
from vitreous.training.loop import Training
from vitreous.training.plan import Plan
from vitreous.training.schedule import Stage
from vitreous.training.signals import StopSignal
from vitreous.training.step import Outcome
from vitreous.version import __version__

PASSES = 3.0
"""Cost of forward and backward, in forward passes."""
IMAGENET = 1_281_167
SMOOTHING = 0.1
"""Label smoothing: that of timm's and DeiT's scripts, and of our plans."""


def settled(case: Case, world: parallel.World) -> Case:
    """Return the case in the precision of the plan, if none was asked for."""
    return replace(case, precision=_plan(case, world).precision)


def contenders(case: Case, place: Place) -> Iterator[Contender]:
    """Yield our step, then the peers', which start from the same weights and use the same batch."""
    ours = OurStep(case, place)
    assert case.batch_size is not None and case.precision is not None and case.precision != "int8"
    tensors = parallel.whole_tensors(ours.training.objective.model.state_dict())  # before they move
    yield Contender("vitreous", ours, case.batch_size, __version__, ours=True, close=ours.close)
    place.peers.only_predict()
    for name, version, model in place.peers.models(case, tensors):
        step = peer_step(model, ours.batch, place.world.device, case.precision)
        yield Contender(name, step, case.batch_size, version)


class OurStep:
    """Takes the steps of a run on one batch, and reads their outcomes as late as the loop does."""

    def __init__(self, case: Case, place: Place) -> None:
        options, plan = _options(case, place.world), _plan(case, place.world)
        stage = Stage(epochs=plan.epochs, seconds=plan.time_budget)
        assert case.batch_size is not None
        data = synthetic(case.batch_size, case.architecture)
        self.training = Training(place.scratch, plan, [stage], options, data, place.world, StopSignal())
        assembly.build(self.training, objectives.builder(plan.objective), None)
        self.batch: Batch = next(iter(self.training.loader.epoch(0)))
        self.taken = 0
        self._flights: deque[Outcome] = deque()

    def __call__(self) -> None:
        training = self.training
        self._flights.append(training.step(self.batch, self.taken, training.plan.lr))
        self.taken += 1
        while len(self._flights) > training.lag:
            if self._flights.popleft().read()["refused"]:
                raise TrainingError(
                    f"step {self.taken} was not finite, and moved nothing: try --precision float32"
                )

    def close(self) -> None:
        """Release what the run holds."""
        self._flights.clear()
        self.training.close()


def _options(case: Case, world: parallel.World) -> TrainConfig:
    """Return the options of the command whose step is timed, without augmentation."""
    assert case.precision != "int8"  # refused with the options
    return TrainConfig(
        model=case.model,
        image_size=case.image_size,
        batch_size=case.batch_size,
        precision=case.precision or "auto",
        device=str(world.device),
        augment="none",
        workers=0,
    )


def _plan(case: Case, world: parallel.World) -> Plan:
    """Return the plan that `vitreous train` follows for ImageNet on this device."""
    assert case.image_size is not None
    facts = Facts(
        images=IMAGENET,
        classes=CLASSES,
        multilabel=False,
        size=case.image_size,
        channels=3,
        device=world.device.type,
        bf16=parallel.has_bf16(world.device),
        cores=1,
    )
    return defaults.choose(_options(case, world), facts)


def synthetic(count: int, config: Architecture) -> Dataset:
    """Return `count` images of random pixels, with ImageNet's number of classes."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, *config.image_size, config.in_channels), np.uint8)
    split = Split(ArrayImages(pixels), np.arange(count) % CLASSES, CLASSES, np.zeros((count, 16), np.uint8))
    return Dataset([str(row) for row in range(CLASSES)], False, {"train": split}, "")


def peer_step(
    model: nn.Module, batch: Batch, device: torch.device, precision: Precision
) -> Callable[[], None]:
    """Return a training step as the peers' own scripts take it."""
    model.to(device).train()
    images, targets = batch.images.clone(), batch.targets.clone()  # its own: they count in its memory
    run = torch.compile(model) if device.type == "cuda" else model
    plain = [each for each in model.parameters() if each.ndim < 2]
    decayed = [each for each in model.parameters() if each.ndim >= 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=1e-3, weight_decay=0.05
    )

    def step() -> None:
        with parallel.autocast(device, precision):
            loss = nn.functional.cross_entropy(run(images), targets, label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
