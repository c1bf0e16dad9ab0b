"""Work that an encoded picture asks for besides its pixels, counted in its bytes before it is decoded.

A few bytes can ask for minutes: thousands of scans over all pixels of a JPEG, or millions of empty blocks.
Nothing is decoded here; what is not understood is left to the decoder, which will name it.
"""

import re
import struct
from collections.abc import Iterator

from vitreous.errors import DataError

MAX_SCANS = 100
"""Progressive JPEGs have about 10; each scan goes over all pixels."""
SCANS_OF_ALL = 20
"""Scans that an image of the most pixels may have; a smaller one may have more, up to `MAX_SCANS`."""
MAX_BLOCKS = 100_000
"""Chunks, strips or tags: an 80-megapixel PNG has some 80,000 chunks, a TIFF as many strips as rows."""
MAX_SEGMENTS = 10_000
"""Segments of a JPEG before its first scan, and blocks of a GIF before its first frame."""
MAX_FILLER = 1 << 16
"""Meaningless bytes of a JPEG before its first scan, in all."""
MAX_RUNS = 1 << 22
"""Pixels, and bytes, of a run-length encoded BMP: Pillow decodes those in Python."""
FACTORS = {
    "WEBP": 2.5,
    "GIF": 1.5,
    "BMP": 1.0,
    "BMP, run lengths": 35.0,
    "AVIF": 6.0,
    "TIFF": 1.5,
    "PNG": 2.0,
}
"""Cost of decoding a pixel, relative to one of a plain JPEG (about 20 ns), as measured on the dearest."""
SCAN_FACTOR = 0.25
"""What each scan of a JPEG adds to that, at most: those of few bytes add less."""

MARKER = re.compile(rb"\xff([\x01-\xfe])")
SCAN = 0xDA
END = 0xD9
FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
STANDALONE = frozenset({0x01, 0xD8, *range(0xD0, 0xD8)})


def check_structure(data: bytes) -> None:
    """Refuse a file that has more parts than any picture needs."""
    for signature, check in CHECKS.items():
        if data.startswith(signature):
            check(data)


def check_scans(data: bytes, pixels: int, max_pixels: int) -> None:
    """Refuse a JPEG with more scans than an image of this many pixels may have."""
    allowed = min(MAX_SCANS, SCANS_OF_ALL * max_pixels // max(1, pixels))
    if not _has_several_scans(data) or data.count(b"\xff\xda") <= allowed:  # that many or fewer
        return
    scans = 0
    for number, (marker, _) in enumerate(_segments(data, len(data))):
        scans += marker == SCAN
        if scans > allowed:
            raise DataError(f"more than {allowed} scans, the limit for its size: save the image anew")
        if number > MAX_BLOCKS:
            raise DataError(f"more than {MAX_BLOCKS:,} segments: save the image anew")


def count_scans(data: bytes) -> int:
    """Return how many scans a JPEG has, or a few more: what looks like one is counted."""
    return data.count(b"\xff\xda") if _has_several_scans(data) else 1


def _has_several_scans(data: bytes) -> bool:
    """Tell whether a JPEG may have several scans: by its frame, or because the first lacks components."""
    components = b""
    for marker, start in _segments(data, MAX_FILLER):
        if marker in PROGRESSIVE:
            return True
        if marker in FRAMES:
            components = data[start + 9 : start + 10]
        if marker == SCAN:
            return data[start + 4 : start + 5] < components
    return False


def _segments(data: bytes, within: int) -> Iterator[tuple[int, int]]:
    """Yield each marker of a JPEG up to its end, and its position; the contents of segments are skipped.

    Each next marker is searched for within `within` bytes."""
    position = 2
    while (found := MARKER.search(data, position, position + within)) is not None:
        marker, position = found.group(1)[0], found.end()
        if marker in STANDALONE:
            continue
        yield marker, found.start()
        if marker == END:
            return
        position += max(2, int.from_bytes(data[position : position + 2], "big"))


def _check_jpeg(data: bytes) -> None:
    end, filler = 2, 0
    for number, (marker, start) in enumerate(_segments(data, MAX_FILLER)):
        filler += max(0, start - end)
        if number > MAX_SEGMENTS or filler > MAX_FILLER:
            raise DataError("its header is filled with empty segments or bytes: save the image anew")
        if marker == SCAN:
            return
        end = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    if len(data) - end > MAX_FILLER:
        raise DataError("its header is filled with empty segments or bytes: save the image anew")


def _check_png(data: bytes) -> None:
    position, count = 8, 0
    while position + 8 <= len(data):
        count += 1
        if count > MAX_BLOCKS:
            raise DataError(f"more than {MAX_BLOCKS:,} chunks: save the image anew")
        position += 12 + int.from_bytes(data[position : position + 4], "big")


def _check_gif(data: bytes) -> None:
    """Count the blocks before the first frame."""
    if len(data) < 13:
        return
    position = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    for _ in range(MAX_SEGMENTS):
        if data[position : position + 1] != b"!":  # a frame, the end, or nothing that is a GIF
            return
        position += 2
        for _ in range(MAX_SEGMENTS):
            size = data[position : position + 1]
            position += 1 + (size[0] if size else 0)
            if size in (b"\0", b""):
                break
        else:
            break
    raise DataError(f"more than {MAX_SEGMENTS:,} blocks before its first frame: save the image anew")


def _check_tiff(data: bytes) -> None:
    """Count the tags of the first directory, and the values of each: strips and tiles are among them."""
    order = "<" if data.startswith(b"II") else ">"
    large = data[2:4] in (b"+\0", b"\0+")
    place, count, entry = ("Q", "Q", "HHQQ") if large else ("L", "H", "HHLL")
    try:
        (start,) = struct.unpack_from(order + place, data, 8 if large else 4)
        (tags,) = struct.unpack_from(order + count, data, start)
        start += struct.calcsize(order + count)
        size = struct.calcsize(order + entry)
        for number in range(min(tags, MAX_SEGMENTS + 1)):
            tag, _, values, _ = struct.unpack_from(order + entry, data, start + number * size)
            if tag in (273, 279, 324, 325) and values > MAX_BLOCKS:
                raise DataError(f"{values:,} strips or tiles are more than the limit of {MAX_BLOCKS:,}")
    except (struct.error, OverflowError):
        return
    if tags > MAX_SEGMENTS:
        raise DataError(f"{tags:,} tags are more than the limit of {MAX_SEGMENTS:,}: save the image anew")


def _check_bmp(data: bytes) -> None:
    """Bound what is run-length encoded."""
    if len(data) < 34 or int.from_bytes(data[30:34], "little") not in (1, 2):
        return
    width, height = (abs(side) for side in struct.unpack_from("<ii", data, 18))
    if width * height > MAX_RUNS or len(data) > MAX_RUNS:
        raise DataError(
            f"a run-length encoded BMP of {width}x{height} pixels and {len(data):,} bytes: over "
            f"{MAX_RUNS:,} of either is refused, save it as PNG"
        )


CHECKS = {
    b"\xff\xd8": _check_jpeg,
    b"\x89PNG": _check_png,
    b"GIF8": _check_gif,
    b"II": _check_tiff,
    b"MM": _check_tiff,
    b"BM": _check_bmp,
}
