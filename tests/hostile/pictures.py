"""Pictures that are made to cost more than they should: each maker returns one file's bytes.

`MAKERS` has them by name, each as a function of a random generator, so that a fuzzer can draw variants.
"""

import io
import random
import struct
import zlib
from collections.abc import Callable
from functools import cache

import numpy as np
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return one chunk of a PNG, with its checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@cache
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


def many_scans(scans: int, size: tuple[int, int] = (64, 64), *, frame: int = 0xC2) -> bytes:
    """Return a JPEG whose last scan comes again and again: each goes over all pixels for a few bytes.

    `frame` 0xC2: progressive; 0xC0: sequential, with scans of one component each."""
    data = encoded(Image.new("RGB", size, (90, 120, 150)), "JPEG", progressive=frame == 0xC2)
    last = data.rindex(b"\xff\xda")
    first, again = data[:-2], data[last:-2]
    if frame == 0xC0:  # one component, and the rest of the header as it was
        again = b"\xff\xda\x00\x08\x01" + data[last + 5 : last + 7] + data[last + 11 : -2]
        first = data[:last] + again
    return first + again * (scans - first.count(b"\xff\xda")) + b"\xff\xd9"


def hidden_scans(scans: int) -> bytes:
    """Return an ordinary JPEG with a comment that looks like scans, which no decoder reads."""
    data = encoded(noise((16, 16)), "JPEG")
    comment = b"\xff\xda" * scans
    return data[:2] + b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment + data[2:]


def padded_jpeg(bytes_: int) -> bytes:
    """Return a JPEG with so many fill bytes before its first segment."""
    data = encoded(noise((16, 16)), "JPEG")
    return data[:2] + b"\xff" * bytes_ + data[2:]


def many_segments(segments: int) -> bytes:
    """Return a JPEG with so many empty comments."""
    data = encoded(noise((16, 16)), "JPEG")
    return data[:2] + b"\xff\xfe\x00\x02" * segments + data[2:]


def many_chunks(chunks: int) -> bytes:
    """Return a PNG with so many empty chunks before its pixels."""
    return flat_png(16, 16, chunk(b"eMPt", b"") * chunks)


@cache
def text_bomb(unpacked: int) -> bytes:
    """Return a PNG with a compressed text that is large once it is unpacked."""
    return flat_png(16, 16, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(unpacked), 9)))


@cache
def profile_bomb(unpacked: int) -> bytes:
    """Return a PNG with a colour profile that is large once it is unpacked."""
    return flat_png(16, 16, chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(unpacked), 9)))


def overlapping_tags(tags: int, value: int) -> bytes:
    """Return a TIFF directory of many tags that all point at the same bytes, as a file or an EXIF block."""
    entries = b"".join(struct.pack("<HHLL", 40_000 + k, 7, value, 0) for k in range(tags))
    return b"II*\0" + struct.pack("<LH", 8, tags) + entries + bytes(4 + value)


def exif_bomb(tags: int = 2000, value: int = 40_000) -> bytes:
    """Return a JPEG whose EXIF block claims far more than it holds."""
    return encoded(noise((16, 16)), "JPEG", exif=b"Exif\0\0" + overlapping_tags(tags, value))


def many_frames(frames: int, format: str = "GIF") -> bytes:
    """Return an animation, of which the first frame counts alone."""
    first, *others = (noise((16, 16), seed) for seed in range(frames))
    return encoded(first, format, save_all=True, append_images=others)


def many_blocks(blocks: int) -> bytes:
    """Return a GIF with so many empty comments before its first frame."""
    data = encoded(Image.new("L", (16, 16)), "GIF")
    start = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    return data[:start] + b"!\xfe\0" * blocks + data[start:]


def long_comment(pieces: int) -> bytes:
    """Return a GIF with one comment of so many pieces before its first frame."""
    data = encoded(Image.new("L", (16, 16)), "GIF")
    start = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    return data[:start] + b"!\xfe" + b"\1a" * pieces + b"\0" + data[start:]


def many_strips(strips: int) -> bytes:
    """Return a TIFF whose every pixel is said to be a tile of its own."""
    tags = [
        (256, 4, 1, 400),
        (257, 4, 1, 400),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (277, 3, 1, 1),
    ]
    tags += [(322, 3, 1, 1), (323, 3, 1, 1), (324, 4, strips, 200), (325, 4, strips, 200)]
    entries = b"".join(struct.pack("<HHLL", *tag) for tag in tags)
    head = b"II*\0" + struct.pack("<LH", 8, len(tags)) + entries + bytes(4)
    return head.ljust(200, b"\0") + bytes(4 * strips)


def run_length_bmp(width: int, height: int) -> bytes:
    """Return a run-length encoded BMP, which Pillow decodes in Python, of runs of one pixel."""
    palette = b"".join(bytes((k, k, k, 0)) for k in range(256))
    offset = 54 + len(palette)
    rows = (b"\1\7" * width + b"\0\0") * height + b"\0\1"
    info = struct.pack("<LiiHHLLiiLL", 40, width, height, 1, 8, 1, len(rows), 0, 0, 256, 0)
    return b"BM" + struct.pack("<LHHL", offset + len(rows), 0, 0, offset) + info + palette + rows


MAKERS: dict[str, Callable[[random.Random], bytes]] = {
    "sliver": lambda chance: sliver(chance.choice([9000, 16384, 30000, 65000, 25_000_000])),
    "upright sliver": lambda chance: sliver(chance.choice([9000, 65000]), upright=True),
    "sliver jpeg": lambda chance: sliver_jpeg(chance.choice([9000, 30000, 65000])),
    "scans": lambda chance: many_scans(chance.choice([101, 1000, 4000]), (chance.choice([64, 1024]), 64)),
    "baseline scans": lambda chance: many_scans(chance.choice([101, 1000]), frame=0xC0),
    "hidden scans": lambda chance: hidden_scans(chance.randrange(100, 30_000)),
    "padding": lambda chance: padded_jpeg(chance.choice([10, 100_000, 10_000_000])),
    "segments": lambda chance: many_segments(chance.choice([1000, 1_000_000])),
    "chunks": lambda chance: many_chunks(chance.choice([1000, 1_000_000])),
    "text": lambda chance: text_bomb(chance.choice([1 << 20, 1 << 28])),
    "profile": lambda chance: profile_bomb(chance.choice([1 << 20, 1 << 28])),
    "tags": lambda chance: overlapping_tags(chance.choice([100, 20_000]), chance.choice([1000, 1_000_000])),
    "exif": lambda chance: exif_bomb(chance.randrange(1000, 2000)),
    "frames": lambda chance: many_frames(chance.randrange(2, 40), chance.choice(["GIF", "WEBP", "TIFF"])),
    "blocks": lambda chance: many_blocks(chance.choice([100, 300_000])),
    "comment": lambda chance: long_comment(chance.choice([1000, 300_000])),
    "strips": lambda chance: many_strips(chance.choice([1000, 160_000])),
    "run lengths": lambda chance: run_length_bmp(chance.choice([100, 3000]), chance.choice([100, 3000])),
    "bomb": lambda chance: flat_png(chance.choice([12_000, 30_000]), 9_000),
}
