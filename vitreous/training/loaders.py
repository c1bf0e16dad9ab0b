"""What feeds a run: pixels kept on the device where they fit, else read and varied by the host."""

from typing import Any

import torch

from vitreous import console, parallel
from vitreous.config import Augment, TrainConfig
from vitreous.data import Dataset, Loader, Split, make_loader
from vitreous.data.device_store import fits
from vitreous.data.images import ArrayImages
from vitreous.training.plan import Plan
from vitreous.training.setup import cores


def training_loader(
    dataset: Dataset, plan: Plan, options: TrainConfig, world: parallel.World, *, views: int = 1
) -> Loader:
    """Return the loader of training images, which come in so many views."""
    split = dataset.splits["train"]
    device, reason = on_device(split, plan, options, world, plan.augment)
    if world.is_main and world.device.type == "cuda":
        console.note(reason)
    return make_loader(
        split,
        augment=plan.augment,
        batch_size=plan.batch_size,
        seed=plan.seed,
        sampler="balanced" if plan.balance == "sampler" else "uniform",
        views=views,
        **_common(split, plan, options, world, device),
    )


def evaluation_loader(
    dataset: Dataset, name: str, plan: Plan, options: TrainConfig, world: parallel.World
) -> Loader:
    """Return a loader of a split to be evaluated: each image once."""
    split = dataset.splits[name]
    device, _ = on_device(split, plan, options, world, None)
    batch = max(2 * plan.batch_size, world.size)
    return make_loader(
        split, batch_size=batch, training=False, **_common(split, plan, options, world, device)
    )


def _common(
    split: Split, plan: Plan, options: TrainConfig, world: parallel.World, device: bool
) -> dict[str, Any]:
    return {
        "preprocessing": plan.preprocessing,
        "rank": world.rank,
        "world_size": world.size,
        "device": world.device,
        "mask_step": plan.architecture.step,
        "workers": reading_workers(split, options),
        "pixels": "device" if device else "host",
    }


def on_device(
    split: Split, plan: Plan, options: TrainConfig, world: parallel.World, augment: Augment | None
) -> tuple[bool, str]:
    """Tell whether a split's pixels are kept on the device, and why."""
    if options.pixels != "auto":
        return options.pixels == "device", f"pixels on the {options.pixels}, as asked"
    if world.device.type != "cuda":
        return False, f"pixels stay on the host, which computes on its {world.device.type}"
    free, _ = torch.cuda.mem_get_info(world.device)
    return fits(split, plan.preprocessing, free, augment=augment)


def validation_split(dataset: Dataset) -> str | None:
    """Return the split that a run is evaluated on along the way."""
    return next((name for name in ("val", "test") if name in dataset.splits), None)


def reading_workers(split: Split, options: TrainConfig) -> int:
    """Return how many processes read images: arrays in memory need none."""
    if options.workers is not None:
        return options.workers
    return 0 if isinstance(split.images, ArrayImages) else min(8, cores())
