"""What a data set is once it is open: splits of images that are read by number, with what they show."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from vitreous.data.decode import open_header, upright_size
from vitreous.data.images import ArrayImages, EncodedImages, Images
from vitreous.data.pictures import LeftOut
from vitreous.errors import DataError


@dataclass
class Split:
    """One part of a data set: images by number, and what they show."""

    images: Images
    targets: np.ndarray
    """int64 (N,), or bool (N, K) where an image has several labels."""
    classes: int
    digests: np.ndarray = field(repr=False)
    """uint8 (N, 16): a hash of each image's content."""
    mirror: bool = True
    """Whether a mirrored image still shows the same class (not so for digits and letters)."""

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        """Return the file name of an image, for reports."""
        return self.images.name(index)

    def read(self, index: int, channels: int = 3) -> Image.Image:
        """Decode an image."""
        return self.images.read(index, channels)

    def sample(self, most: int) -> np.ndarray:
        """Return the numbers of so many images at most, evenly spread over the split."""
        return np.unique(np.linspace(0, len(self) - 1, min(most, len(self))).astype(int))

    def select(self, indices: np.ndarray) -> "Split":
        """Return the split of some of the images, in that order."""
        return Split(
            self.images.select(indices),
            self.targets[indices],
            self.classes,
            self.digests[indices],
            self.mirror,
        )


@dataclass(frozen=True)
class Dataset:
    """An open data set."""

    labels: list[str]
    multilabel: bool
    splits: dict[str, Split]
    fingerprint: str
    """A hash of the content of every image with its label and split; not of file names or times."""
    carved: tuple[str, ...] = ()
    """Splits that the source did not have and that were made from its training images."""
    numbered: bool = False
    """Whether the source has numbers for classes, without names, as arrays have; `labels` are those."""
    left_out: tuple[LeftOut, ...] = ()
    """Files of the source that were passed over, by reason."""

    def part(self, name: str | None) -> tuple[str, Split]:
        """Return the name and the split to measure on: by name, `all` as one; by default test, else val, else
        train."""
        filled = {each: split for each, split in self.splits.items() if len(split)}
        if name is None:
            name = next((each for each in ("test", "val") if each in filled), "train")
        if name == "all" and filled:
            return name, join(list(filled.values()))
        if name not in self.splits:
            raise DataError(f"the data has no split {name!r}: it has {', '.join(self.splits)}")
        if name not in filled:
            raise DataError(f"the split {name!r} has no images")
        return name, filled[name]


def join(splits: Sequence[Split]) -> Split:
    """Return several splits of a data set as one, in their order."""
    if len(splits) == 1:
        return splits[0]
    stores = [split.images for split in splits]
    if all(isinstance(store, EncodedImages) for store in stores):
        images: Images = EncodedImages.join([store for store in stores if isinstance(store, EncodedImages)])
    else:
        images = ArrayImages.join([store for store in stores if isinstance(store, ArrayImages)])
    return Split(
        images,
        np.concatenate([split.targets for split in splits]),
        splits[0].classes,
        np.concatenate([split.digests for split in splits]),
        splits[0].mirror,
    )


SIZES = 64
"""Images of a split whose size is looked at."""


def typical_size(split: Split) -> tuple[int, int]:
    """Return the height and width that images of a split mostly have: the medians of a sample's headers."""
    if isinstance(split.images, ArrayImages):
        height, width = split.images.pixels.shape[1:3]
        return int(height), int(width)
    sizes = []
    for index in range(0, len(split), max(1, len(split) // SIZES)):
        try:
            sizes.append(upright_size(open_header(split.images.data(index), name=split.name(index))))
        except DataError:
            continue  # one bad file costs itself only; the loader will name it
    if not sizes:
        raise DataError("none of the images that were tried can be read: run `vitreous check` on the data")
    height, width = np.median(sizes, axis=0)
    return int(height), int(width)
