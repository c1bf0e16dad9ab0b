"""A picture of a data set: some training images of each class beside its name."""

import numpy as np
from PIL import Image, ImageDraw

from vitreous.data.split import Dataset, Split
from vitreous.errors import DataError

LABEL_WIDTH = 160
GAP = 4


def contact_sheet(data: Dataset, *, per_class: int = 8, classes: int = 16, size: int = 96) -> Image.Image:
    """Return a row of training images for each of the first classes, with its name."""
    split = data.splits.get("train", next(iter(data.splits.values())))
    shown, cell = data.labels[:classes], size + GAP
    sheet = Image.new("RGB", (LABEL_WIDTH + per_class * cell, len(shown) * cell), "white")
    draw = ImageDraw.Draw(sheet)
    for row, label in enumerate(shown):
        draw.text((6, row * cell + size // 2 - 6), label[:24], fill="black")
        for column, image in enumerate(_images(split, row, per_class)):
            image.thumbnail((size, size))
            left, top = LABEL_WIDTH + column * cell, row * cell
            sheet.paste(image, (left + (size - image.width) // 2, top + (size - image.height) // 2))
    return sheet


def _images(split: Split, label: int, count: int) -> list[Image.Image]:
    """Return the first images of a class that can be read."""
    found: list[Image.Image] = []
    of_class = split.targets[:, label] if split.targets.ndim == 2 else split.targets == label
    for index in np.flatnonzero(of_class).tolist():
        if len(found) == count:
            break
        try:
            found.append(split.read(index))
        except DataError:
            continue
    return found
