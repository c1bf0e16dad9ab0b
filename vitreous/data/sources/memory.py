"""DATA that a program has open: a torch or Hugging Face `Dataset`, a list of pairs, or a dictionary by split.

Each item is read once. Pictures of one size are kept as arrays; others, and bytes that are encoded already,
are copied into one flat file in the cache, as those of a table are: loader workers read them from there.
Neither library is imported: objects are recognised by what they can do.
"""

import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitreous.data.decode import to_channels
from vitreous.data.images import ArrayImages, EncodedImages, Images, to_image, to_pixels
from vitreous.data.sources.arrays import pixels as as_pixels
from vitreous.data.sources.found import Found, Label, split_name
from vitreous.data.sources.tables import LABEL_COLUMNS
from vitreous.errors import DataError, UnlabelledError, kind
from vitreous.files import cache_root

IMAGE_COLUMNS = ("image", "img", "picture", "pixels", "pixel_values", "x")
MOST_ARRAYS = 1 << 30
"""Bytes of pixels that are kept in memory; more are compressed into a file."""
PREFIX = "memory:"
"""What the recorded name of such data begins with."""


class Item(NamedTuple):
    """One image as it came, and what it shows."""

    picture: np.ndarray | bytes
    label: Label | None


class InMemory:
    """Data that was given as objects: by split, under a name, read on first use."""

    def __init__(self, given: Any) -> None:
        splits = dict(given) if isinstance(given, Mapping) else {"train": given}
        if not splits:
            raise DataError("an empty dictionary is no data: give a dataset, or datasets by split")
        self.splits: dict[str, Any] = {}
        for key, each in splits.items():
            name = split_name(str(key))
            if name is None or name in self.splits:
                raise DataError(f"{key!r} is not a split of its own: name datasets train, val and test")
            if not hasattr(each, "__getitem__") or not hasattr(each, "__len__"):
                raise DataError(
                    f"{type(each).__name__} is no data: give a path, a name, or a dataset with a length "
                    "and items by number (of a stream: a list, or tar shards)"
                )
            self.splits[name] = each
        self.name = _called(next(iter(self.splits.values())))
        self._found: dict[bool, Found] = {}

    def __str__(self) -> str:
        return PREFIX + self.name

    def found(self, labelled: bool = True) -> Found:
        """Read every item once, and return what there is."""
        if labelled not in self._found:
            parts: dict[str, tuple[Images, list[Label]]] = {}
            for split, each in self.splits.items():
                parts[split] = _read(each, split, f"{self} ({split})", labelled)
            self._found[labelled] = Found(parts, self._classes(parts) if labelled else None)
        return self._found[labelled]

    def _classes(self, parts: Mapping[str, tuple[Images, list[Label]]]) -> list[str] | None:
        """Return the names of the classes, where a dataset has them and its labels are numbers."""
        labels = [label for _, rows in parts.values() for row in rows for label in _each(row)]
        if not all(isinstance(label, int) for label in labels):
            return None
        found = (names for each in self.splits.values() if (names := _class_names(each)))
        return next(found, None)


def _called(dataset: Any) -> str:
    """Return a name for the run folder: the data set's own, or that of its kind."""
    known = getattr(getattr(dataset, "info", None), "dataset_name", None)
    sort = "dataset" if isinstance(dataset, list | tuple) else type(_root(dataset)).__name__
    name = known if isinstance(known, str) and known else sort
    return "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in name.lower())


def _root(dataset: Any) -> Any:
    """Return what a part of a data set (torch's `Subset`, `ConcatDataset`) was made of."""
    for _ in range(16):
        if (whole := getattr(dataset, "dataset", None)) is not None:
            dataset = whole
        elif isinstance(several := getattr(dataset, "datasets", None), Sequence) and several:
            dataset = several[0]
        else:
            break
    return dataset


def _class_names(dataset: Any) -> list[str] | None:
    if isinstance(features := getattr(dataset, "features", None), Mapping):
        column = _column(list(features), LABEL_COLUMNS)
        feature = features.get(column) if column else None
        names = getattr(getattr(feature, "feature", feature), "names", None)
    else:
        names = getattr(_root(dataset), "classes", None)
    if not isinstance(names, Sequence) or isinstance(names, str) or not names:
        return None
    return [str(name) for name in names]


def _column(names: Sequence[str], known: Sequence[str]) -> str | None:
    lowered = {name.lower(): name for name in names}
    return next((lowered[name] for name in known if name in lowered), None)


def _rows(dataset: Any) -> Any:
    """Return the data set with its pictures as encoded bytes, if it can give them (Hugging Face's)."""
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping) and hasattr(dataset, "cast_column"):
        for name, feature in features.items():
            if type(feature).__name__ == "Image":
                return dataset.cast_column(name, type(feature)(decode=False))
    return dataset


def _read(dataset: Any, split: str, source: str, labelled: bool) -> tuple[Images, list[Label]]:
    rows = _rows(dataset)
    _require_steady(rows, source)
    labels: list[Label] = []

    def pictures() -> Iterator[np.ndarray | bytes]:
        for number in range(len(rows)):
            item = _item(rows, number, source)
            if item.label is None and labelled:
                raise UnlabelledError(f"{source}: item {number} has no label: give pairs of image and label")
            labels.append("" if item.label is None or not labelled else item.label)
            yield item.picture

    return _stored(pictures(), split), labels


