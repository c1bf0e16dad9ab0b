"""What an exported file computes, and what it records about itself.

Where pictures are padded to the model's size, the file has a second input, `size`: the height and width of
each picture within its canvas, from which it works out the patches that are padding.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from vitreous.data.augment import EvaluationTransform
from vitreous.models.architecture import to_dict
from vitreous.models.weights import Model
from vitreous.version import __version__

Precision = Literal["fp32", "fp16", "bf16", "int8"]


class Source(Protocol):
    """What an export needs of a classifier."""

    model: Model
    preprocess: EvaluationTransform
    labels: list[str]

    @property
    def temperature(self) -> float:
        """What logits are divided by before the softmax."""
        ...

    @property
    def abstain(self) -> float:
        """The probability below which no label is given."""
        ...

    @property
    def multilabel(self) -> bool:
        """Whether an image may have several labels."""
        ...

    @property
    def thresholds(self) -> list[float]:
        """The probability from which each of several labels is given."""
        ...

    def prepare(self, picture: Any) -> Any:
        """Decode one picture and fit it to the model's size."""
        ...

    def collate(self, pictures: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
        """Return prepared pictures as images and a mask of what is padding."""
        ...

    def probabilities(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return calibrated probabilities."""
        ...


class Inputs(NamedTuple):
    """What an exported file takes, by the names of its inputs."""

    images: Any
    """uint8 pixels (B, H, W, C), or float32 images (B, C, H, W)."""
    size: Any | None
    """int64 (B, 2): height and width of each picture within its canvas; None where nothing is padded."""

    def given(self) -> tuple[Any, ...]:
        """Return the inputs that the file has."""
        return (self.images,) if self.size is None else (self.images, self.size)


class Graph(nn.Module):
    """From images to logits and calibrated probabilities, in single precision at both ends."""

    mean: Tensor  # (C, 1, 1)
    std: Tensor

    def __init__(self, source: Source, model: Model, *, pixels: bool, half: bool) -> None:
        super().__init__()
        settings, config = source.preprocess.preprocessing, model.config
        self.model, self.temperature, self.several = model, source.temperature, source.multilabel
        self.pixels, self.half_precision = pixels, half
        self.grid, self.step = config.grid, config.step
        if pixels:
            self.register_buffer("mean", torch.tensor(settings.mean)[:, None, None], persistent=False)
            self.register_buffer("std", torch.tensor(settings.std)[:, None, None], persistent=False)

    def forward(self, images: Tensor, size: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if self.pixels:  # (B, H, W, C) uint8 → (B, C, H, W)
            images = (images.permute(0, 3, 1, 2).float() / 255.0 - self.mean) / self.std
        mask = None if size is None else self.mask(size)
        logits = self.model(images.half() if self.half_precision else images, mask).float()
        scaled = logits / self.temperature
        return logits, scaled.sigmoid() if self.several else scaled.softmax(-1)

    def mask(self, size: Tensor) -> Tensor:
        """Return which patches (B, N) hold some of a picture of this height and width."""
        rows = torch.arange(self.grid[0]) * self.step[0] < size[:, :1]  # (B, h)
        columns = torch.arange(self.grid[1]) * self.step[1] < size[:, 1:]  # (B, w)
        return (rows[:, :, None] & columns[:, None, :]).flatten(1)


def graph(source: Source, *, pixels: bool, half: bool) -> tuple[Graph, Inputs]:
    """Return what to export, with example inputs."""
    settings = source.preprocess.preprocessing
    model = deepcopy(source.model).cpu().eval()
    module = Graph(source, model.half() if half else model, pixels=pixels, half=half)
    height, width = settings.image_size
    if pixels:
        images = torch.zeros(2, height, width, settings.channels, dtype=torch.uint8)
    else:
        images = torch.zeros(2, settings.channels, height, width)
    size = torch.tensor([[height, width], [1, 1]]) if settings.resize == "pad" else None
    return module.eval(), Inputs(images, size)


def describe(source: Source, *, pixels: bool, precision: Precision) -> dict[str, Any]:
    """Return what the file tells its users: enough to go from an image file to a label without us."""
    settings = source.preprocess.preprocessing
    kind = "uint8 pixels (B, H, W, C)" if pixels else "float32 images (B, C, H, W), normalised"
    size = "int64 (B, 2): height and width of each picture within its canvas, whose rest is padding"
    return {
        "vitreous": __version__,
        "labels": source.labels,
        "preprocessing": asdict(settings),
        "patch": list(source.preprocess.patch_size),
        "input": {"name": "pixels" if pixels else "images", "kind": kind},
        **({"size_input": {"name": "size", "kind": size}} if settings.resize == "pad" else {}),
        "temperature": source.temperature,
        "abstain": source.abstain,
        **({"thresholds": source.thresholds} if source.multilabel else {}),
        "precision": precision,
        "architecture": to_dict(source.model.config),
    }
