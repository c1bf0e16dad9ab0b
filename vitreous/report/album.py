"""Small pictures for pages: from a data set, by split and name, or from what a user gave."""

import numpy as np
from PIL import Image

from vitreous.data import Dataset, Split
from vitreous.data.decode import decode
from vitreous.data.images import to_pixels
from vitreous.errors import DataError
from vitreous.predict.classifier import pixels
from vitreous.predict.inputs import Item

SIDE = 160
"""Pixels of the longer side."""
MISSING = np.full((65, 65, 3), 128, np.uint8)
"""Stands for a picture that can't be read, or is no longer there."""


class Album:
    """The pictures of an open data set; without one, it has none."""

    def __init__(self, dataset: Dataset | None) -> None:
        self.places: dict[tuple[str, str], tuple[Split, int]] = {}
        for name, split in (dataset.splits if dataset else {}).items():
            self.places |= {(name, split.name(row)): (split, row) for row in range(len(split))}

    def picture(self, split: str, file: str) -> np.ndarray:
        """Return a small picture, or a gray square where there is none."""
        try:
            where, row = self.places[split, file]
            return _small(where.images.read(row, shortest=SIDE))
        except (KeyError, DataError):
            return MISSING


def given(item: Item | None) -> np.ndarray:
    """Return a small picture of what a user gave: a file, bytes, or a picture in memory."""
    if item is None or item.error is not None:
        return MISSING
    source = item.file if item.data is None else item.data
    try:
        if isinstance(source, str | bytes):
            return _small(decode(source, shortest=SIDE))
        return _small(source if isinstance(source, Image.Image) else Image.fromarray(_plain(pixels(source))))
    except DataError:
        return MISSING


def _small(image: Image.Image) -> np.ndarray:
    image = image.convert("RGB")
    image.thumbnail((SIDE, SIDE))
    return to_pixels(image)


def _plain(array: np.ndarray) -> np.ndarray:
    return array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
