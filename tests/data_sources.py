"""What the tests of DATA's kinds share: the same images and labels in every kind of source."""

import gzip
import struct
from pathlib import Path

import numpy as np

from tests.data_images import make_folder, picture
from vitreous.data import Dataset

CLASSES = {"cat": 4, "dog": 3, "emu": 2}


def seen(data: Dataset) -> dict[str, list[tuple[bytes, str]]]:
    """Return for each split the pixels and label of every image, sorted."""
    found = {}
    for name, split in data.splits.items():
        rows = [(split.read(i).tobytes(), data.labels[split.targets[i]]) for i in range(len(split))]
        found[name] = sorted(rows)
    return found


def expected(classes: dict[str, int], first: int = 0) -> list[tuple[bytes, str]]:
    seeds = iter(range(first, 1000))
    return sorted(
        (picture(next(seeds)).tobytes(), name) for name, count in classes.items() for _ in range(count)
    )


def table_rows(root: Path) -> list[tuple[str, str]]:
    make_folder(root / "images", CLASSES)
    return [(f"images/{c}/{i:03d}.png", c) for c, n in CLASSES.items() for i in range(n)]


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def make_idx(folder: Path, *, packed: bool = False) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(1).integers(0, 256, (30, 28, 28), np.uint8)
    labels = (np.arange(30) % 10).astype(np.uint8)
    for stem, part in (("train", slice(0, 20)), ("t10k", slice(20, 30))):
        for kind, array in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            data = idx(array)
            (folder / f"{stem}-{kind}-ubyte{'.gz' if packed else ''}").write_bytes(
                gzip.compress(data) if packed else data
            )
    return images
