"""What feeds a run: pixels kept on the device where they fit, else read and varied by the host."""

import torch

from vitreous import parallel
from vitreous.config import Augment, TrainConfig
from vitreous.data import Dataset, Loader, Split
from vitreous.data.device import DeviceLoader
from vitreous.data.device_store import fits
from vitreous.data.split import ArrayImages
from vitreous.training.plan import Plan
from vitreous.training.setup import cores


def training_loader(
    dataset: Dataset, plan: Plan, options: TrainConfig, world: parallel.World, *, views: int = 1
) -> Loader:
    """Return the loader of training images."""
    split = dataset.splits["train"]
    settings = {"augment": plan.augment, "batch_size": plan.batch_size, "seed": plan.seed}
    settings["sampler"] = "balanced" if plan.balance == "sampler" else "uniform"
    return _loader(split, plan, options, world, plan.augment, settings)


def evaluation_loader(
    dataset: Dataset, name: str, plan: Plan, options: TrainConfig, world: parallel.World
) -> Loader:
    """Return a loader of a split to be evaluated: each image once."""
    settings = {"batch_size": max(2 * plan.batch_size, world.size), "training": False}
    return _loader(dataset.splits[name], plan, options, world, None, settings)


def _loader(split, plan, options, world, augment, settings):
    common = {
        "preprocessing": plan.preprocessing,
        "rank": world.rank,
        "world_size": world.size,
        "device": world.device,
        "patch_size": plan.architecture.step,
        **settings,
    }
    if on_device(split, plan, options, world, augment)[0]:
        return DeviceLoader(split, **common)
    return Loader(split, workers=reading_workers(split, options), **common)


def on_device(
    split: Split, plan: Plan, options: TrainConfig, world: parallel.World, augment: Augment | None
) -> tuple[bool, str]:
    """Tell whether a split's pixels are kept on the device, and why."""
    if options.pixels != "auto":
        return options.pixels == "device", "as asked"
    if world.device.type != "cuda":
        return False, f"pixels stay on the host, which computes on its {world.device.type}"
    free, _ = torch.cuda.mem_get_info(world.device)
    return fits(split, plan.preprocessing, free, augment=augment)


def validation_split(dataset: Dataset) -> str | None:
    """Return the split that a run is judged by on its way."""
    return next((name for name in ("val", "test") if name in dataset.splits), None)


def reading_workers(split: Split, options: TrainConfig) -> int:
    """Return how many processes read images: arrays in memory need none."""
    if options.workers is not None:
        return options.workers
    return 0 if isinstance(split.images, ArrayImages) else min(8, cores())
