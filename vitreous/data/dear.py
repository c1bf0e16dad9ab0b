"""Dear pictures, which may take seconds to decode: each in its own process, with limits on time and memory.

Cheap ones never get here and pay nothing. Limits on what a header may ask for are in `headers`; this is for
what is allowed and still takes long, and for decoders that do not end.
"""

import os
import threading
from collections.abc import Callable

import numpy as np
from PIL import Image

from vitreous.data.guarded import TooCostly, Workers
from vitreous.data.headers import FACTORS, SCAN_FACTOR, count_scans
from vitreous.errors import DataError

DEAR_WORK = 60_000_000
"""Units of work (a pixel of a plain JPEG, about 20 ns) beyond which a picture is dear: about 1.2 s."""
SECONDS = 60.0
"""Time limit of a dear picture; the dearest that `headers` allows take 10 s on one core."""
MEMORY = (256 << 20) + 40 * 80_000_000
MOST_PIXELS = 4 * 80_000_000
"""Bytes of the largest picture, decoded."""

_starting = threading.Lock()


def is_dear(image: Image.Image, data: bytes) -> bool:
    """Judge by its header whether a picture may take long to decode; without `fork` none can be ended."""
    if not hasattr(os, "fork"):
        return False
    pixels = image.width * image.height
    if pixels * FACTORS["BMP, run lengths"] <= DEAR_WORK:  # the dearest factor: most pictures end here
        return False
    if image.format in ("JPEG", "MPO"):
        return pixels * (1 + SCAN_FACTOR * count_scans(data)) > DEAR_WORK
    name = image.format or ""
    if name == "BMP" and int.from_bytes(data[30:34], "little") in (1, 2):
        name = "BMP, run lengths"
    deep = name == "PNG" and data[24:25] == b"\x10"
    return pixels * FACTORS.get(name, 1.0) * (2 if deep else 1) > DEAR_WORK


def in_process(decode: Callable[[], Image.Image]) -> Image.Image:
    """Call a decoding function in a process of its own, which then ends; return the image."""
    Image.init()  # before the fork: in the child, another thread's import lock would stay held
    with _starting:
        workers = Workers(lambda _: [np.asarray(decode())], MEMORY, niceness=0, most=MOST_PIXELS)
    try:
        (pixels,), _ = workers.run(b"", SECONDS)
    except TooCostly as error:
        raise DataError(f"{error}: save the image anew, or smaller") from None
    finally:
        workers.close()
    return Image.fromarray(pixels)
