"""Photographs to time things with: cut from the two that come with scikit-learn, without a download."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (500, 375)
"""Width and height: those of ImageNet's photographs, mostly."""
CLASSES = 2


def cut(count: int, size: tuple[int, int] = SIZE) -> Iterator[Image.Image]:
    """Yield different parts of the photographs, each scaled to one size (width, height)."""
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(each) for each in load_sample_images().images]
    rng = np.random.default_rng(0)
    for number in range(count):
        photograph = photographs[number % len(photographs)]
        scale = rng.uniform(0.75, 1.0) * min(photograph.width / size[0], photograph.height / size[1])
        width, height = size[0] * scale, size[1] * scale
        left, top = rng.uniform(0, photograph.width - width), rng.uniform(0, photograph.height - height)
        box = (left, top, left + width, top + height)
        yield photograph.resize(size, Image.Resampling.BICUBIC, box)


def write_jpegs(folder: Path, count: int) -> Path:
    """Write a folder of class folders of JPEGs, and return it."""
    for number, image in enumerate(cut(count)):
        path = folder / f"class{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=90)
    return folder


def write_npz(path: Path, count: int, size: tuple[int, int]) -> Path:
    """Write one array of pixels of this height and width, with labels, and return its path."""
    images = np.stack([np.asarray(image) for image in cut(count, (size[1], size[0]))])
    np.savez(path, train_images=images, train_labels=np.arange(count) % CLASSES)
    return path
