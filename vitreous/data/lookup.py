"""Some of Pillow's colour operations, faster and equal to the last bit: lookup tables made by numpy,
sharpening.

The tests compare them with torchvision's kernels for Pillow images, which they replace.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image

LEVELS = np.arange(256)


def _blend(degenerate: np.ndarray | float, original: np.ndarray, factor: float) -> np.ndarray:
    """Return Pillow's blend: float32, clipped, rounded down."""
    start = np.asarray(degenerate, np.float32)
    mixed = start + np.float32(factor) * (original.astype(np.float32) - start)
    return np.clip(mixed, 0, 255).astype(np.uint8)


def _histograms(image: Image.Image) -> np.ndarray:
    return np.array(image.histogram()).reshape(-1, 256)


def _equalize(image: Image.Image, _: float) -> np.ndarray:
    counts = _histograms(image)
    tables = np.tile(LEVELS, (len(counts), 1))
    for table, histogram in zip(tables, counts, strict=True):
        used = histogram[histogram > 0]
        step = (used.sum() - used[-1]) // 255 if len(used) > 1 else 0
        if step:
            table[:] = np.minimum((step // 2 + np.cumsum(histogram) - histogram) // step, 255)
    return tables


def _autocontrast(image: Image.Image, _: float) -> np.ndarray:
    counts = _histograms(image)
    tables = np.tile(LEVELS, (len(counts), 1))
    for table, histogram in zip(tables, counts, strict=True):
        used = np.flatnonzero(histogram)
        low, high = int(used[0]), int(used[-1])
        if high > low:
            scale = 255.0 / (high - low)
            table[:] = np.clip((LEVELS * scale + -low * scale).astype(int), 0, 255)
    return tables


def _contrast(image: Image.Image, strength: float) -> np.ndarray:
    gray = np.array(image.convert("L").histogram())
    mean = int((gray * LEVELS).sum() / gray.sum() + 0.5)
    return _blend(mean, LEVELS, 1.0 + strength)


def _look_up(
    tables: Callable[[Image.Image, float], np.ndarray],
) -> Callable[[Image.Image, float], Image.Image]:
    def apply(image: Image.Image, strength: float) -> Image.Image:
        whole = np.broadcast_to(tables(image, strength), (len(image.getbands()), 256))
        return image.point(whole.reshape(-1).tolist())

    return apply


def sharpen(image: Image.Image, strength: float) -> Image.Image:
    """Sharpen (or, with a negative strength, smooth) as Pillow's ImageEnhance does."""
    pixels = np.asarray(image)
    if min(pixels.shape[:2]) < 3:
        return image
    wide = pixels.astype(np.int16)
    centre = wide[1:-1, 1:-1]
    rows = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    total = rows[:-2] + rows[1:-1] + rows[2:] + 4 * centre  # Pillow's SMOOTH: ones around a five, over 13
    smooth = (2 * total + 13) // 26
    result = pixels.copy()
    result[1:-1, 1:-1] = _blend(smooth, centre, 1.0 + strength)
    return Image.fromarray(result)


# The operations of RandAugment that are faster here than in Pillow; the others are fast enough there.
FASTER: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "AutoContrast": _look_up(_autocontrast),
    "Contrast": _look_up(_contrast),
    "Equalize": _look_up(_equalize),
    "Sharpness": sharpen,
}
