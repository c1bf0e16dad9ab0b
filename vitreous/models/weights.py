"""A model at rest: tensors under our names, with what is needed to use them. Knows no file or layout."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitreous.config import Preprocessing
from vitreous.errors import CheckpointError
from vitreous.models import cost, zoo
from vitreous.models.architecture import Architecture
from vitreous.models.resnet import ResNet
from vitreous.models.vit import VisionTransformer

Model = VisionTransformer | ResNet
MOST_TENSORS = 20_000
SLACK = 1 << 20
"""Parameters that a small file may lack without being refused here: a later error then names them."""


@dataclass(kw_only=True)
class Weights:
    """Tensors and architecture; where known, preprocessing, class names and how the model came to be."""

    config: Architecture
    tensors: dict[str, Tensor]
    preprocessing: Preprocessing | None = None
    labels: list[str] | None = None
    about: dict[str, Any] = field(default_factory=dict)
    """What else is recorded: recipe, results, data fingerprint, licence, calibration."""
    notes: list[str] = field(default_factory=list)
    """What was assumed or left out when these were read, for the user to see."""


def build(weights: Weights) -> Model:
    """Return the model with these tensors as its parameters: nothing is initialised first, nothing copied."""
    _check_extent(weights)
    with torch.device("meta"):
        model = zoo.build(weights.config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.tensors.items()}
    if expected != given:
        raise CheckpointError(difference(expected, given))
    for name, tensor in weights.tensors.items():
        if not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.is_meta:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"{name} can't be used: it is {kind}, {tensor.layout} on {tensor.device.type}, "
                "and weights are plain floating-point numbers"
            )
    model.load_state_dict(weights.tensors, strict=True, assign=True)
    model.build_codes()
    return model.eval()


def require_fit(config: Architecture, tensors: dict[str, Tensor]) -> None:
    """Refuse to write a model whose layers were changed by hand to what its configuration can't express."""
    with torch.device("meta"):
        expected = {name: tuple(value.shape) for name, value in zoo.build(config).state_dict().items()}
    given = {name: tuple(value.shape) for name, value in tensors.items()}
    if expected != given:
        raise CheckpointError(
            f"a model whose layers were changed can't be saved: {difference(expected, given)}; "
            "use model.reset_classifier(N) for another head, set_image_size for another size"
        )


def _check_extent(weights: Weights) -> None:
    """Refuse a model that is far larger than its tensors, before anything of its size is made."""
    config, tensors = weights.config, weights.tensors
    trunk = config if config.kind == "resnet" else config.stem
    layers = sum(trunk.layers if trunk else ()) + (config.depth if config.kind == "vit" else 0)
    if layers > len(tensors):
        raise CheckpointError(f"the weights don't fit the model: {len(tensors):,} tensors, {layers:,} layers")
    held, wanted = sum(tensor.numel() for tensor in tensors.values()), cost.parameters(config)
    if wanted > 2 * held + SLACK:
        raise CheckpointError(
            f"the weights don't fit the model: it has {wanted:,} parameters, the file {held:,} numbers"
        )


def difference(expected: dict[str, tuple[int, ...]], given: dict[str, tuple[int, ...]]) -> str:
    """Return in one line how two sets of tensors differ: missing, left over, of another shape."""
    parts = []
    if missing := sorted(expected.keys() - given.keys()):
        parts.append(f"missing {_some(missing)}")
    if surplus := sorted(given.keys() - expected.keys()):
        parts.append(f"left over {_some(surplus)}")
    if wrong := [name for name in sorted(expected.keys() & given.keys()) if expected[name] != given[name]]:
        shapes = [f"{name} {list(given[name])} (expected {list(expected[name])})" for name in wrong]
        parts.append(f"of another shape: {_some(shapes)}")
    return f"the weights don't fit the model: {'; '.join(parts)}"


def _some(names: list[str], most: int = 4) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
