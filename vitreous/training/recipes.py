"""Recipes: values for a plan where the user gave none, from a table or from an earlier run. No torch.

A recipe is how a run was made: `--recipe runs/flowers` takes everything from that run's plan that no other
option overrides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from vitreous import checkpoint
from vitreous.config import Augment, FinetuneConfig, Resize
from vitreous.errors import OptionError, nearest
from vitreous.models import architecture
from vitreous.models.architecture import Architecture
from vitreous.training import tuning
from vitreous.training.folder import read_config
from vitreous.training.plan import NAMES, tuples

FEW = 20_000
VIEWS = 200_000
"""Images that fine-tuning sees in all, repeats counted, if nobody says how long it should be."""

TABLE: dict[str, dict[str, Any]] = {
    # Section B.1.1 and table 4 of the paper; the learning rate is the middle of its range.
    "paper": {
        "batch_size": 512,
        "optimizer": "sgd",
        "schedule": "cosine",
        "weight_decay": 0.0,
        "clip": 1.0,
        "layer_decay": 1.0,
        "lr": 0.01,
        "ema": 0.0,
    },
    # BEiT's and DeiT III's way to fine-tune: layers near the image move less.
    "modern": {
        "optimizer": "adamw",
        "schedule": "cosine",
        "weight_decay": 0.05,
        "clip": 1.0,
        "layer_decay": 0.75,
    },
}
SHORT = 240.0
"""Seconds below which a GPU is better off with a small model on small images."""
RATES = {"full": 1e-3, "last": 1e-3, "lora": 2e-3, "head": 6e-3}
"""Learning rates of the modern recipe at batch 256: a fresh head, or factors from zero, move fast."""


@dataclass(frozen=True)
class Recipe:
    """Values by the plan's names, and where they come from."""

    source: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    architecture: Architecture | None = None
    resize: Resize | None = None
    """How its images were fitted to the model's size."""
    reason: str = ""
    """Why it was taken, if nobody named it."""


def read(source: str) -> Recipe:
    """Return the recipe of a run folder, or of a sealed file."""
    path = Path(source)
    if not path.exists():
        raise OptionError(
            f"no recipe {source!r}: give a run folder or a sealed file; finetune also knows "
            f"{', '.join(TABLE)}, auto and none{nearest(source, TABLE)}"
        )
    if (path / "config.json").is_file():
        plan = read_config(path)["plan"]
        shape = architecture.from_dict(plan["architecture"])
        resize = plan["preprocessing"]["resize"]
    elif path.is_file() and checkpoint.is_sealed(path):
        weights = checkpoint.read(path)
        plan, shape = weights.about.get("recipe") or {}, weights.config
        resize = weights.preprocessing.resize if weights.preprocessing else None
    else:
        raise OptionError(
            f"{source} holds no recipe: give a run folder, or a sealed file that was trained here"
        )
    values = {name: value for name, value in plan.items() if name in NAMES and value is not None}
    values = {"initialization": "paper", "reconstruct": 0.0, **values}  # older runs had no other
    for name in ("architecture", "preprocessing", "reasons", "init", "tune", "fit_head"):
        values.pop(name, None)
    if isinstance(values.get("augment"), dict):
        values["augment"] = Augment(**tuples(values["augment"]))
    return Recipe(source, values, shape, resize)


def for_small_images(batch_size: int | None, seconds: float | None) -> Recipe:
    """Return the recipe for small images that a GPU sees hundreds of times: Muon, much augmentation."""
    short = seconds is not None and seconds < SHORT
    batch = batch_size or 1024
    values = {
        "batch_size": batch,
        "optimizer": "muon",
        "lr": 3e-3 * sqrt(batch / (1024 if short else 2048)),
        "weight_decay": 0.1,
        "warmup": 0.05,
        "ema": 0.998 if short else 0.999,
        "augment": "small",
    }
    return Recipe("for small images on a GPU", values)


def for_finetuning(options: FinetuneConfig, images: int, gpu: bool) -> Recipe:
    """Return the recipe that `--recipe` names, or that suits the number of images."""
    name, reason, tune = options.recipe or "auto", "", options.tune or "full"
    if name == "auto":
        name = "modern" if images < FEW or tune != "full" else "paper"
        reason = f"{images:,} images" if tune == "full" else f"only {tune} learns"
    if name == "none":
        return Recipe()
    if name not in TABLE:
        return read(name)
    values = dict(TABLE[name])
    kind, _ = tuning.parse(tune)
    if name == "modern":
        batch = options.batch_size or _batch_size(images, gpu)
        values |= {"batch_size": batch, "lr": RATES[kind] * sqrt(batch / 256)}
    if kind in ("head", "lora"):
        values |= {"weight_decay": 0.0, "layer_decay": 1.0}
    values["epochs"] = min(100, max(5, round(VIEWS / max(1, images))))
    return Recipe(name, values, reason=reason)


def _batch_size(images: int, gpu: bool) -> int:
    """Return 256 on a GPU, which smaller batches leave idle, and less where that makes few steps."""
    if gpu:
        return 256 if images >= 2_000 else 64
    return 64 if images < 10_000 else 128
