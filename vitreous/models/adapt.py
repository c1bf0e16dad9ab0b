"""Fitting a trained model to another task: another head, other channels, another size; says what changed."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.config import Preprocessing
from vitreous.errors import ModelError
from vitreous.models.architecture import ViTConfig
from vitreous.models.resnet import Head, ResNet, StdConv2d, Stem, Trunk
from vitreous.models.vit import VisionTransformer
from vitreous.models.weights import Model

Size = int | tuple[int, int]


@torch.no_grad()
def set_classes(
    model: Model, num_classes: int, old: list[str] | None = None, new: list[str] | None = None
) -> list[str]:
    """Give the model a fresh head of zeros (section 3.2); rows of classes that both name are kept."""
    known = {name: row for row, name in enumerate(old or [])}
    kept = [(row, known[name]) for row, name in enumerate(new or []) if name in known]
    before = model.config.num_classes
    _configure(model, num_classes=num_classes)
    owner = model.head if isinstance(model, ResNet) else model
    for name in ("fc",) if isinstance(model, ResNet) else ("head", "head_dist"):
        if not hasattr(owner, name):
            continue
        trained, fresh = getattr(owner, name), _zeros(model)
        if before and num_classes:
            for row, source in kept:
                fresh.weight[row], fresh.bias[row] = trained.weight[source], trained.bias[source]
        setattr(owner, name, fresh)
    rows = f", {len(kept)} rows kept by name" if kept else ""
    return [f"head: {before} → {num_classes} classes, fresh zeros{rows}"]


@torch.no_grad()
def set_channels(model: Model, channels: int) -> list[str]:
    """Take images of another number of channels.

    To one: the filters are summed over the old channels, so that a gray image gives what its copy in every
    channel gave. To more: the old filters are repeated in turn and scaled by old / new, as timm does.
    """
    first = _first_convolution(model)
    before = first.in_channels
    if before == channels:
        return []
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
    if patch_size is not None:
        if not isinstance(model, VisionTransformer):
            raise ModelError("a ResNet has no patches: leave out patch_size")
        model.set_patch_size(patch_size, image_size)
    elif image_size is not None:
        model.set_image_size(image_size)
    after, said = model.config, []
    if isinstance(before, ViTConfig) and isinstance(after, ViTConfig) and patch_size is not None:
        said.append(f"patch size: {_by(before.patch_size)} → {_by(after.patch_size)}, filters resized")
    if image_size is not None:
        vit = isinstance(after, ViTConfig)
        how = f", {after.positions} positions resampled to {_by(after.grid)} patches" if vit else ""
        said.append(f"image size: {_by(before.image_size)} → {_by(after.image_size)}{how}")
    return said


def refit(preprocessing: Preprocessing, image_size: tuple[int, int], channels: int) -> Preprocessing:
    """Return the preprocessing for another image size (the same share is cropped) or number of channels.

    Images that were taken as they are can't be any more: they are scaled to cover the new size.
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


def _configure(model: Any, **changes: int) -> None:
    model.config = replace(model.config, **changes)


def _first_convolution(model: Model) -> nn.Conv2d | nn.Conv3d:
    if isinstance(model, VisionTransformer):
        backbone = model.patch_embed.backbone
        if backbone is None:
            return model.patch_embed.proj
    else:
        backbone = model
    stem = backbone.stem if isinstance(backbone, Trunk) else backbone
    assert isinstance(stem, Stem) and isinstance(stem.conv, StdConv2d)
    return stem.conv


def _zeros(model: Model) -> Any:
    like = next(model.parameters())
    if isinstance(model, ResNet):
        layer = Head(model.config).fc
    elif model.config.num_classes:
        layer = nn.Linear(model.config.feature_width, model.config.num_classes)
    else:
        layer = nn.Identity()
    if layer is not None:
        layer.to(device=like.device, dtype=like.dtype)
        for parameter in layer.parameters():
            parameter.zero_()
    return layer


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
