"""What people can set, as frozen dataclasses; a field's docstring is its `--help`. No torch, no work done."""

from dataclasses import dataclass
from typing import Literal

Resize = Literal["cover", "exact", "pad", "none"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Optimizer = Literal["adamw", "adam", "sgd", "muon"]
Schedule = Literal["cosine", "linear", "rsqrt", "constant"]
Precision = Literal["auto", "bf16", "float32"]
Compile = Literal["none", "blocks", "whole"]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """From a decoded image to the model's input; sealed into the checkpoint, and read from there alone."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width that the model sees."""
    resize: Resize = "cover"
    """cover: keep the aspect, scale until `resize_size` is covered, then crop the centre; exact: stretch to
    `resize_size`, then crop; pad: keep the aspect, fit inside `image_size`, pad the rest; none: as it is."""
    resize_size: tuple[int, int] | None = None
    """Size before the crop; None: the image size (nothing is cropped of a square image)."""
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Subtracted from each channel, of pixels scaled to [0, 1]; as many entries as channels."""
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Each channel is divided by it."""

    @property
    def channels(self) -> int:
        """1: images are read as gray; 3: as RGB; more: arrays."""
        return len(self.mean)
