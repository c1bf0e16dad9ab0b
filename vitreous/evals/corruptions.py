"""ImageNet-C's fifteen corruptions at five severities (arXiv 1903.12261), on the fly. Pixels in, pixels out.

Sizes of blurs and textures are ImageNet-C's for 224 pixels, scaled to the image at hand. Randomness is a
function of (seed, image, corruption, severity). Frost is a synthetic texture; ImageNet-C has photographs.
"""

import io
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage

Pixels = np.ndarray  # float64 (H, W, C) in [0, 1]

ALEXNET = {
    "gaussian_noise": 0.886, "shot_noise": 0.894, "impulse_noise": 0.923, "defocus_blur": 0.820,
    "glass_blur": 0.826, "motion_blur": 0.786, "zoom_blur": 0.798, "snow": 0.867, "frost": 0.827,
    "fog": 0.819, "brightness": 0.565, "contrast": 0.853, "elastic_transform": 0.646, "pixelate": 0.718,
    "jpeg_compression": 0.607,
}  # fmt: skip
"""AlexNet's mean error on ImageNet-C, by which mCE is normalised there (table 1 of the paper)."""


def corrupt(pixels: np.ndarray, name: str, severity: int, seed: int = 0, index: int = 0) -> np.ndarray:
    """Return a corrupted copy of uint8 pixels (H, W, C)."""
    generator = np.random.default_rng([seed, index, zlib.crc32(name.encode()), severity])
    function, levels = CORRUPTIONS[name]
    changed = function(pixels / 255.0, levels[severity - 1], generator)
    return np.round(np.clip(changed, 0, 1) * 255).astype(np.uint8)


def gaussian_noise(x: Pixels, level: float, generator: np.random.Generator) -> Pixels:
    """Sensor noise in low light."""
    return x + generator.normal(0, level, x.shape)


def shot_noise(x: Pixels, level: float, generator: np.random.Generator) -> Pixels:
    """Noise of counting photons."""
    return generator.poisson(x * level) / level


def impulse_noise(x: Pixels, level: float, generator: np.random.Generator) -> Pixels:
    """Salt and pepper."""
    draw = generator.random(x.shape)
    return np.where(draw < level / 2, 0.0, np.where(draw < level, 1.0, x))


def defocus_blur(x: Pixels, level: tuple[float, float], generator: np.random.Generator) -> Pixels:
    """A lens out of focus: a disk."""
    radius = max(level[0] * _scale(x), 0.6)
    reach = int(np.ceil(radius))
    y, z = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = np.clip(radius + 0.5 - np.hypot(y, z), 0, 1)
    disk = ndimage.gaussian_filter(disk, level[1])
    return _each(x, lambda plane: ndimage.convolve(plane, disk / disk.sum(), mode="reflect"))


def glass_blur(x: Pixels, level: tuple[float, float, int], generator: np.random.Generator) -> Pixels:
    """Frosted glass: neighbours change places."""
    sigma, reach, rounds = level
    reach = max(1, round(reach * _scale(x)))
    x = _gaussian(x, sigma * max(_scale(x), 0.3))
    height, width = x.shape[:2]
    rows, columns = np.mgrid[:height, :width]
    for _ in range(rounds):
        down, right = generator.integers(-reach, reach + 1, (2, height, width))
        x = x[np.clip(rows + down, 0, height - 1), np.clip(columns + right, 0, width - 1)]
    return _gaussian(x, sigma * max(_scale(x), 0.3))


def motion_blur(x: Pixels, level: tuple[float, float], generator: np.random.Generator) -> Pixels:
    """A moving camera: a line of random direction."""
    reach = max(1.0, level[0] * _scale(x))
    angle = generator.uniform(-np.pi / 4, np.pi / 4)
    steps = np.linspace(-1, 1, max(3, int(2 * reach)))
    weights = np.exp(-((steps * reach) ** 2) / (2 * (level[1] * max(_scale(x), 0.3)) ** 2))
    moved = [
        ndimage.shift(
            x, (np.sin(angle) * step * reach, np.cos(angle) * step * reach, 0), order=1, mode="reflect"
        )
        for step in steps
    ]
    return np.tensordot(weights / weights.sum(), np.array(moved), axes=1)


