"""What an exported file computes, and what it says about itself."""

from copy import deepcopy
from dataclasses import asdict
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from vitreous.config import Preprocessing
from vitreous.data.augment import EvaluationTransform
from vitreous.models.architecture import to_dict
from vitreous.models.weights import Model
from vitreous.version import __version__

Precision = Literal["fp32", "fp16", "int8"]


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

    def read(self, picture: Any) -> Tensor:
        """Decode and preprocess one picture."""
        ...

    def probabilities(self, images: Tensor) -> Tensor:
        """Return class probabilities."""
        ...


class Graph(nn.Module):
    """From images to logits and calibrated probabilities, in single precision at both ends."""

    mean: Tensor  # (C, 1, 1)
    std: Tensor

    def __init__(
        self, model: Model, temperature: float, several: bool, pixels: Preprocessing | None, half: bool
    ) -> None:
        super().__init__()
        self.model, self.temperature, self.several, self.half_precision = model, temperature, several, half
        self.pixels = pixels is not None
        if pixels is not None:
            self.register_buffer("mean", torch.tensor(pixels.mean)[:, None, None], persistent=False)
            self.register_buffer("std", torch.tensor(pixels.std)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if self.pixels:  # (B, H, W, C) uint8 → (B, C, H, W)
            images = (images.permute(0, 3, 1, 2).float() / 255.0 - self.mean) / self.std
        logits = self.model(images.half() if self.half_precision else images).float()
        scaled = logits / self.temperature
        return logits, scaled.sigmoid() if self.several else scaled.softmax(-1)


def graph(source: Source, *, pixels: bool, half: bool) -> tuple[Graph, Tensor]:
    """Return what to export, with example images."""
    settings = source.preprocess.preprocessing
    model = deepcopy(source.model).cpu().eval()
    module = Graph(
        model.half() if half else model,
        source.temperature,
        source.multilabel,
        settings if pixels else None,
        half,
    )
    height, width = settings.image_size
    if pixels:
        return module.eval(), torch.zeros(2, height, width, settings.channels, dtype=torch.uint8)
    return module.eval(), torch.zeros(2, settings.channels, height, width)


def describe(source: Source, *, pixels: bool, precision: Precision) -> dict[str, Any]:
    """Return what the file tells its users: enough to go from an image file to a label without us."""
    settings = source.preprocess.preprocessing
    kind = "uint8 pixels (B, H, W, C)" if pixels else "float32 images (B, C, H, W), normalised"
    return {
        "vitreous": __version__,
        "labels": source.labels,
        "preprocessing": asdict(settings),
        "patch": list(source.preprocess.patch_size),
        "input": {"name": "pixels" if pixels else "images", "kind": kind},
        "temperature": source.temperature,
        "abstain": source.abstain,
        **({"thresholds": source.thresholds} if source.multilabel else {}),
        "precision": precision,
        "architecture": to_dict(source.model.config),
    }
