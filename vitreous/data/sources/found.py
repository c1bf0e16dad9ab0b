"""What every source gives: for each split its images and their labels, as they stand in the source."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitreous.data.images import Images
from vitreous.data.pictures import LeftOut

LONGEST_NUMBER = 18
"""Digits of a label that is a number; a longer one is a name."""
Label = str | int | Sequence[str] | Sequence[int]


@dataclass
class Found:
    """The findings of one source, before classes are numbered and splits are made."""

    splits: dict[str, tuple[Images, list[Label]]]
    labels: list[str] | None = None
    """Class names, if the source has them; labels are then numbers into them (or names among them)."""
    mirror: bool = True
    """Whether a mirrored image still shows the same class."""
    left_out: tuple[LeftOut, ...] = ()
    """Files that were passed over, by reason."""


SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def split_name(text: str) -> str | None:
    """Return "train", "val" or "test" for any usual spelling of it, else None."""
    return SPLIT_NAMES.get(text.lower())