def zoom_blur(x: Pixels, level: tuple[float, float], generator: np.random.Generator) -> Pixels:
    """A camera that moves towards its object."""
    zooms = np.arange(1, *level)
    return (x + sum(_zoom(x, zoom) for zoom in zooms)) / (len(zooms) + 1)


def snow(
    x: Pixels, level: tuple[float, float, float, float, float], generator: np.random.Generator
) -> Pixels:
    """Falling snow, and the pallor of a snowy day."""
    mean, deviation, zoom, threshold, blend = level
    flakes = _zoom(generator.normal(mean, deviation, (*x.shape[:2], 1)), zoom)
    flakes = np.where(flakes < threshold, 0, np.clip(flakes, 0, 1))
    flakes = motion_blur(flakes, (10.0, 4.0), generator)
    gray = x.mean(2, keepdims=True)
    return blend * x + (1 - blend) * np.maximum(x, gray * 1.5 + 0.5) + flakes + np.rot90(flakes, 2)


def frost(x: Pixels, level: tuple[float, float], generator: np.random.Generator) -> Pixels:
    """Ice crystals on the lens: a thresholded fractal."""
    field = _fractal(x.shape[:2], 1.6, generator)
    ice = np.clip((field - 0.45) * 3, 0, 1)[..., None] * np.linspace(0.85, 1.0, x.shape[2])
    return level[0] * x + level[1] * ice


def fog(x: Pixels, level: tuple[float, float], generator: np.random.Generator) -> Pixels:
    """Diamond-square fog."""
    strength, decay = level
    return (
        (x + strength * _fractal(x.shape[:2], decay, generator)[..., None]) * x.max() / (x.max() + strength)
    )


def brightness(x: Pixels, level: float, generator: np.random.Generator) -> Pixels:
    """Daylight: the value of each pixel rises."""
    value = x.max(2, keepdims=True)
    return x * np.clip(value + level, 0, 1) / np.maximum(value, 1e-6) if x.shape[2] > 1 else x + level


def contrast(x: Pixels, level: float, generator: np.random.Generator) -> Pixels:
    """Flat light: pixels move towards their mean."""
    mean = x.mean((0, 1), keepdims=True)
    return (x - mean) * level + mean


def elastic_transform(x: Pixels, level: tuple[float, float, float], generator: np.random.Generator) -> Pixels:
    """Stretched regions: an affine jitter and a smooth random displacement, as parts of the image's size."""
    amount, smooth, affine = level
    height, width = x.shape[:2]
    shifts = [
        ndimage.gaussian_filter(
            generator.uniform(-1, 1, (height, width)), smooth * height, mode="reflect", truncate=3
        )
        * amount
        * height
        for _ in range(2)
    ]
    matrix = np.eye(2) + generator.uniform(-affine, affine, (2, 2))
    rows, columns = np.mgrid[:height, :width].astype(float)
    centred = np.stack([rows - height / 2, columns - width / 2])
    moved = np.tensordot(matrix, centred, axes=1)
    places = [moved[0] + height / 2 + shifts[0], moved[1] + width / 2 + shifts[1]]
    return _each(x, lambda plane: ndimage.map_coordinates(plane, places, order=1, mode="reflect"))


def pixelate(x: Pixels, level: float, generator: np.random.Generator) -> Pixels:
    """A low resolution enlarged."""
    height, width = x.shape[:2]
    small = (max(1, round(width * level)), max(1, round(height * level)))
    image = Image.fromarray(_bytes(x)).resize(small, Image.Resampling.BOX)
    return _floats(image.resize((width, height), Image.Resampling.NEAREST))


