"""RandAugment, 3-Augment and colour jitter, on one Pillow image or on a batch of tensors; the draws come
from outside.

Both ways take the same `Operation` for an image and use torchvision's v2 kernels, so the result does not
depend on where it is computed. A batch is grouped by operation: one kernel call for all images that drew it.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.config import Augment
from vitreous.data.lookup import FASTER
from vitreous.data.moving import to_device
from vitreous.errors import DataError

BINS = 31  # torchvision's number of magnitudes


class Operation(NamedTuple):
    """One operation with its strength; equal ones are computed together."""

    name: str
    strength: float = 0.0


class _Functional:
    """torchvision's kernels, imported on first use: that takes seconds, and many programs use none."""

    def __getattr__(self, name: str) -> Any:
        from torchvision.transforms.v2 import functional

        return getattr(functional, name)


F = _Functional()


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


def _up_to(maximum: float) -> Callable[[int], float]:
    """Return the strength at a magnitude of 0 to 30, with torchvision's rounding."""
    return lambda m: float(torch.linspace(0.0, maximum, BINS)[m])


# name → (strength at magnitude m, has a sign, function of image and strength)
RANDAUGMENT: dict[str, tuple[Callable[[int], float], bool, Callable[[Any, float], Any]]] = {
    "Identity": (lambda m: 0.0, False, lambda image, s: image),
    "ShearX": (_up_to(0.3), True, lambda image, s: _shear(image, s, 0.0)),
    "ShearY": (_up_to(0.3), True, lambda image, s: _shear(image, 0.0, s)),
    "TranslateX": (lambda m: 150 / 331 * m / 30, True, lambda image, s: _translate(image, s, 0.0)),
    "TranslateY": (lambda m: 150 / 331 * m / 30, True, lambda image, s: _translate(image, 0.0, s)),
    "Rotate": (_up_to(30.0), True, lambda image, s: F.rotate(image, angle=s)),
    "Brightness": (_up_to(0.9), True, lambda image, s: F.adjust_brightness(image, 1.0 + s)),
    "Color": (_up_to(0.9), True, lambda image, s: F.adjust_saturation(image, 1.0 + s)),
    "Contrast": (_up_to(0.9), True, lambda image, s: F.adjust_contrast(image, 1.0 + s)),
    "Sharpness": (_up_to(0.9), True, lambda image, s: F.adjust_sharpness(image, 1.0 + s)),
    "Posterize": (lambda m: 8 - round(4 * m / 30), False, lambda image, s: F.posterize(image, bits=int(s))),
    "Solarize": (
        lambda m: float(torch.linspace(1.0, 0.0, BINS)[m]),
        False,
        lambda image, s: F.solarize(image, threshold=255.0 * s),
    ),
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
# Drawn blurs and jitters take one of this many strengths, so that images of a batch can share a kernel call
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
        value, signed = _strength(name, magnitude), RANDAUGMENT[name][1]
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


@cache
def _strength(name: str, magnitude: int) -> float:
    return RANDAUGMENT[name][0](magnitude)


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


def check_operations(augment: Augment, channels: int) -> None:
    """Refuse counts and magnitudes that do not exist, and colours of what is neither gray nor RGB."""
    count, magnitude = augment.randaugment
    if count < 0:
        raise DataError(f"RandAugment's {count} operations are out of range: give 0 (none) or more")
    if not 0 <= magnitude < BINS:
        raise DataError(f"RandAugment's magnitude {magnitude} is out of range: 0 to {BINS - 1}")
    if draws_needed(augment) and channels not in (1, 3):
        raise DataError(
            f"RandAugment, 3-Augment and colour jitter need 1 or 3 channels, not {channels}: turn them off, "
            f"crop and flip still work"
        )


def apply_image(image: Image.Image, operations: Sequence[Operation]) -> Image.Image:
    """Apply an image's operations to it."""
    for name, strength in operations:
        image = FASTER.get(name, FUNCTIONS[name])(image, strength)
    return image


def apply_batch(images: Tensor, operations: Sequence[Sequence[Operation]]) -> Tensor:
    """Apply each image's own operations to uint8 (B, C, H, W), in place, grouped by operation."""
    for k in range(max(map(len, operations), default=0)):
        groups: dict[Operation, list[int]] = {}
        moved: list[tuple[int, Operation]] = []
        for index, chosen in enumerate(operations):
            if k < len(chosen) and chosen[k].name in GEOMETRIC:
                moved.append((index, chosen[k]))
            elif k < len(chosen):
                groups.setdefault(chosen[k], []).append(index)
        if moved:
            rows = to_device(torch.tensor([index for index, _ in moved]), images.device)
            images[rows] = _move(images[rows], [operation for _, operation in moved])
        for (name, strength), members in groups.items():
            rows = to_device(torch.tensor(members), images.device)
            images[rows] = FUNCTIONS[name](images[rows], strength)
    return images


GEOMETRIC = frozenset({"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"})


def _move(images: Tensor, operations: Sequence[Operation]) -> Tensor:
    """Shear, shift or turn every image of uint8 (B, C, H, W) by its own amount, in one call."""
    height, width = images.shape[2:]
    matrices = torch.tensor([_inverse(operation, height, width) for operation in operations])
    matrices = to_device(matrices, images.device)
    grid = torch.nn.functional.affine_grid(matrices, list(images.shape), align_corners=False)
    moved = torch.nn.functional.grid_sample(images.float(), grid, mode="nearest", align_corners=False)
    return moved.to(torch.uint8)


def _inverse(operation: Operation, height: int, width: int) -> list[list[float]]:
    """Return where in the source a target pixel comes from, in units of half the image from its centre."""
    name, s = operation
    if name == "Rotate":
        cos, sin = math.cos(math.radians(s)), math.sin(math.radians(s))
        return [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
    if name in ("TranslateX", "TranslateY"):
        x, y = (s, 0.0) if name == "TranslateX" else (0.0, s)
        return [[1.0, 0.0, -2 * int(x * width) / width], [0.0, 1.0, -2 * int(y * height) / height]]
    if name == "ShearX":  # about the top left corner: a pixel moves by s times its height
        return [[1.0, s * height / width, s * height / width], [0.0, 1.0, 0.0]]
    return [[1.0, 0.0, 0.0], [s * width / height, 1.0, s * width / height]]
