"""Whether one picture is a copy of another that was cropped, mirrored, brightened or encoded anew.

Both are reduced to small gray images and correlated, while the edges of one are moved inwards as long as that
helps. A pair takes milliseconds, so something cheaper has to propose the pairs. `near` compares whole
pictures with all others.
"""

from itertools import product

import numpy as np
from PIL import Image

STORED = 128
"""Pixels along each side of what is kept of a picture."""
FINE = 32
"""Pixels along each side of what is compared."""
SMALLEST = 32
"""A picture with a shorter side than this is compared whole: moving its edges would only blur it."""
STEPS = (0.06, 0.03, 0.015, 0.0075)
"""Fractions of the side by which an edge is moved, coarse to fine."""
DEEPEST = 0.15
"""The largest fraction of the side that is cut off at an edge."""
HOPELESS = 0.4, 0.5
"""Correlations to reach with whole pictures, and after the coarsest steps; copies cropped by 8 % had 0.67."""
LEAST = 0.985
"""Correlation from which on two pictures count as copies. 180 copies planted among 1,860 photographs (JPEG
quality 50 at 0.6 of the size, cropped by up to 8 % at each edge, mirrored, brightened by 15 %) all had 0.99
or more; different pictures 0.972 at most."""


class Gray:
    """A picture as it is compared: gray, square and small."""

    def __init__(self, image: Image.Image) -> None:
        self.movable = min(image.size) >= SMALLEST
        gray = image.convert("L")
        self.image = gray.resize((STORED, STORED), Image.Resampling.BILINEAR, reducing_gap=3.0)

    def mirrored(self) -> "Gray":
        """Return the same picture seen in a mirror."""
        other = object.__new__(Gray)
        other.movable, other.image = self.movable, self.image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return other

    def vector(self, edges: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)) -> np.ndarray:
        """Return the picture within these edges (left, top, right, bottom: fractions cut off), as a vector of
        mean 0 and length 1; shorter, down to zeros, where there is next to no contrast."""
        left, top, right, bottom = (STORED * edge for edge in edges)
        box = (left, top, STORED - right, STORED - bottom)
        pixels = np.asarray(self.image.resize((FINE, FINE), Image.Resampling.BILINEAR, box=box), np.float32)
        flat = pixels.ravel() - pixels.mean()
        return flat / max(
            float(np.linalg.norm(flat)), FINE
        )  # below one level of contrast: noise, not a picture


def likeness(first: Gray, second: Gray, *, mirror: bool = True) -> float:
    """Return the best correlation of two pictures when either is cropped and, if `mirror`, mirrored."""
    best = -1.0
    for other in (second, second.mirrored()) if mirror else (second,):
        best = max(best, _cropped(first, other.vector()), _cropped(other, first.vector()))
        if best >= LEAST:
            break
    return best


def _cropped(whole: Gray, part: np.ndarray) -> float:
    """Return the best correlation of any crop of `whole` with `part`: hill climbing, edge by edge."""
    edges = (0.0, 0.0, 0.0, 0.0)
    best = float(whole.vector(edges) @ part)
    if not whole.movable or best < HOPELESS[0]:
        return best
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for edge, change in product(range(4), (step, -step)):
                tried = tuple(
                    min(max(value + change, 0.0), DEEPEST) if place == edge else value
                    for place, value in enumerate(edges)
                )
                if tried != edges and (found := float(whole.vector(tried) @ part)) > best + 1e-4:
                    best, edges, moved = found, tried, True
        if best < HOPELESS[1]:
            break
    return best