def jpeg_compression(x: Pixels, level: int, generator: np.random.Generator) -> Pixels:
    """The artefacts of strong compression."""
    buffer = io.BytesIO()
    Image.fromarray(_bytes(x)).save(buffer, "JPEG", quality=level)
    return _floats(Image.open(buffer))


CORRUPTIONS: dict[str, tuple[Callable[[Pixels, Any, np.random.Generator], Pixels], list[Any]]] = {
    "gaussian_noise": (gaussian_noise, [0.08, 0.12, 0.18, 0.26, 0.38]),
    "shot_noise": (shot_noise, [60, 25, 12, 5, 3]),
    "impulse_noise": (impulse_noise, [0.03, 0.06, 0.09, 0.17, 0.27]),
    "defocus_blur": (defocus_blur, [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)]),
    "glass_blur": (glass_blur, [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)]),
    "motion_blur": (motion_blur, [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)]),
    "zoom_blur": (zoom_blur, [(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)]),
    "snow": (
        snow,
        [
            (0.1, 0.3, 3, 0.5, 0.8),
            (0.2, 0.3, 2, 0.5, 0.7),
            (0.55, 0.3, 4, 0.9, 0.7),
            (0.55, 0.3, 4.5, 0.85, 0.65),
            (0.55, 0.3, 2.5, 0.85, 0.55),
        ],
    ),
    "frost": (frost, [(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)]),
    "fog": (fog, [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)]),
    "brightness": (brightness, [0.1, 0.2, 0.3, 0.4, 0.5]),
    "contrast": (contrast, [0.4, 0.3, 0.2, 0.1, 0.05]),
    "elastic_transform": (
        elastic_transform,
        [(2.0, 0.7, 0.1), (2.0, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)],
    ),
    "pixelate": (pixelate, [0.6, 0.5, 0.4, 0.3, 0.25]),
    "jpeg_compression": (jpeg_compression, [25, 18, 15, 10, 7]),
}


def _scale(x: Pixels) -> float:
    return min(x.shape[:2]) / 224


def _each(x: Pixels, change: Callable[[np.ndarray], np.ndarray]) -> Pixels:
    return np.stack([change(x[..., channel]) for channel in range(x.shape[2])], axis=2)


def _gaussian(x: Pixels, sigma: float) -> Pixels:
    return ndimage.gaussian_filter(x, (sigma, sigma, 0))


def _zoom(x: Pixels, factor: float) -> Pixels:
    """Enlarge the centre, and keep the size."""
    height, width = x.shape[:2]
    rows = (np.arange(height) - (height - 1) / 2) / factor + (height - 1) / 2
    columns = (np.arange(width) - (width - 1) / 2) / factor + (width - 1) / 2
    places = np.meshgrid(rows, columns, indexing="ij")
    return _each(x, lambda plane: ndimage.map_coordinates(plane, places, order=1, mode="nearest"))


def _fractal(size: tuple[int, int], decay: float, generator: np.random.Generator) -> np.ndarray:
    """Return noise summed over octaves, each `decay` times weaker than the coarser one, in [0, 1]."""
    field, weight, cells = np.zeros(size), 1.0, 2
    while cells < 2 * max(size):
        coarse = generator.random((cells + 1, cells + 1))
        rows = np.linspace(0, cells, size[0], endpoint=False)
        columns = np.linspace(0, cells, size[1], endpoint=False)
        places = np.meshgrid(rows, columns, indexing="ij")
        field += weight * ndimage.map_coordinates(coarse, places, order=1)
        weight, cells = weight / decay, cells * 2
    return (field - field.min()) / max(field.max() - field.min(), 1e-9)


def _bytes(x: Pixels) -> np.ndarray:
    pixels = np.round(np.clip(x, 0, 1) * 255).astype(np.uint8)
    return pixels[..., 0] if pixels.shape[2] == 1 else pixels


def _floats(image: Image.Image) -> Pixels:
    pixels = np.asarray(image) / 255.0
    return pixels[..., None] if pixels.ndim == 2 else pixels
