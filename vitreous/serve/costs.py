"""What a picture will cost to decode, from the first bytes of its header; nothing is decoded here.

The walk through a header is bounded, as it runs on the event loop. One unit of work is a pixel of a plain
JPEG, about 20 ns; the factors of other formats were measured relative to it.
"""

from typing import NamedTuple

from vitreous.data.headers import FACTORS, FRAMES, PROGRESSIVE

CHEAP_WORK = 3_000_000
"""Units up to which work is little: if it surely is no more, it is decoded in a thread; what is dearer, or
not known, in a process that can be ended."""
CHEAP_BYTES = 4 << 20
MAX_SEGMENTS = 64
MAX_CHUNKS = 1024
MAX_AVIF_HEAD = 4096
UNKNOWN_PIXELS_PER_BYTE = 16
SCAN_FACTOR = 0.1
"""What each scan of a JPEG of few bytes adds to a pixel's cost."""
MANY_SCANS = 6.0
"""What a pixel of a progressive JPEG costs that has too many bytes to count its scans here."""


class Cost(NamedTuple):
    """The expected work; whether it is little, and whether it is surely no more than that."""

    work: float
    little: bool
    sure: bool


def cost(data: bytes, max_pixels: int) -> Cost:
    """Return what an encoded picture will cost; no more than `max_pixels` of it are ever decoded."""
    known: float | None
    bounded = False
    if data[:3] == b"\xff\xd8\xff":
        known, bounded = _jpeg(data)
    elif data[:8] == b"\x89PNG\r\n\x1a\n":
        known, bounded = _png(data)
    else:
        known = _other(data)
    if known is None:
        return Cost(FACTORS["TIFF"] * min(max_pixels, UNKNOWN_PIXELS_PER_BYTE * len(data)), False, False)
    little = known <= CHEAP_WORK and len(data) <= CHEAP_BYTES
    return Cost(known, little, little and bounded)


def _jpeg(data: bytes) -> tuple[float | None, bool]:
    place = 2
    for _ in range(MAX_SEGMENTS):
        head = data[place : place + 9]
        if len(head) < 9 or head[0] != 0xFF:
            break
        if head[1] in FRAMES:
            pixels = int.from_bytes(head[5:7]) * int.from_bytes(head[7:9])
            if len(data) > CHEAP_BYTES:
                return pixels * (MANY_SCANS if head[1] in PROGRESSIVE else 2.0), False
            # Markers in pictures inside the header are counted too: at most one too many for a thumbnail
            return pixels * (1 + SCAN_FACTOR * data.count(b"\xff\xda", place)), True
        place += 2 + int.from_bytes(head[2:4])
    return None, False


def _png(data: bytes) -> tuple[float | None, bool]:
    if data[12:16] != b"IHDR" or len(data) < 33:
        return None, False
    pixels = int.from_bytes(data[16:20]) * int.from_bytes(data[20:24])
    work = pixels * FACTORS["PNG"] * (2 if data[24] == 16 else 1)
    place, chunks = 8, 0
    while place + 8 <= len(data) and chunks < MAX_CHUNKS:
        place += 12 + int.from_bytes(data[place : place + 4])
        chunks += 1
    return work, chunks < MAX_CHUNKS


def _other(data: bytes) -> float | None:
    def little(start: int, size: int) -> int:
        return int.from_bytes(data[start : start + size], "little")

    if data[:3] == b"GIF":
        return FACTORS["GIF"] * little(6, 2) * little(8, 2)
    if data[:2] == b"BM":
        packed = little(30, 4) in (1, 2)
        factor = FACTORS["BMP, run lengths" if packed else "BMP"]
        return factor * little(18, 4) * min(little(22, 4), (1 << 32) - little(22, 4))
    if data[8:12] == b"WEBP":
        kind = data[12:16]
        if kind == b"VP8X":
            return FACTORS["WEBP"] * (1 + little(24, 3)) * (1 + little(27, 3))
        if kind == b"VP8L":
            bits = little(21, 4)
            return FACTORS["WEBP"] * (1 + (bits & 0x3FFF)) * (1 + (bits >> 14 & 0x3FFF))
        return FACTORS["WEBP"] * (little(26, 2) & 0x3FFF) * (little(28, 2) & 0x3FFF)
    if data[4:8] == b"ftyp":
        return _avif(data[:MAX_AVIF_HEAD])
    return None


def _avif(head: bytes) -> float | None:
    """Return the work of the largest picture in the file: thumbnails and tiles have sizes too."""
    most, place = 0, 0
    while (place := head.find(b"ispe", place)) >= 0:
        place += 16
        sides = head[place - 8 : place - 4], head[place - 4 : place]
        most = max(most, int.from_bytes(sides[0]) * int.from_bytes(sides[1]))
    return FACTORS["AVIF"] * most if most else None
