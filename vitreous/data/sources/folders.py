"""DATA as a folder of class folders, with or without split folders; classes may be nested."""

import os
from pathlib import Path

from vitreous.data.decode import SUFFIXES
from vitreous.data.images import EncodedImages
from vitreous.data.sources.found import Found, Label, split_name
from vitreous.errors import DataError

UNLABELLED = "images"
"""The only class of pictures without labels."""


def open_source(root: Path, labelled: bool = True) -> Found:
    """Find the images below a folder; a class is the folder that an image lies in, named from the split's
    root. `labelled=False`: all are of one class, wherever they lie."""
    roots = split_roots(root)
    splits: dict[str, tuple[EncodedImages, list[Label]]] = {}
    for split, folder in roots:
        images, labels = _images(root, folder, labelled)
        if split in splits:
            raise DataError(f"{root}: two folders are the {split} split: keep one of them")
        if labels:
            splits[split] = (images, labels)
    if not splits:
        raise DataError(f"{root}: no images found below it ({_expected()})")
    classes = {label for _, labels in splits.values() for label in labels if isinstance(label, str)}
    if labelled and "train" in splits and len(classes) < 2:
        raise DataError(
            f"{root}: all images are of one class: put the images of each class into a folder of its own"
        )
    return Found({**splits})


def split_roots(root: Path) -> list[tuple[str, Path]]:
    """Return the split folders of a data set, or the folder itself as its training split."""
    children = [
        child for child in sorted(root.iterdir()) if child.is_dir() and not child.name.startswith(".")
    ]
    named = [(name, child) for child in children if (name := split_name(child.name))]
    others = [child.name for child in children if not split_name(child.name)]
    if not named or (others and "train" not in {name for name, _ in named}):
        return [("train", root)]  # a class may be called "test": splits are meant only where they stand alone
    return named


def _images(root: Path, folder: Path, labelled: bool) -> tuple[EncodedImages, list[Label]]:
    paths: list[str] = []
    names: list[str] = []
    labels: list[Label] = []
    loose: list[str] = []
    for directory, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        label = Path(directory).relative_to(folder).as_posix() if labelled else UNLABELLED
        for file in sorted(files):
            if file.startswith(".") or os.path.splitext(file)[1].lower() not in SUFFIXES:
                continue
            path = os.path.join(directory, file)
            if label == ".":
                loose.append(file)
                continue
            paths.append(path)
            names.append(os.path.relpath(path, root))
            labels.append(label)
    if loose and not labels:
        raise DataError(f"{folder}: {loose[0]} lies outside a class folder: {_expected()}")
    return EncodedImages(paths, names), labels


def _expected() -> str:
    return "expected one folder per class, as in flowers/rose/1.jpg or flowers/train/rose/1.jpg"
