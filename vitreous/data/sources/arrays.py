"""DATA as arrays: `.npz` files and idx files (MNIST's format). No pickled object is ever read."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from vitreous.data.images import ArrayImages, Images
from vitreous.data.sources.found import Found, Label
from vitreous.errors import DataError

IMAGE_KEYS = ("images", "image", "x", "data")
TARGET_KEYS = ("labels", "label", "y", "targets", "target")
NAME_KEYS = ("class_names", "label_names", "classes", "names")
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
MAX_UNPACKED = 16 << 30


def open_npz(path: Path) -> Found:
    """Open an `.npz`: `images` and `labels`, or the same for each split as in `x_train`, `train_images`,
    `test_labels`."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            keys = list(file.files)
            splits = {split: pair for split in ("train", "val", "test") if (pair := _pair(keys, split))}
            if not splits and (pair := _pair(keys, "")):
                splits = {"train": pair}
            if not splits:
                raise DataError(
                    f"{path}: holds {', '.join(keys) or 'nothing'}; expected images and labels, or x_train, "
                    f"y_train, x_test, y_test"
                )
            loaded = {split: (file[images], file[targets]) for split, (images, targets) in splits.items()}
            names = next((file[key].tolist() for key in NAME_KEYS if key in keys), None)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: not a readable .npz: {error}") from None
    prefixes = {split: images for split, (images, _) in splits.items()}
    return arrays_found(str(path), loaded, [str(name) for name in names] if names else None, prefixes)


def arrays_found(
    source: str,
    loaded: dict[str, tuple[np.ndarray, np.ndarray]],
    names: list[str] | None,
    prefixes: dict[str, str] | None = None,
    *,
    mirror: bool = True,
) -> Found:
    """Turn pixel and label arrays into a `Found`."""
    splits: dict[str, tuple[Images, list[Label]]] = {}
    for split, (images, targets) in loaded.items():
        if len(images) != len(targets):
            raise DataError(
                f"{source}: {len(images):,} {split} images but {len(targets):,} labels: give one label "
                f"per image"
            )
        prefix = (prefixes or {}).get(split, split)
        splits[split] = (ArrayImages(pixels(images, source), prefix), _labels(targets, names, source))
    return Found(splits, names, mirror=mirror)


def pixels(images: np.ndarray, source: str) -> np.ndarray:
    """Return uint8 (N, H, W, C) of any usual array of images; refuse others, naming the source."""
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4:
        raise DataError(
            f"{source}: images of shape {images.shape}: expected (N, H, W), (N, H, W, C) or (N, C, H, W)"
        )
    if 0 in images.shape[1:]:
        raise DataError(f"{source}: images of shape {images.shape} have no pixels")
    if images.shape[1] in (1, 3, 4) and images.shape[3] not in (1, 3, 4):
        images = images.transpose(0, 2, 3, 1)
    return levels(images, source)


def levels(images: np.ndarray, source: str) -> np.ndarray:
    """Return pixels of any usual type as uint8; other numbers are refused, as their range is unknown."""
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    if images.dtype == bool:
        return images.astype(np.uint8) * 255
    if images.dtype == np.uint16:
        return ((images.astype(np.uint32) + 128) // 257).astype(np.uint8)
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if np.issubdtype(images.dtype, np.floating) and low >= 0 and high <= 1:
        return np.rint(images * 255).astype(np.uint8)
    if np.issubdtype(images.dtype, np.integer) and low >= 0 and high <= 255:
        return images.astype(np.uint8)
    raise DataError(
        f"{source}: {images.dtype} pixels from {low:g} to {high:g}: expected uint8, uint16, or floats from "
        f"0 to 1"
    )


def _pair(keys: list[str], split: str) -> tuple[str, str] | None:
    """Find the keys of a split's images and labels, in any of the usual spellings."""
    spellings = [name for name, meaning in SPLITS.items() if meaning == split] if split else [""]
    lowered = {key.lower(): key for key in keys}
    for spelling in spellings:
        images, targets = (
            next((lowered[form] for key in known for form in _forms(key, spelling) if form in lowered), None)
            for known in (IMAGE_KEYS, TARGET_KEYS)
        )
        if images and targets:
            return images, targets
    return None


def _forms(key: str, split: str) -> tuple[str, ...]:
    return (f"{key}_{split}", f"{split}_{key}") if split else (key,)


def _labels(targets: np.ndarray, names: list[str] | None, source: str) -> list[Label]:
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim == 2 and set(np.unique(targets).tolist()) <= {0, 1}:
        return [np.flatnonzero(row).tolist() for row in targets]
    if targets.ndim != 1 or targets.dtype.kind not in "iubUS":
        raise DataError(
            f"{source}: labels of {targets.dtype} {targets.shape}: expected integers or names, or zeros and "
            f"ones (N, K)"
        )
    if targets.dtype.kind == "S":
        targets = np.char.decode(targets, "utf-8")
    return targets.tolist()


def find_idx(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Find MNIST's four files below a folder, in any usual spelling, packed or not."""
    found: dict[str, tuple[Path, Path]] = {}
    for split, stem in (("train", "train"), ("test", "t10k")):
        images, labels = (_idx_file(folder, stem, kind) for kind in ("images", "labels"))
        if images and labels:
            found[split] = (images, labels)
    return found


def _idx_file(folder: Path, stem: str, kind: str) -> Path | None:
    rank = {"images": 3, "labels": 1}[kind]
    for name in (f"{stem}-{kind}-idx{rank}-ubyte", f"{stem}-{kind}.idx{rank}-ubyte"):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def open_idx(
    files: dict[str, tuple[Path, Path]], names: list[str] | None = None, *, mirror: bool = True
) -> Found:
    """Open the idx files of `find_idx`."""
    loaded = {split: (read_idx(images), read_idx(labels)) for split, (images, labels) in files.items()}
    prefixes = {split: images.name for split, (images, _) in files.items()}
    source = str(next(iter(files.values()))[0].parent)
    return arrays_found(source, loaded, names, prefixes, mirror=mirror)


def read_idx(path: Path) -> np.ndarray:
    """Read one idx file of bytes; its header must agree with its length."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            header = file.read(4)
            if len(header) < 4 or header[:2] != b"\0\0" or header[2] != 8 or not 1 <= header[3] <= 4:
                raise DataError(f"{path}: not an idx file of unsigned bytes")
            shape = struct.unpack(f">{header[3]}I", file.read(4 * header[3]))
            size = int(np.prod(shape, dtype=object))
            if size > MAX_UNPACKED:
                raise DataError(f"{path}: claims {size:,} bytes, more than the limit of {MAX_UNPACKED:,}")
            data = file.read(size + 1)
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise DataError(f"{path}: not a readable idx file: {error}") from None
    if len(data) != size:
        raise DataError(
            f"{path}: is truncated or too long: its header says {size:,} bytes of pixels or labels"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)
