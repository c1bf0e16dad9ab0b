"""Pictures that are made to cost more than they should: each maker returns one file's bytes.

`MAKERS` has them by name, each as a function of a random generator, so that a fuzzer can draw variants.
"""

import io
import random
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return one chunk of a PNG, with its checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def flat_png(width: int, height: int, extra: bytes = b"") -> bytes:
    """Return a PNG of black pixels, one bit each: a few hundred bytes for millions of them."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    row, rows = bytes(1 + (width + 7) // 8), b""
    for start in range(0, height, 1024):
        rows += packer.compress(row * min(1024, height - start))
    rows += packer.flush()
    return SIGNATURE + chunk(b"IHDR", header) + extra + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def sliver(long: int, short: int = 1, *, upright: bool = False) -> bytes:
    """Return a PNG that is far longer than it is wide: scaled until its shorter side is a model's size, it
    would take gigabytes."""
    return flat_png(short, long) if upright else flat_png(long, short)


def sliver_jpeg(long: int, short: int = 1) -> bytes:
    """Return a JPEG that is far longer than it is wide."""
    buffer = io.BytesIO()
    Image.new("RGB", (long, short), (90, 120, 150)).save(buffer, "JPEG")
    return buffer.getvalue()


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    """Return an image as a file's bytes."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def noise(size: tuple[int, int], seed: int = 0) -> Image.Image:
    """Return an RGB image of random pixels, which no format makes small."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


MAKERS: dict[str, Callable[[random.Random], bytes]] = {
    "sliver": lambda chance: sliver(chance.choice([9000, 16384, 30000, 65000, 25_000_000])),
    "upright sliver": lambda chance: sliver(chance.choice([9000, 65000]), upright=True),
    "sliver jpeg": lambda chance: sliver_jpeg(chance.choice([9000, 30000, 65000])),
    "bomb": lambda chance: flat_png(chance.choice([12_000, 30_000, 65_000]), chance.choice([9_000, 40_000])),
}
