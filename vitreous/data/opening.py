"""`open_data`: from what the user wrote to an open data set; recognises the source, numbers the classes,
makes splits."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitreous.data import content, holdout
from vitreous.data.decode import SUFFIXES
from vitreous.data.images import ArrayImages, is_utf8
from vitreous.data.sources import arrays, folders, named, parquet, shards, tables
from vitreous.data.sources.found import LONGEST_NUMBER, Found, Label
from vitreous.data.sources.memory import PREFIX, InMemory
from vitreous.data.split import Dataset, Split
from vitreous.errors import DataError, UnlabelledError, nearest
from vitreous.written import encodable

MOST_TARGETS = 1 << 32
"""Images times labels where an image has several: one byte each."""


def open_data(
    spec: str | Path | InMemory,
    *,
    data_root: str | Path | None = None,
    seed: int = 0,
    carve: bool = True,
    labelled: bool = True,
) -> Dataset:
    """Open DATA: a folder, CSV, Parquet, tar shards, a local Hugging Face folder, `.npz`, idx files, a name,
    or what a program has in memory.

    If the source has neither "val" nor "test", each is a tenth of its training images; if it has a test split
    alone, "val" is. From 25,000 images on it is a twentieth. `carve=False` leaves the splits as they are.
    `labelled=False` takes all pictures of a folder, wherever they lie, as one class.
    """
    if str(spec) == "digits":
        return _digits()
    if isinstance(spec, InMemory):
        return _assemble(spec.found(labelled), str(spec), seed, carve)
    found = recognise(spec, Path(data_root) if data_root is not None else None, labelled)
    return _assemble(found, str(spec), seed, carve)


def open_pictures(
    spec: str | Path | InMemory, *, data_root: str | Path | None = None, seed: int = 0, carve: bool = True
) -> Dataset:
    """Open DATA with its labels, or as pictures of one class where it has none, as in a flat folder."""
    try:
        return open_data(spec, data_root=data_root, seed=seed, carve=carve)
    except UnlabelledError:
        return open_data(spec, data_root=data_root, seed=seed, carve=carve, labelled=False)


def is_image(spec: str | Path | InMemory) -> bool:
    """Tell whether DATA is one image file."""
    path = Path(str(spec)).expanduser()
    return path.suffix.lower() in SUFFIXES and path.is_file()


def open_image(spec: str | Path) -> Dataset:
    """Open one image file as a data set of its own, without labels."""
    return _assemble(folders.open_image(Path(spec).expanduser()), str(spec), 0, carve=False)


def limit_training(dataset: Dataset, images: int, seed: int = 0) -> Dataset:
    """Return the data set with at most `images` training images, a fifth of them as val; test is untouched.

    As VTAB does it: 1,000 images, 800 to learn from and 200 to choose with. Which ones is a function of
    (seed, content).
    """
    if images < 5:
        raise DataError(f"{images} training images leave none to choose with: use 5 or more")
    whole = dataset.splits.get("train")
    if whole is None or not len(whole):
        raise DataError("the data has no images to learn from: a train split is needed")
    chosen = np.argsort(holdout.places(whole.digests, seed), kind="stable")[:images]
    cut = max(1, len(chosen) * 4 // 5)
    parts = {"train": np.sort(chosen[:cut]), "val": np.sort(chosen[cut:])}
    splits = {**dataset.splits, **{name: whole.select(rows) for name, rows in parts.items()}}
    return replace(dataset, splits=splits, fingerprint=_fingerprint(splits, dataset.labels))


def keep_classes(dataset: Dataset, wanted: Sequence[int]) -> Dataset:
    """Return the data set with the images of some classes alone, which are numbered anew in that order."""
    if dataset.multilabel:
        raise DataError("images with several labels can't be split by class: give one label per image")
    numbers = np.full(len(dataset.labels), -1)
    numbers[list(wanted)] = np.arange(len(wanted))
    splits = {}
    for name, whole in dataset.splits.items():
        part = whole.select(np.flatnonzero(numbers[whole.targets] >= 0))
        splits[name] = replace(part, targets=numbers[part.targets], classes=len(wanted))
    labels = [dataset.labels[number] for number in wanted]
    return replace(dataset, labels=labels, splits=splits, fingerprint=_fingerprint(splits, labels))


def recognise(spec: str | Path, data_root: Path | None, labelled: bool = True) -> Found:
    """Return what the source holds, whichever kind of source it is."""
    path = Path(spec).expanduser()
    if str(spec).lower() in named.NAMES and not path.exists():
        return named.open_source(str(spec).lower(), data_root)
    if not path.exists() and data_root is not None and (data_root / path).exists():
        path = data_root / path
    if path.is_dir():
        return _folder(path, labelled)
    if path.is_file():
        return _file(path)
    if str(spec).startswith(PREFIX):
        raise DataError(f"{spec} was given to a Python function as an object: give it there again")
    names = ", ".join(named.NAMES)
    raise DataError(
        f"no data at {str(spec)!r}: give a folder or file that exists, or one of "
        f"{names}{nearest(str(spec), named.NAMES)}"
    )


def _folder(path: Path, labelled: bool) -> Found:
    if files := arrays.find_idx(path):
        return arrays.open_idx(files)
    if shards.find_shards(path):
        return shards.open_source(path)
    if parquet.is_hub_folder(path):
        return parquet.open_hub_folder(path)
    if (path / "metadata.csv").is_file():
        return tables.open_csv(path / "metadata.csv")
    return folders.open_source(path, labelled)


def _file(path: Path) -> Found:
    ending = path.suffix.lower()
    if ending in (".csv", ".tsv"):
        return tables.open_csv(path)
    if ending in (".parquet", ".pq"):
        return parquet.open_parquet(path)
    if ending == ".tar":
        return shards.open_source(path)
    if ending == ".npz":
        return arrays.open_npz(path)
    raise DataError(f"{path}: data files are .csv, .tsv, .parquet, .tar or .npz; unpack an archive first")


def _digits() -> Dataset:
    pixels, targets = named.open_digits()
    images = ArrayImages(pixels, "digits")
    whole = Split(images, targets, len(named.DIGITS), content.digests(images), mirror=False)
    parts = holdout.exact_thirds(whole.digests, targets, val=0.1, test=0.2)
    splits = {name: whole.select(rows) for name, rows in parts.items()}
    return Dataset(list(named.DIGITS), False, splits, _fingerprint(splits, named.DIGITS))


def _assemble(found: Found, source: str, seed: int, carve: bool) -> Dataset:
    """Number the classes, hash the images, and carve the splits that are missing."""
    found.splits = {name: (images, rows) for name, (images, rows) in found.splits.items() if len(images)}
    if not found.splits:
        raise DataError(f"{source}: it has no images")
    labels, numbered = _number(found, source)
    multilabel = any(isinstance(row, list) for rows in numbered.values() for row in rows)
    splits: dict[str, Split] = {}
    for name, (images, _) in found.splits.items():
        targets = _targets(numbered[name], len(labels), multilabel)
        splits[name] = Split(images, targets, len(labels), content.digests(images), found.mirror)
    parts = held_out(splits, seed) if carve else {}
    splits |= {name: splits["train"].select(rows) for name, rows in parts.items()}
    missing = tuple(name for name in parts if name != "train")
    ordered = {name: splits[name] for name in ("train", "val", "test") if name in splits}
    return Dataset(
        labels,
        multilabel,
        ordered,
        _fingerprint(ordered, labels),
        carved=missing,
        numbered=_has_numbers_alone(found),
        left_out=found.left_out,
    )


def held_out(splits: Mapping[str, Split], seed: int) -> dict[str, np.ndarray]:
    """Return which of the training images become val and test where the source has none, and which stay.

    Nothing where it has a val split, or no images to learn from.
    """
    if "train" not in splits or "val" in splits:
        return {}
    missing = ("val",) if "test" in splits else ("val", "test")
    train = splits["train"]
    parts = holdout.carve(train.digests, train.targets, missing, seed)
    if not len(parts["train"]):  # copies of one image, which fall on one side
        return {"train": np.arange(len(train))}
    return {name: rows for name, rows in parts.items() if name == "train" or len(rows)}


def _has_numbers_alone(found: Found) -> bool:
    rows = (row for _, rows in found.splits.values() for row in rows)
    return found.labels is None and all(isinstance(label, int) for row in rows for label in _each(row))


def _number(found: Found, source: str) -> tuple[list[str], dict[str, list[int | list[int]]]]:
    """Return the class names and each image's class number (or numbers)."""
    everything = [label for _, rows in found.splits.values() for row in rows for label in _each(row)]
    if found.labels is not None:
        names = list(found.labels)
    else:
        names = _sorted_names({_name(label, source) for label in everything})
    if (odd := next((name for name in names if not is_utf8(name)), None)) is not None:
        raise DataError(f"{source}: the class '{encodable(odd)}' is not named in UTF-8: rename it")
    if len(set(names)) < len(names):
        raise DataError(f"{source}: two classes have the same name: make class names unique")
    numbers = {name: number for number, name in enumerate(names)}
    numbered: dict[str, list[int | list[int]]] = {}
    for split, (_, rows) in found.splits.items():
        numbered[split] = [_numbered(row, numbers, source, by_name=found.labels is None) for row in rows]
    return names, numbered


