"""What feeds a run: pixels that stay on the device where they fit, else files that the host reads and that
host or device decodes, whichever is faster."""

import time
from typing import Any, Literal

import torch

from vitreous import console, parallel
from vitreous.config import Augment, TrainConfig
from vitreous.data import Dataset, Loader, SmallViews, Split, make_loader
from vitreous.data.device_store import fits
from vitreous.data.images import ArrayImages
from vitreous.data.loader import why_not_decoded
from vitreous.errors import OptionError
from vitreous.evals.outputs import FEW
from vitreous.training.plan import Plan
from vitreous.training.setup import cores

Where = Literal["host", "decode", "device"]
SAMPLE = 128
"""Images that decoding is timed on."""


def training_loader(
    dataset: Dataset,
    plan: Plan,
    options: TrainConfig,
    world: parallel.World,
    pixels: Where,
    *,
    views: int = 1,
    small: SmallViews | None = None,
) -> Loader:
    """Return the loader of training images, each in `views` views, and in `small` ones where given."""
    split = dataset.splits["train"]
    return make_loader(
        split,
        augment=plan.augment,
        batch_size=plan.batch_size,
        seed=plan.seed,
        sampler="balanced" if plan.balance == "sampler" else "uniform",
        views=views,
        small=small,
        **_common(split, plan, options, world, pixels),
    )


def where_to_train(
    split: Split,
    plan: Plan,
    options: TrainConfig,
    world: parallel.World,
    *,
    small: SmallViews | None = None,
    before: Where | None = None,
) -> Where:
    """Return where the training images are kept, decoded and varied, the same for all ranks, and say why.

    `before`: where they were when the run started. Host and device differ by a grey level here and there, so
    a run that goes on stays where it was if it can.
    """
    hindrance = why_not_decoded(split, plan.preprocessing, plan.augment, small)
    if options.pixels == "decode" and hindrance:
        raise OptionError(f"--pixels decode has no effect here: {hindrance}: leave it out")
    chosen: tuple[Where, str] = ("host", "")
    if world.is_main:
        chosen = where(split, plan, options, world, plan.augment, small=small, before=before)
    pixels, reason = parallel.broadcast(chosen, world)  # timings would differ
    if world.is_main and world.device.type == "cuda":
        console.note(reason)
    return pixels


def evaluation_loader(split: Split, plan: Plan, options: TrainConfig, world: parallel.World) -> Loader:
    """Return a loader of a split to be evaluated: each image once."""
    pixels, _ = where(split, plan, options, world, None)
    batch = max(2 * plan.batch_size, world.size)
    settings = _common(split, plan, options, world, pixels)
    if options.workers is None and world.device.type == "cpu" and len(split) <= FEW:
        settings["workers"] = 0  # processes would take longer to start than they save
    return make_loader(split, batch_size=batch, training=False, **settings)


def _common(
    split: Split, plan: Plan, options: TrainConfig, world: parallel.World, pixels: Where
) -> dict[str, Any]:
    return {
        "preprocessing": plan.preprocessing,
        "rank": world.rank,
        "world_size": world.size,
        "device": world.device,
        "mask_step": plan.architecture.step,
        "workers": reading_workers(split, options),
        "pixels": pixels,
    }


def where(
    split: Split,
    plan: Plan,
    options: TrainConfig,
    world: parallel.World,
    augment: Augment | None,
    *,
    small: SmallViews | None = None,
    before: Where | None = None,
) -> tuple[Where, str]:
    """Return where a split's pixels are kept, decoded and varied, and why.

    `augment`: how training varies them; None: evaluation. `before`: where they were until now.
    """
    if options.pixels != "auto":
        return options.pixels, f"pixels: {options.pixels}, as asked"
    if world.device.type != "cuda":
        return "host", f"pixels stay on the host, which computes on its {world.device.type}"
    free, _ = torch.cuda.mem_get_info(world.device)
    fitting, reason = fits(split, plan.preprocessing, free, augment=augment)
    decodes = not why_not_decoded(split, plan.preprocessing, augment, small)
    possible: dict[Where, bool] = {"device": fitting, "decode": decodes, "host": True}
    if before is not None and possible[before]:
        return before, f"pixels: {before}, as when the run started"
    if fitting:
        return "device", reason
    if not decodes:
        return "host", reason
    rates = decoding_rates(split, plan, world, max(1, reading_workers(split, options)))
    both = f"about {rates['decode']:,.0f} images/s there, {rates['host']:,.0f} by the host's workers"
    if rates["decode"] > rates["host"]:
        return "decode", f"{reason}; JPEGs are decoded on the device: {both}"
    return "host", f"{reason}; the device would not decode faster: {both}"


def decoding_rates(split: Split, plan: Plan, world: parallel.World, workers: int) -> dict[Where, float]:
    """Time a sample of training images, cropped by the host and on the device; return images per second.

    Both are timed in this process. N workers are taken to be N times as fast at the host's work, which
    overrates them."""
    few = split.select(split.sample(SAMPLE))
    rates: dict[Where, float] = {}
    modes: tuple[Where, ...] = ("host", "decode")
    for pixels in modes:
        alone = parallel.World(device=world.device)
        settings = _common(few, plan, TrainConfig(workers=0), alone, pixels)
        loader = make_loader(few, augment=plan.augment, batch_size=len(few), cache=None, **settings)
        for epoch in range(2):  # the first warms up
            started = time.monotonic()
            list(loader.epoch(epoch))
            if world.device.type == "cuda":
                torch.cuda.synchronize(world.device)
            rates[pixels] = len(few) / (time.monotonic() - started)
    return {"host": rates["host"] * workers, "decode": rates["decode"]}


def validation_split(dataset: Dataset) -> str | None:
    """Return the split that a run is evaluated on along the way: never `test`, which would then choose."""
    return "val" if "val" in dataset.splits else None


def reading_workers(split: Split, options: TrainConfig) -> int:
    """Return how many processes read images: arrays in memory need none."""
    if options.workers is not None:
        return options.workers
    return 0 if isinstance(split.images, ArrayImages) else min(16, cores())
