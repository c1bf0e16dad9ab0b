"""Fitting a trained model to another task: another head, channels or size; each returns what it changed."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.config import Preprocessing
from vitreous.errors import ModelError
from vitreous.models.fields import pair
from vitreous.models.protocol import Size
from vitreous.models.weights import Model


@torch.no_grad()
def set_classes(
    model: Model, num_classes: int, old: list[str] | None = None, new: list[str] | None = None
) -> list[str]:
    """Give the model a fresh head of zeros (section 3.2); rows of classes in `old` and `new` are kept."""
    known = {name: row for row, name in enumerate(old or [])}
    kept = [(row, known[name]) for row, name in enumerate(new or []) if name in known]
    before, paths = model.config.num_classes, model.config.classifiers
    trained: list[Any] = [_layer(model, path) for path in paths]
    model.reset_classifier(num_classes)
    for path, old_layer in zip(paths, trained, strict=True):
        fresh = _layer(model, path)
        for row, source in kept if before and num_classes else []:
            fresh.weight[row], fresh.bias[row] = old_layer.weight[source], old_layer.bias[source]
    rows = f", {len(kept)} rows kept by name" if kept else ""
    return [f"head: {before} → {num_classes} classes, fresh zeros{rows}"]


@torch.no_grad()
def set_channels(model: Model, channels: int) -> list[str]:
    """Take images of another number of channels.

    To one: the filters are summed over the old channels, so that a gray image gives what its copy in every
    channel gave. To more: the old filters are repeated in turn and scaled by old / new, as timm does.
    """
    first = model.get_submodule(model.config.first_convolution)
    assert isinstance(first, nn.Conv2d | nn.Conv3d)
    before = first.in_channels
    if before == channels:
        return []
    if channels < 1:
        raise ModelError(f"in_channels {channels} is too small: give a whole number of at least 1")
    first.weight = nn.Parameter(adapt_channels(first.weight, channels))
    first.in_channels = channels
    _configure(model, in_channels=channels)
    how = "summed" if channels == 1 else "repeated and scaled"
    return [f"input channels: {before} → {channels}, filters {how}"]


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """Return filters (D, C, ...) for another number of channels, from trained ones."""
    before = weight.shape[1]
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    return weight[:, torch.arange(channels) % before] * (before / channels)


def set_sizes(model: Model, image_size: Size | None, patch_size: Size | None) -> list[str]:
    """Take images or patches of another size; positions are resampled in 2D, filters by pseudo-inverse."""
    before = model.config
    image_size = _unless(before.image_size, image_size, "image_size")
    if before.kind == "vit":
        patch_size = _unless(before.patch_size, patch_size, "patch_size")
    if patch_size is not None:
        model.set_patch_size(patch_size, image_size)
    elif image_size is not None:
        model.set_image_size(image_size)
    after, changes = model.config, []
    if patch_size is not None:
        changes.append(f"patch size: {_by(before.step)} → {_by(after.step)}, filters resized")
    if image_size is not None:
        how = (
            f", {after.positions} positions resampled to {_by(after.grid)} patches"
            if after.kind == "vit"
            else ""
        )
        changes.append(f"image size: {_by(before.image_size)} → {_by(after.image_size)}{how}")
    return changes


def refit(preprocessing: Preprocessing, image_size: tuple[int, int], channels: int) -> Preprocessing:
    """Return the preprocessing for another image size (the same share is cropped) or number of channels.

    Images that were taken as they are (`none`) can't be at a new size: they are scaled to cover it.
    """
    old, resize = preprocessing.image_size, preprocessing.resize_size
    if resize is not None and image_size != old:
        resize = (round(resize[0] * image_size[0] / old[0]), round(resize[1] * image_size[1] / old[1]))
    mean, std = preprocessing.mean, preprocessing.std
    if channels != len(mean):
        if channels == 1:
            mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
        else:
            mean, std = (tuple(values[i % len(values)] for i in range(channels)) for values in (mean, std))
    rule = "cover" if preprocessing.resize == "none" and image_size != old else preprocessing.resize
    return replace(preprocessing, image_size=image_size, resize=rule, resize_size=resize, mean=mean, std=std)


def _layer(model: Model, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(model.get_submodule(owner), name)


def _configure(model: Any, **changes: int) -> None:
    model.config = replace(model.config, **changes)


def _unless(own: tuple[int, int], size: Size | None, name: str) -> Size | None:
    """Return a size that was asked for, or None where the model has it already."""
    return None if size is None or pair(size, name) == own else size


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