def _name(label: str | int, source: str) -> str:
    """Return the name of a class that has nothing but its label: a number is its own name."""
    if isinstance(label, int) and label < 0:
        raise DataError(f"{source}: label {label} is negative: labels are numbers from 0 on, or names")
    return str(int(label)) if isinstance(label, int) else label


def _sorted_names(names: set[str]) -> list[str]:
    if all(name.isdecimal() and len(name) <= LONGEST_NUMBER for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _each(row: Label) -> Sequence[str | int]:
    return [row] if isinstance(row, str | int) else row


def _numbered(row: Label, numbers: dict[str, int], source: str, *, by_name: bool) -> int | list[int]:
    """Return the class of a label, or of each: by its name, or as a number among names that are given."""
    count = len(numbers)
    if not isinstance(row, str | int):
        several = (_numbered(label, numbers, source, by_name=by_name) for label in row)
        return [number for number in several if isinstance(number, int)]
    if by_name:
        return numbers[_name(row, source)]
    if isinstance(row, int):
        if not 0 <= row < count:
            raise DataError(
                f"{source}: label {row} is outside 0 to {count - 1}, the {count} classes: correct the label"
            )
        return row
    if row not in numbers:
        raise DataError(f"{source}: label {row!r} is not one of the {count} classes{nearest(row, numbers)}")
    return numbers[row]


def _targets(rows: Sequence[int | list[int]], classes: int, multilabel: bool) -> np.ndarray:
    if not multilabel:
        return np.array(rows, np.int64)
    if len(rows) * classes > MOST_TARGETS:
        raise DataError(f"{len(rows):,} images with any of {classes:,} labels: too many, use fewer labels")
    targets = np.zeros((len(rows), classes), bool)
    for i, row in enumerate(rows):
        targets[i, row] = True
    return targets


def _fingerprint(splits: dict[str, Split], labels: Sequence[str]) -> str:
    """Hash contents with their targets and splits; the order of images and their names don't count."""
    whole = hashlib.blake2b("\0".join(labels).encode(), digest_size=16)
    for name, split in splits.items():
        targets = (
            split.targets.astype(np.int64).reshape(len(split), -1).view(np.uint8).reshape(len(split), -1)
        )
        rows = np.concatenate([split.digests, targets], axis=1) if len(split) else np.empty((0, 1), np.uint8)
        whole.update(f"\0{name}\0{len(split)}\0".encode())
        whole.update(b"".join(sorted(row.tobytes() for row in rows)))
    return whole.hexdigest()
