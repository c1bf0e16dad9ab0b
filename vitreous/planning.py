"""Before the loop: which plan a run follows, and the loaders that feed it; nothing is trained here."""

import hashlib
import json
import os
import shlex
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vitreous import checkpoint, console, defaults, parallel, resume
from vitreous.config import Compile, TrainConfig
from vitreous.data import Dataset, Loader, Split, make_loader
from vitreous.data.split import ArrayImages
from vitreous.defaults import Facts, Plan
from vitreous.errors import DataError
from vitreous.models import cost
from vitreous.models.architecture import ViTConfig
from vitreous.tuning import Beginning

# What may differ between the command that started a run and the one that goes on with it.
FREE = {
    *("out", "device", "workers", "micro_batch", "compile", "checkpointing", "shard"),
    *("save_every", "keep", "on_nan", "data_root", "tensorboard", "wandb", "mlflow"),
}


def agree_on_plan(
    folder: Path,
    data: str,
    dataset: Dataset,
    options: TrainConfig,
    world: parallel.World,
    beginning: Beginning | None = None,
) -> Plan:
    """Return the plan of the run in this folder, if its options are still the same, or choose one."""
    if "train" not in dataset.splits or not len(dataset.splits["train"]):
        raise DataError(f"{data} has no training images: a train split is needed")
    now = {name: value for name, value in asdict(options).items() if name not in FREE}
    now["data"] = dataset.fingerprint
    if beginning is not None:
        sums = checkpoint.checksums(beginning.tensors)
        now["checkpoint"] = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / "config.json"
    box: list[Plan] = []

    def decide() -> None:
        if path.exists():
            stored = resume.read_json(path)
            resume.refuse_changes(stored["options"], now, folder)
            box.append(Plan.from_json(stored["plan"]))
            return
        facts = _facts(dataset, world)
        if beginning is None:
            plan = defaults.choose(options, facts)
        else:
            plan = defaults.choose(filled(options, beginning.recipe), facts, beginning.architecture)
            plan = replace(plan, preprocessing=beginning.preprocessing)
        for name, reason in plan.reasons.items():
            console.note(f"{name}: {_shown(plan, name)} ({reason})")
        command = shlex.join(["vitreous", *sys.argv[1:]])
        source = {"command": command, "data": data, "data_root": options.data_root}
        about = {**source, "options": now, "plan": plan.to_json()}
        resume.write_json(path, about)
        box.append(plan)

    parallel.leader_does(decide, world)
    plan = parallel.from_leader(box[0] if box else None, world)
    assert plan is not None
    return plan


def filled(options: TrainConfig, recipe: Mapping[str, Any]) -> TrainConfig:
    """Return the options with a recipe's values where the user gave none."""
    return replace(
        options, **{name: value for name, value in recipe.items() if getattr(options, name) is None}
    )


def _facts(dataset: Dataset, world: parallel.World) -> Facts:
    """Measure what the choices depend on; of encoded images a sample is looked at."""
    split = dataset.splits["train"]
    if isinstance(split.images, ArrayImages):
        height, width, channels = split.images.pixels.shape[1:]
    else:
        sizes = [size for i in range(0, len(split), max(1, len(split) // 64)) if (size := _size(split, i))]
        if not sizes:
            raise DataError(
                "none of the images that were tried can be read: run `vitreous check` on the data"
            )
        width, height = (int(statistics.median(axis)) for axis in zip(*sizes, strict=True))
        channels = 3
    return Facts(
        images=len(split),
        classes=split.classes,
        multilabel=dataset.multilabel,
        size=(int(height), int(width)),
        channels=int(channels),
        device=world.device.type,
        bf16=parallel.has_bf16(world.device),
        cores=_cores(),
    )


def _size(split: Split, index: int) -> tuple[int, int] | None:
    try:
        return split.read(index).size
    except DataError:
        return None  # one bad file costs itself only; the loader will name it


def _shown(plan: Plan, name: str) -> str:
    if name == "model":
        kind = "ViT" if isinstance(plan.architecture, ViTConfig) else "ResNet"
        return f"{kind} of {cost.parameters(plan.architecture):,} parameters"
    value = getattr(plan, name) if hasattr(plan, name) else getattr(plan.architecture, name)
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def loaders(
    dataset: Dataset, plan: Plan, options: TrainConfig, world: parallel.World
) -> tuple[Loader, Loader | None]:
    """Return the loader of training images, and one of the images that judge the run on its way."""
    split = dataset.splits["train"]
    workers = options.workers
    if workers is None:
        workers = 0 if isinstance(split.images, ArrayImages) else min(8, _cores())
    loader = make_loader(
        split,
        preprocessing=plan.preprocessing,
        augment=plan.augment,
        batch_size=plan.batch_size,
        seed=options.seed,
        rank=world.rank,
        world_size=world.size,
        workers=workers,
        device=world.device,
        sampler="balanced" if options.balance == "sampler" else "uniform",
        mask_step=getattr(plan.architecture, "step", (32, 32)),
    )
    name = next((name for name in ("val", "test") if name in dataset.splits), None)
    return loader, None if name is None else judging(dataset, name, plan, world, workers)


def _cores() -> int:
    """Return the processors for each rank of this machine."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def judging(dataset: Dataset, name: str, plan: Plan, world: parallel.World, workers: int) -> Loader:
    """Return a loader of a split to be evaluated: each image once."""
    return make_loader(
        dataset.splits[name],
        preprocessing=plan.preprocessing,
        batch_size=max(2 * plan.batch_size, world.size),
        rank=world.rank,
        world_size=world.size,
        workers=workers,
        device=world.device,
        training=False,
        mask_step=getattr(plan.architecture, "step", (32, 32)),
    )


def compile_mode(options: TrainConfig, world: parallel.World) -> Compile:
    """Return how to compile: on GPUs, unless the user says otherwise."""
    if options.compile != "auto":
        return options.compile
    return "blocks" if world.device.type == "cuda" else "none"
