"""Which model suits the data, the hardware and the time, where the user named none. No torch."""

from typing import Any

from vitreous.config import Initialization, TrainConfig
from vitreous.errors import OptionError
from vitreous.models import architecture, zoo
from vitreous.models.architecture import Architecture, ViTConfig
from vitreous.training.chosen import RATES
from vitreous.training.facts import Chooser, Facts, by_heart, is_short, seen_often
from vitreous.training.plan import Task

MIMETIC_PATCHES = 16
"""Fewest patches of a ViT that starts with mimetic attention: on a smaller grid all is near."""
MOST_PIXELS = {"cuda": 224, "mps": 128, "cpu": 64}
"""Side of the largest image that a model made here sees, unless larger patches were asked for."""


def choose_model(
    options: TrainConfig, facts: Facts, budget: float | None, pick: Chooser, task: Task
) -> Architecture:
    """Return the model that was named, that of the recipe, or one that fits."""
    changes: dict[str, Any] = {"num_classes": facts.classes, "in_channels": facts.channels}
    changes |= {**task.asked, **task.shape}
    if options.image_size is not None:
        changes["image_size"] = architecture.pair(options.image_size, "image size")
    if options.patch_size is not None:
        changes["patch_size"] = architecture.pair(options.patch_size, "patch size")
    changes |= {name: value for name in RATES if (value := getattr(options, name)) is not None}
    if options.model is not None:
        refuse_rates(options, zoo.get_config(options.model))
        return zoo.get_config(options.model, **changes)
    if pick.recipe.architecture is not None:
        refuse_rates(options, pick.recipe.architecture)
        pick.reasons["model"] = f"recipe {pick.recipe.source}"
        return architecture.override(pick.recipe.architecture, changes)
    if "patch_size" not in changes:
        changes["patch_size"] = _patch_size(changes.get("image_size"), facts, pick)
    if "image_size" not in changes:
        changes["image_size"] = _image_size(facts, changes["patch_size"], pick)
        if options.patch_size is None and seen_often(facts, options) and not is_short(budget):
            changes["image_size"] = _enlarged(changes["image_size"], changes["patch_size"], pick)
    width, depth, heads = _size(facts, budget)
    often = by_heart(changes.get("width", width), options, facts, task)
    if "drop_path" not in changes and often:
        changes["drop_path"] = pick("drop_path", None, 0.2, "a wide model that sees its images often")
    if "patch_drop" not in changes and often and options.fit != "pad":
        reason = "twice the images in the same time, and harder to learn by heart"
        changes["patch_drop"] = pick("patch_drop", None, 0.5, reason)
    shape = {"width": width, "depth": depth, "heads": heads, "mlp_width": 4 * width}
    pick("model", None, None, f"{facts.images:,} images on a {facts.device}: {depth} layers of width {width}")
    return ViTConfig(**{**shape, "pooling": "gap", "class_token": False, **changes})


def refuse_rates(options: TrainConfig, model: Architecture) -> None:
    """Refuse the rates of a ViT for any other model."""
    for name in RATES:
        if model.kind != "vit" and getattr(options, name) is not None:
            raise OptionError(
                f"--{name.replace('_', '-')} is for ViTs, which this model is not: leave it out"
            )


def _patch_size(size: tuple[int, int] | None, facts: Facts, pick: Chooser) -> tuple[int, int]:
    """Aim at some 50 to 200 patches: fewer see too little, more cost too much."""
    side = min(size) if size else min(*facts.size, MOST_PIXELS[facts.device])
    size = size or facts.size
    patch = 1 if side < 8 else 2 if side < 24 else 4 if side < 48 else 8 if side < 96 else 16
    return pick("patch_size", None, (patch, patch), f"images of {size[0]}x{size[1]}")


def _image_size(facts: Facts, patch: tuple[int, int], pick: Chooser) -> tuple[int, int]:
    height, width = facts.size
    most = min(224, max(MOST_PIXELS[facts.device], 8 * min(patch)))
    if min(height, width) <= most:
        fitted = (max(1, round(height / patch[0])) * patch[0], max(1, round(width / patch[1])) * patch[1])
        if max(fitted) <= 1.5 * min(fitted):
            return pick("image_size", None, fitted, f"the images' own size, {height}x{width}")
    side = min(most, min(height, width))
    fitted = (max(1, side // patch[0]) * patch[0], max(1, side // patch[1]) * patch[1])
    return pick("image_size", None, fitted, f"images of {height}x{width} on a {facts.device}")


def _enlarged(size: tuple[int, int], patch: tuple[int, int], pick: Chooser) -> tuple[int, int]:
    """Return half as much again in each direction where that makes some 150 patches of some 65."""
    rows, columns = size[0] // patch[0], size[1] // patch[1]
    if rows * columns >= 100:
        return size
    more = (rows + rows // 2, columns + columns // 2)
    reason = f"{more[0] * more[1]} patches instead of {rows * columns}, which pay off from four minutes on"
    return pick("image_size", None, (more[0] * patch[0], more[1] * patch[1]), reason)


def _size(facts: Facts, budget: float | None) -> tuple[int, int, int]:
    """Return width, depth and heads."""
    if facts.device == "cpu":
        return (64, 4, 4) if facts.images < 20_000 else (96, 6, 4)
    if is_short(budget):
        return 192, 7, 3
    if facts.images < 20_000:
        return 192, 9, 3
    return (384, 9, 6) if facts.images < 200_000 else (384, 12, 6)


def initialization(options: TrainConfig, model: Architecture, trained: bool, pick: Chooser) -> Initialization:
    """Return how the model starts; refuse a start that it can't have."""
    if trained:
        if options.initialization is not None:
            raise OptionError(
                f"--initialization {options.initialization} is for training from scratch: "
                "this model starts from trained weights"
            )
        return "paper"
    if model.kind != "vit":
        if options.initialization not in (None, "paper"):
            raise OptionError(
                f"--initialization {options.initialization} is for ViTs, and this model is none: leave it out"
            )
        return "paper"
    plain = model.stem is None and model.frames is None and model.positions in ("learned", "sincos2d")
    if not plain or model.patches < MIMETIC_PATCHES:
        reason = f"{model.patches} patches: too few to tell near from far" if plain else "not a plain ViT"
        return pick("initialization", options.initialization, "paper", reason)
    return pick("initialization", options.initialization, "mimetic", "attention starts local, as it ends")
