"""RandAugment, 3-Augment and colour jitter, on one Pillow image or on a batch of tensors; the draws come
from outside.

Both ways take the same `Operation` for an image and use torchvision's v2 kernels, so an image's fate does not
depend on where it is computed. A batch is grouped by operation: one kernel call for all images that drew it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from vitreous.config import Augment
from vitreous.errors import DataError

BINS = 31  # torchvision's number of magnitudes


class Operation(NamedTuple):
    """One operation with its strength; equal ones are computed together."""

    name: str
    strength: float = 0.0


def _shear(image: Any, x: float, y: float) -> Any:
    shear = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    return F.affine(image, angle=0.0, translate=[0, 0], scale=1.0, shear=shear, center=[0, 0])


def _translate(image: Any, x: float, y: float) -> Any:
    height, width = F.get_size(image)
    by = [float(int(x * width)), float(int(y * height))]
    return F.affine(image, angle=0.0, translate=by, scale=1.0, shear=[0.0, 0.0])


def _blur(image: Any, sigma: float) -> Any:
    size = 2 * math.ceil(2 * sigma) + 1
    height, width = F.get_size(image)
    size = min(size, 2 * ((min(height, width) + 1) // 2) - 1)  # the mirrored edge must fit inside the image
    return F.gaussian_blur(image, kernel_size=[size, size], sigma=[sigma, sigma])


def _gray(image: Any) -> Any:
    channels = F.get_num_channels(image)
    return image if channels == 1 else F.rgb_to_grayscale(image, num_output_channels=3)


# name → (strength at magnitude m of 30, has a sign, function of image and strength)
RANDAUGMENT: dict[str, tuple[Callable[[float], float], bool, Callable[[Any, float], Any]]] = {
    "Identity": (lambda m: 0.0, False, lambda image, s: image),
    "ShearX": (lambda m: 0.3 * m, True, lambda image, s: _shear(image, s, 0.0)),
    "ShearY": (lambda m: 0.3 * m, True, lambda image, s: _shear(image, 0.0, s)),
    "TranslateX": (lambda m: 150 / 331 * m, True, lambda image, s: _translate(image, s, 0.0)),
    "TranslateY": (lambda m: 150 / 331 * m, True, lambda image, s: _translate(image, 0.0, s)),
    "Rotate": (lambda m: 30.0 * m, True, lambda image, s: F.rotate(image, angle=s)),
    "Brightness": (lambda m: 0.9 * m, True, lambda image, s: F.adjust_brightness(image, 1.0 + s)),
    "Color": (lambda m: 0.9 * m, True, lambda image, s: F.adjust_saturation(image, 1.0 + s)),
    "Contrast": (lambda m: 0.9 * m, True, lambda image, s: F.adjust_contrast(image, 1.0 + s)),
    "Sharpness": (lambda m: 0.9 * m, True, lambda image, s: F.adjust_sharpness(image, 1.0 + s)),
    "Posterize": (lambda m: 8 - round(4 * m), False, lambda image, s: F.posterize(image, bits=int(s))),
    "Solarize": (lambda m: 1.0 - m, False, lambda image, s: F.solarize(image, threshold=255.0 * s)),
    "AutoContrast": (lambda m: 0.0, False, lambda image, s: F.autocontrast(image)),
    "Equalize": (lambda m: 0.0, False, lambda image, s: F.equalize(image)),
}
NAMES = tuple(RANDAUGMENT)

THREE_AUGMENT: dict[str, Callable[[Any, float], Any]] = {
    "Gray": lambda image, s: _gray(image),
    "Half-solarize": lambda image, s: F.solarize(image, threshold=128.0),
    "Blur": lambda image, s: _blur(image, s),
}
JITTER: dict[str, Callable[[Any, float], Any]] = {
    "Brightness-factor": lambda image, s: F.adjust_brightness(image, s),
    "Contrast-factor": lambda image, s: F.adjust_contrast(image, s),
    "Saturation-factor": lambda image, s: F.adjust_saturation(image, s),
}
FUNCTIONS: dict[str, Callable[[Any, float], Any]] = {
    **{name: function for name, (_, _, function) in RANDAUGMENT.items()},
    **THREE_AUGMENT,
    **JITTER,
}
# Drawn blurs and jitters take one of so many strengths, so that images of a batch can share a kernel call
STEPS = 20


def draws_needed(augment: Augment) -> int:
    """Return how many uniform draws `choose` takes for an image."""
    return 2 * augment.randaugment[0] + 2 * augment.three_augment + 3 * (augment.color_jitter > 0)


def choose(augment: Augment, draws: np.ndarray) -> list[list[Operation]]:
    """Turn (B, draws_needed) uniform draws into each image's operations, in their order."""
    return [_choose(augment, row.tolist()) for row in draws]


def _choose(augment: Augment, draws: list[float]) -> list[Operation]:
    chosen = []
    count, magnitude = augment.randaugment
    for k in range(count):
        name = NAMES[int(draws[2 * k] * len(NAMES))]
        strength, signed, _ = RANDAUGMENT[name]
        value = strength(magnitude / (BINS - 1))
        chosen.append(Operation(name, -value if signed and draws[2 * k + 1] < 0.5 else value))
    rest = draws[2 * count :]
    if augment.three_augment:
        name = tuple(THREE_AUGMENT)[int(rest[0] * 3)]
        sigma = 0.1 + 1.9 * _level(rest[1]) if name == "Blur" else 0.0
        chosen.append(Operation(name, sigma))
        rest = rest[2:]
    if augment.color_jitter > 0:
        spread = augment.color_jitter
        chosen += [Operation(n, 1 + spread * (2 * _level(u) - 1)) for n, u in zip(JITTER, rest, strict=False)]
    return [operation for operation in chosen if not _is_nothing(operation)]


def _level(draw: float) -> float:
    return int(draw * STEPS) / (STEPS - 1)


def _is_nothing(operation: Operation) -> bool:
    name, strength = operation
    if name in RANDAUGMENT and RANDAUGMENT[name][1]:
        return strength == 0
    return (
        name == "Identity"
        or (name == "Posterize" and strength == 8)
        or (name == "Solarize" and strength == 1)
    )


def check_channels(augment: Augment, channels: int) -> None:
    """Refuse colour operations on what is neither gray nor RGB."""
    if draws_needed(augment) and channels not in (1, 3):
        raise DataError(
            f"RandAugment, 3-Augment and colour jitter need 1 or 3 channels, not {channels}: set them off, "
            f"crop and flip work"
        )


def apply_image(image: Image.Image, operations: Sequence[Operation]) -> Image.Image:
    """Apply an image's operations to it."""
    for name, strength in operations:
        image = FUNCTIONS[name](image, strength)
    return image


def apply_batch(images: Tensor, operations: Sequence[Sequence[Operation]]) -> Tensor:
    """Apply each image's own operations to uint8 (B, C, H, W), in place, grouped by operation."""
    for k in range(max(map(len, operations), default=0)):
        groups: dict[Operation, list[int]] = {}
        for index, chosen in enumerate(operations):
            if k < len(chosen):
                groups.setdefault(chosen[k], []).append(index)
        for (name, strength), members in groups.items():
            rows = torch.tensor(members, device=images.device)
            images[rows] = FUNCTIONS[name](images[rows], strength)
    return images
