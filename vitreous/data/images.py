"""Stores of a data set's images, read by number; nothing is decoded early.

Two stores hold every source: `EncodedImages` (files, or byte ranges inside larger files) and `ArrayImages`
(pixels in memory). Both are picklable, so that they can be sent to loader workers.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from vitreous.data.decode import MAX_PIXELS, decode, read_file, to_channels
from vitreous.data.descriptors import OpenFiles
from vitreous.errors import DataError
from vitreous.written import encodable


class EncodedImages:
    """Encoded images: whole files, or ranges of bytes in shards."""

    def __init__(
        self,
        paths: Sequence[str],
        names: Sequence[str],
        *,
        owner: np.ndarray | None = None,
        offsets: np.ndarray | None = None,
        sizes: np.ndarray | None = None,
        files: OpenFiles | None = None,
    ) -> None:
        """Without `owner` image i is the file `paths[i]`; with it, a range of the file `paths[owner[i]]`.

        `files`: the open shards, shared with the store that this is a part of; they close with the last."""
        self.paths, self.names = list(paths), [encodable(name) for name in names]
        self.owner, self.offsets, self.sizes = owner, offsets, sizes
        self._files = OpenFiles() if files is None else files

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        """Return an image's name for reports."""
        return self.names[index]

    def path(self, index: int) -> str:
        """Return the file that holds an image."""
        return self.paths[index if self.owner is None else int(self.owner[index])]

    def span(self, index: int) -> tuple[int, int]:
        """Return where an image lies in its file: offset and size; (0, -1) for a whole file."""
        if self.offsets is None or self.sizes is None:
            return 0, -1
        return int(self.offsets[index]), int(self.sizes[index])

    def data(self, index: int) -> bytes:
        """Read an image's bytes."""
        offset, size = self.span(index)
        if size < 0:
            return read_file(self.path(index))
        try:
            data = self._files.read(self.path(index), size, offset)
        except OSError as error:
            raise DataError(f"{self.names[index]}: {error.strerror or error}") from None
        if len(data) < size:
            raise DataError(f"{self.names[index]}: its shard ends {size - len(data):,} bytes early")
        return data

    def read(self, index: int, channels: int = 3, *, shortest: int | None = None) -> Image.Image:
        """Decode an image (see `decode`)."""
        return decode(
            self.data(index), channels, shortest=shortest, name=self.names[index], max_pixels=MAX_PIXELS
        )

    def select(self, indices: np.ndarray) -> "EncodedImages":
        """Return the store of some of the images."""
        if self.owner is None:
            return EncodedImages([self.paths[i] for i in indices], [self.names[i] for i in indices])
        assert self.offsets is not None and self.sizes is not None
        return EncodedImages(
            self.paths,
            [self.names[i] for i in indices],
            owner=self.owner[indices],
            offsets=self.offsets[indices],
            sizes=self.sizes[indices],
            files=self._files,
        )

    @staticmethod
    def join(stores: Sequence["EncodedImages"]) -> "EncodedImages":
        """Return the store of several stores' images, one after the other."""
        paths = [store.path(i) for store in stores for i in range(len(store))]
        spans = np.array([store.span(i) for store in stores for i in range(len(store))], np.int64)
        return EncodedImages(
            paths,
            [name for store in stores for name in store.names],
            owner=np.arange(len(paths)),
            offsets=spans[:, 0],
            sizes=spans[:, 1],
        )


class ArrayImages:
    """Pixels in memory: uint8 (N, H, W, C), with any number of channels."""

    def __init__(self, pixels: np.ndarray, prefix: str = "") -> None:
        self.pixels, self.prefix = pixels, prefix
        self.numbers: np.ndarray | None = None
        self.known: list[str] | None = None

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, index: int) -> str:
        """Return a name for reports: arrays have none, so it is the number in the source."""
        number = int(index if self.numbers is None else self.numbers[index])
        return self.known[number] if self.known is not None else f"{self.prefix}#{number}"

    def data(self, index: int) -> bytes:
        """Return an image's bytes, for hashing."""
        return self.pixels[index].tobytes()

    def read(self, index: int, channels: int = 3, *, shortest: int | None = None) -> Image.Image:
        """Return a Pillow image; arrays of other channel counts are read with `array`."""
        pixels = self.pixels[index]
        if pixels.shape[-1] not in (1, 3, 4):
            raise DataError(f"an array of {pixels.shape[-1]} channels can't be a picture: 1, 3 or 4 can")
        return to_channels(to_image(pixels), channels)

    def array(self, channels: int) -> np.ndarray:
        """Return all pixels with the wanted number of channels, (N, H, W, C)."""
        have = self.pixels.shape[-1]
        if have == channels:
            return self.pixels
        if have == 1 and channels == 3:
            return np.repeat(self.pixels, 3, axis=-1)
        if have in (3, 4) and channels in (1, 3):
            return np.stack([to_pixels(self.read(i, channels)) for i in range(len(self))])
        raise DataError(
            f"arrays of {have} channels can't be read as {channels}: set the model's channels to {have}"
        )

    def select(self, indices: np.ndarray) -> "ArrayImages":
        """Return the store of some of the images; their names stay those of the source."""
        chosen = ArrayImages(self.pixels[indices], self.prefix)
        chosen.numbers = indices if self.numbers is None else self.numbers[indices]
        chosen.known = self.known
        return chosen

    @staticmethod
    def join(stores: Sequence["ArrayImages"]) -> "ArrayImages":
        """Return the store of several stores' images, one after the other."""
        shapes = {store.pixels.shape[1:] for store in stores}
        if len(shapes) > 1:
            raise DataError("the splits' arrays differ in size: measure them one by one")
        joined = ArrayImages(np.concatenate([store.pixels for store in stores]))
        joined.known = [store.name(i) for store in stores for i in range(len(store))]
        return joined


def is_utf8(name: str) -> bool:
    """Tell whether a name can be written down; a file's name may be of any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def to_pixels(image: Image.Image) -> np.ndarray:
    """Return an image as an array (H, W, C)."""
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def to_image(pixels: np.ndarray) -> Image.Image:
    """Return a gray, RGB or RGBA array (H, W, C) as an image."""
    if pixels.shape[2] == 3 and pixels.strides[1] == 1:  # planes side by side, as torch's kernels leave them
        size = (pixels.shape[1], pixels.shape[0])
        return Image.merge(
            "RGB", [Image.frombuffer("L", size, pixels[..., c], "raw", "L", 0, 1) for c in range(3)]
        )
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))


Images = EncodedImages | ArrayImages
