"""What a model sees of an image: sizes and normalisation, and what training varies."""

from dataclasses import dataclass
from math import isfinite
from numbers import Real
from reprlib import repr as shown  # what a file says may be long
from typing import Any, TypeGuard, get_args

from vitreous.config.choices import Interpolation, Resize
from vitreous.errors import OptionError

MOST_SIDE, MOST_PIXELS = 1 << 14, 1 << 26
"""The longest side and the largest area that a model may see: more is refused before memory is taken."""
LEAST_SPREAD, MOST_SPREAD = 1e-6, 1e6
"""The range of std, and the largest mean, for pixels from 0 to 1: beyond it float32 results are useless."""


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value is a finite number, and not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


def _check_size(name: str, size: Any) -> None:
    whole = isinstance(size, tuple) and len(size) == 2 and all(type(side) is int for side in size)
    if not whole or min(size) < 1:
        raise OptionError(f"{name} {shown(size)} is not a size: give height and width, at least 1 each")
    if max(size) > MOST_SIDE or size[0] * size[1] > MOST_PIXELS:
        raise OptionError(
            f"{name} {shown(size)} is too large: a side is at most {MOST_SIDE:,} pixels, "
            f"all of it {MOST_PIXELS:,}"
        )


def _check_numbers(name: str, values: Any, least: float) -> None:
    """Refuse what a channel can't be normalised by."""
    if (
        not isinstance(values, tuple)
        or not values
        or not all(is_number(value) and least <= value <= MOST_SPREAD for value in values)
    ):
        raise OptionError(
            f"{name} {shown(values)} can't be used: give numbers from {least:g} to {MOST_SPREAD:g}, "
            "one for each channel"
        )


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The way from a decoded image to the model's input; sealed into the checkpoint, and read only there."""

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

    def __post_init__(self) -> None:
        _check_size("image_size", self.image_size)
        if self.resize_size is not None:
            _check_size("resize_size", self.resize_size)
        for name, kind in (("resize", Resize), ("interpolation", Interpolation)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise OptionError(
                    f"unknown {name} {shown(value)}: expected one of {', '.join(get_args(kind))}"
                )
        _check_numbers("mean", self.mean, -MOST_SPREAD)
        _check_numbers("std", self.std, LEAST_SPREAD)
        if len(self.mean) != len(self.std):
            raise OptionError(
                f"{len(self.mean)} of mean and {len(self.std)} of std: give one of each for every channel"
            )

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
    """RandAugment(n, m): n operations per image, at magnitude m of torchvision's 0 to 30. n = 0: none."""
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
    unmixed: float = 0.0
    """Part of the run, at its end, in which no image is mixed: the last steps see what evaluation sees."""
    repeats: int = 1
    """Repeated augmentation: this many differently varied copies of an image in the same global batch."""
    geometry: float = 0.0
    """One affine map per image, for many epochs on small images. At strength 1: a shift by up to an eighth of
    the side, and with probabilities of 40, 25 and 50 % a turn by up to 20 degrees, a shear by up to 0.3 and a
    scaling by up to a quarter. Another strength scales the amounts. 0: none."""
    color: float = 0.0
    """One change of colours per image, likewise. At strength 1: brightness, contrast and saturation by up to
    40 %, each for 40 % of the images; autocontrast for 10 %, solarize and posterize for 5 %, invert for 4 %.
    Another strength scales the amounts of the first and the probabilities of the others. 0: none."""
