"""A few small pictures of a data set, as a sealed file holds them: made only if the user allows it, and read
with limits.

They are there to be looked at; no prediction depends on them.
"""

import base64
import binascii
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vitreous.data.decode import open_header
from vitreous.data.split import Split
from vitreous.errors import DataError

ENTRY = "examples"
"""Their key in what a sealed file records about its model."""
MOST = 16
SIDE = 96
"""Pixels of the longer side; smaller pictures stay as they are."""
LOSSLESS = 32
"""Up to this side a picture is stored as PNG: a JPEG would show block artefacts."""
MOST_BYTES = 32_768
"""Of one encoded picture."""


def make(split: Split, labels: Sequence[str], count: int, channels: int) -> list[dict[str, str]]:
    """Return thumbnails of a split as a sealed file holds them."""
    return [
        {"label": label, "image": base64.b64encode(data).decode()}
        for label, _, data in choose(split, labels, min(count, MOST), channels, SIDE)
    ]


def choose(
    split: Split, labels: Sequence[str], count: int, channels: int, side: int
) -> list[tuple[str, str, bytes]]:
    """Return the label, format and bytes of some images, one class after the other, no larger than `side`.

    Images that can't be read are passed over."""
    firsts = split.targets.argmax(1) if split.targets.ndim == 2 else split.targets
    turns = np.zeros(len(firsts), int)  # how many of its class came before an image
    for label in np.unique(firsts):
        turns[firsts == label] = np.arange((firsts == label).sum())
    found: list[tuple[str, str, bytes]] = []
    for index in np.lexsort((firsts, turns)).tolist():
        if len(found) == count:
            break
        try:
            image = split.read(index, channels if channels in (1, 3, 4) else 3)
        except DataError:
            continue
        found.append((labels[int(firsts[index])] if labels else "", *_encoded(image, side)))
    return found


def read(about: Mapping[str, Any]) -> list[tuple[str, str, bytes]]:
    """Return the label, format and bytes of each thumbnail; invalid ones are skipped."""
    entries = about.get(ENTRY)
    found = []
    for entry in entries[:MOST] if isinstance(entries, list) else []:
        try:
            label, text = entry["label"], entry["image"]
            if not isinstance(label, str) or not isinstance(text, str) or len(text) > 4 * MOST_BYTES // 3 + 4:
                continue
            data = base64.b64decode(text, validate=True)
            form = open_header(data, max_pixels=SIDE * SIDE).format
        except (TypeError, KeyError, binascii.Error, DataError):
            continue
        if form in ("JPEG", "PNG"):
            found.append((label, form, data))
    return found


def _encoded(image: Image.Image, side: int) -> tuple[str, bytes]:
    image.thumbnail((side, side))
    held = io.BytesIO()
    form = "PNG" if max(image.size) <= LOSSLESS or image.mode == "RGBA" else "JPEG"
    image.save(held, form, optimize=True, quality=85)
    return form, held.getvalue()
