"""What people can set, as frozen dataclasses; a field's docstring is its `--help`. No torch, no work done."""

from dataclasses import dataclass
from typing import Literal

Resize = Literal["cover", "exact", "pad", "none"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Optimizer = Literal["adamw", "adam", "sgd", "muon"]
Schedule = Literal["cosine", "linear", "rsqrt", "constant"]
Precision = Literal["auto", "bf16", "float32"]
Compile = Literal["none", "blocks", "whole"]
Loss = Literal["softmax", "sigmoid"]


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


@dataclass(frozen=True, kw_only=True)
class Augment:
    """How training images are varied. Every draw is a function of (seed, epoch, image), never of a state."""

    crop_scale: tuple[float, float] | None = (0.08, 1.0)
    """Inception crop: the part of the image's area that is kept; None: the evaluation transform, no crop."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Inception crop: width over height of the part that is kept."""
    flip: float = 0.5
    """Probability of a mirrored image."""
    randaugment: tuple[int, int] = (0, 0)
    """RandAugment(n, m): n operations an image, at magnitude m of torchvision's 0 to 30. n = 0: none."""
    three_augment: bool = False
    """DeiT III's 3-Augment: one of gray, solarize and blur for each image."""
    color_jitter: float = 0.0
    """Brightness, contrast and saturation are each scaled by a factor from 1 - x to 1 + x."""
    erase: float = 0.0
    """Probability that a random rectangle is replaced with noise (random erasing)."""
    mixup: float = 0.0
    """Mixup: the Beta distribution's alpha; 0: none."""
    cutmix: float = 0.0
    """CutMix: the Beta distribution's alpha; 0: none. With Mixup too, each image takes one of them, half and
    half."""
    mix_probability: float = 1.0
    """Probability that an image is mixed at all, where Mixup or CutMix is on."""
    repeats: int = 1
    """Repeated augmentation: so many differently varied copies of an image in the same global batch."""