def _require_steady(dataset: Any, source: str) -> None:
    """Refuse a data set whose items change: all randomness must be the run's own."""
    if len(dataset):
        first, again = (_item(dataset, 0, source).picture for _ in range(2))
        same = first == again if isinstance(first, bytes) else np.array_equal(first, again)
        if not same:
            raise DataError(
                f"{source}: item 0 is another picture each time: leave random transforms out, images are "
                "varied by --augment"
            )


def _item(dataset: Any, number: int, source: str) -> Item:
    try:
        row = dataset[number]
    except Exception as error:  # the user's own code
        reason = str(error).partition("\n")[0]
        raise DataError(f"{source}: item {number} can't be read: {type(error).__name__}: {reason}") from error
    if isinstance(row, Mapping):
        names = list(row)
        image, label = _column(names, IMAGE_COLUMNS), _column(names, LABEL_COLUMNS)
        if image is None:
            raise DataError(f"{source}: no picture among {', '.join(map(str, names))}: call it 'image'")
        picture, shows = row[image], None if label is None else row[label]
    elif isinstance(row, tuple | list) and len(row) >= 2:
        picture, shows = row[0], row[1]
    else:
        picture, shows = row, None
    where = f"{source}: item {number}"
    return Item(_picture(picture, where), None if shows is None else _label(shows, where))


def _picture(value: Any, where: str) -> np.ndarray | bytes:
    """Return encoded bytes as they are, and everything else as uint8 (H, W, C)."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping) and ("bytes" in value or "path" in value):  # Hugging Face's, not decoded
        data, path = value.get("bytes"), value.get("path")
        if data is None and not path:
            raise DataError(f"{where} has no picture")
        return bytes(data) if data is not None else Path(str(path)).read_bytes()
    if isinstance(value, Image.Image):
        return to_pixels(value if value.mode in ("L", "RGB") else to_channels(value, 3))
    if callable(numbers := getattr(value, "numpy", None)):  # a tensor is (C, H, W)
        value = np.asarray(numbers())
        value = value.transpose(1, 2, 0) if value.ndim == 3 and value.shape[0] in (1, 3, 4) else value
    if not isinstance(value, np.ndarray):
        raise DataError(f"{where}: {kind(value)} is no picture: give a Pillow image, tensor or array")
    if value.dtype.kind == "f" and value.size and not (value.min() >= 0 and value.max() <= 1):
        raise DataError(
            f"{where}: floats from {value.min():.3g} to {value.max():.3g}: give pictures before they are "
            "normalised, uint8 or floats from 0 to 1; the model's own preprocessing follows"
        )
    return as_pixels(value[None], where)[0]


def _label(value: Any, where: str) -> Label:
    """Return a class by number or name; a list of them where an image has several."""
    if hasattr(value, "tolist"):  # a tensor or an array: of one class, or a 0 or 1 for each class
        value = value.tolist()
        if isinstance(value, list) and len(value) == 1:  # MedMNIST's labels have the shape (1,)
            value = value[0]
        if isinstance(value, list):
            if not all(each in (0, 1) for each in value):
                raise DataError(f"{where}: its label {value!r:.60} is not a 0 or 1 for each class")
            return [number for number, each in enumerate(value) if each]
    if isinstance(value, str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, list | tuple):
        return [each if isinstance(each, str) else int(each) for each in value]  # type: ignore[return-value]
    raise DataError(f"{where}: its label {value!r:.60} is no class: give a whole number, a name or a list")


def _each(row: Label) -> Sequence[str | int]:
    return [row] if isinstance(row, str | int) else row


def _stored(pictures: Iterator[np.ndarray | bytes], split: str) -> Images:
    """Keep pictures: those of one size as arrays while they are few, else all of them in a file."""
    held: list[np.ndarray] = []
    held_bytes = 0
    for each in pictures:
        if isinstance(each, bytes) or (held and each.shape != held[0].shape) or held_bytes > MOST_ARRAYS:
            return _in_file(chain(held, [each], pictures), split)
        held.append(each)
        held_bytes += each.nbytes
    return ArrayImages(np.stack(held) if held else np.empty((0, 1, 1, 1), np.uint8), split)


def _in_file(pictures: Iterator[np.ndarray | bytes], split: str) -> EncodedImages:
    """Write pictures one after the other into a file that is named by its content."""
    folder = cache_root() / "memory"
    draft = folder / f".{os.getpid()}-{split}.part"
    sizes: list[int] = []
    digest = hashlib.blake2b(digest_size=16)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            for each in pictures:
                data = each if isinstance(each, bytes) else _encoded(each)
                sizes.append(len(data))
                digest.update(data)
                file.write(data)
        final = folder / f"{digest.hexdigest()}.bytes"
        draft.replace(final)
    except OSError as error:
        raise DataError(
            f"images can't be copied to {folder}: {error.strerror}: make room there, or set VITREOUS_CACHE"
        ) from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    names = [f"{split}#{number}" for number in range(len(sizes))]
    owner = np.zeros(len(names), np.int32)
    return EncodedImages([str(final)], names, owner=owner, offsets=offsets, sizes=np.array(sizes, np.int64))


def _encoded(pixels: np.ndarray) -> bytes:
    if pixels.shape[2] not in (1, 3, 4):
        raise DataError(f"pictures of {pixels.shape[2]} channels must all have one size: scale them first")
    data = io.BytesIO()
    to_image(pixels).save(data, "PNG", compress_level=1)
    return data.getvalue()
