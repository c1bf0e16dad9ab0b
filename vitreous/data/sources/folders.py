"""DATA as a folder of class folders, with or without split folders; classes may be nested."""

import os
from pathlib import Path

from vitreous.data import pictures
from vitreous.data.images import EncodedImages
from vitreous.data.pictures import Tally
from vitreous.data.sources.found import Found, Label, split_name
from vitreous.errors import DataError, UnlabelledError

UNLABELLED = "images"
"""The only class of pictures without labels."""


def open_source(root: Path, labelled: bool = True) -> Found:
    """Find the images below a folder; a class is the folder that an image lies in, named relative to the
    split's root. `labelled=False`: all are of one class, wherever they lie."""
    roots, tally = split_roots(root), Tally()
    splits: dict[str, tuple[EncodedImages, list[Label]]] = {}
    for split, folder in roots:
        images, labels = _images(root, folder, labelled, tally)
        if split in splits:
            raise DataError(f"{root}: two folders are the {split} split: keep one of them")
        if labels:
            splits[split] = (images, labels)
        elif folder != root:
            tally.add(pictures.EMPTY, folder.name)
    if not splits:
        if labelled:  # without labels there is nothing to expect but pictures
            raise UnlabelledError(f"{root}: no images found below it ({_expected()}){_but(tally)}")
        raise DataError(f"{root}: no images found below it{_but(tally)}")
    classes = {label for _, labels in splits.values() for label in labels if isinstance(label, str)}
    if labelled and "train" in splits and len(classes) < 2:
        raise UnlabelledError(
            f"{root}: all images are of one class: put the images of each class into a folder of its own"
            f"{_but(tally)}"
        )
    if roots != [("train", root)]:
        _count_beside(root, {folder for _, folder in roots}, tally)
    return Found({**splits}, left_out=tally.found())


def open_image(path: Path) -> Found:
    """Return one image file as a source of its own."""
    return Found({"train": (EncodedImages([str(path)], [path.name]), [UNLABELLED])})


def split_roots(root: Path) -> list[tuple[str, Path]]:
    """Return the split folders of a data set, or the folder itself as its training split."""
    children = [
        child for child in sorted(root.iterdir()) if os.path.isdir(child) and not child.name.startswith(".")
    ]
    named = [(name, child) for child in children if (name := split_name(child.name))]
    others = [child.name for child in children if not split_name(child.name)]
    if not named or (others and "train" not in {name for name, _ in named}):
        return [("train", root)]  # beside other folders and without "train", "test" may be a class
    return named


def _images(root: Path, folder: Path, labelled: bool, tally: Tally) -> tuple[EncodedImages, list[Label]]:
    paths: list[str] = []
    names: list[str] = []
    labels: list[Label] = []
    loose: list[str] = []
    known: dict[str, tuple[str, str]] = {}
    for path, error in pictures.walk(str(folder), tally, str(root)):
        directory, file = os.path.split(path)
        if error is not None:
            tally.add(pictures.CLOSED, os.path.relpath(path, root))
            continue
        if directory not in known:
            label = Path(directory).relative_to(folder).as_posix() if labelled else UNLABELLED
            known[directory] = label, os.path.relpath(directory, root)
        label, relative = known[directory]
        name = file if relative == "." else os.path.join(relative, file)
        if label == ".":
            loose.append(name)
            continue
        paths.append(path)
        names.append(name)
        labels.append(label)
    if loose and not labels:
        raise UnlabelledError(f"{folder}: {loose[0]} lies outside a class folder: {_expected()}")
    for name in loose:
        tally.add(pictures.LOOSE, name)
    return EncodedImages(paths, names), labels


def _count_beside(root: Path, splits: set[Path], tally: Tally) -> None:
    """Count what lies beside the split folders."""
    for child in sorted(root.iterdir()):
        if child in splits:
            continue
        is_folder = os.path.isdir(child)  # a link that can't be followed is none
        if is_folder and child.name.startswith("."):
            tally.add(pictures.HIDDEN_FOLDER, child.name)
        elif is_folder:
            for path, error in pictures.walk(str(child), tally, str(root)):
                reason = pictures.NO_SPLIT if error is None else pictures.CLOSED
                tally.add(reason, os.path.relpath(path, root))
        else:
            tally.add(pictures.why_not(child.name) or pictures.NO_SPLIT, child.name)


def _but(tally: Tally) -> str:
    """Return what was passed over, for the end of an error."""
    line = pictures.said(tally.found())
    return "" if line is None else f"; {line}"


def _expected() -> str:
    return "expected one folder per class, as in flowers/rose/1.jpg or flowers/train/rose/1.jpg"
