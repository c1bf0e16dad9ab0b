"""The proof of an export: real images, from file to label, through PyTorch and through the exported file.

The inputs of the exported file are made from its own metadata, as a user without vitreous would have to do.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.config import Preprocessing
from vitreous.data import open_data
from vitreous.data.augment import EvaluationTransform
from vitreous.data.decode import MODES, decode, read_file
from vitreous.errors import ModelError, VitreousError
from vitreous.export.graph import Inputs, Precision, Source
from vitreous.export.opened import Opened

COUNTS: dict[Precision, int] = {"fp32": 24, "fp16": 24, "bf16": 100, "int8": 100}
"""Bundled images for a proof: agreement of 98 % can't be seen on fewer than a hundred."""
TOLERANCES: dict[Precision, float] = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 0.02, "int8": 0.02}
"""The largest difference in probability; of bf16 and int8, the largest share of labels that differ."""
BY_LABELS: tuple[Precision, ...] = ("bf16", "int8")
"""Precisions that are too coarse for a limit on every probability."""
FIRST_BATCHES = (1, 2, 5)
BATCH = 8


class DisagreementError(VitreousError):
    """The exported file gives other answers than PyTorch."""


@dataclass(frozen=True)
class Found:
    """How two runs of the same images compare."""

    runtime: str
    difference: float
    agreement: float


def compare(source: Source, opened: Opened, pictures: Sequence[bytes]) -> Found:
    """Run every image through both, in batches of several sizes."""
    facts = opened.facts
    values: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in facts["preprocessing"].items()
    }
    transform = EvaluationTransform(Preprocessing(**values), tuple(facts["patch"]))
    labels: list[str] = facts["labels"]
    ours, theirs = [], []
    for batch in _batches(pictures):
        decoded = [_picture(data, transform.preprocessing.channels) for data in batch]
        own = source.collate([source.prepare(each) for each in decoded])
        ours.append(source.probabilities(*own).numpy())
        theirs.append(opened.run(_inputs(transform, decoded, facts)).probabilities)
    mine, other = np.concatenate(ours), np.concatenate(theirs)
    if mine.shape != other.shape or not np.isfinite(other).all() or labels != source.labels:
        return Found(opened.runtime, float("inf"), 0.0)
    agreement = float((mine.argmax(1) == other.argmax(1)).mean())
    return Found(opened.runtime, float(np.abs(mine - other).max()), agreement)


def _inputs(
    transform: EvaluationTransform, pictures: Sequence[Image.Image | np.ndarray], facts: dict[str, Any]
) -> Inputs:
    """Return the exported file's inputs, made as its metadata says."""
    fitted = [transform.fitted(each) for each in pictures]
    pixels = [transform.padded(each) for each in fitted]
    size = np.array([each.shape[:2] for each in fitted], np.int64) if "size_input" in facts else None
    if facts["input"]["name"] == "pixels":
        return Inputs(np.stack(pixels), size)
    return Inputs(torch.stack([transform.normalized(each) for each in pixels]).numpy(), size)


def gap(found: Found, precision: Precision, tolerance: float | None = None) -> str | None:
    """Return how far the exported file is from its source if that is too far; None: it is close enough."""
    allowed = TOLERANCES[precision] if tolerance is None else tolerance
    if precision in BY_LABELS:
        good = 1 - found.agreement <= allowed + 1e-9 and np.isfinite(found.difference)
        limit = f"{1 - allowed:.0%} of the labels"
    else:
        good = found.difference <= allowed
        limit = f"{allowed:.0e} in probability"
    if good:
        return None
    return (
        f"{found.difference:.1e} away in probability and agrees on {found.agreement:.1%} of the labels "
        f"(by {found.runtime}), outside {limit}"
    )


def check(found: Found, precision: Precision, tolerance: float | None, destination: Path) -> None:
    """Raise if the exported file is too far from its source."""
    if (away := gap(found, precision, tolerance)) is not None:
        raise DisagreementError(
            f"the exported file is {away}: {destination} was not written; prove it with your own --images, "
            "or choose another --precision"
        )


def read(path: Path) -> bytes:
    """Read an image file."""
    return read_file(path)


def bundled(source: Source, count: int) -> list[bytes]:
    """Return real images as files: digits for small models; else photographs, parts of them, digits.

    Where images are padded, they are cut to several aspects: a square one would show no padding.
    """
    settings = source.preprocess.preprocessing
    size = settings.image_size if settings.resize == "none" else None
    if settings.resize == "pad":
        return [_encoded(each, None) for each in _first(_several_aspects(_parts(_photographs())), count)]
    small = max(settings.image_size) <= 32
    digits = (_encoded(each, size) for each in _digits())
    if small:
        return list(_first(digits, count))
    parts = (_encoded(each, size) for each in _parts(_photographs()))
    whole = [_encoded(each, size) for each in _photographs()] if size else _photograph_files()
    return list(_first(chain(whole, _first(parts, count - 10), digits), count))


def _photograph_files() -> list[bytes]:
    folder = resources.files("sklearn.datasets.images")
    return [folder.joinpath(name).read_bytes() for name in ("flower.jpg", "china.jpg")]


def _photographs() -> list[Image.Image]:
    return [Image.open(io.BytesIO(data)) for data in _photograph_files()]


def _several_aspects(images: Iterator[Image.Image]) -> Iterator[Image.Image]:
    """Cut images to shares of their height and width, a different pair for each."""
    shares = cycle([(1.0, 0.6), (0.35, 1.0), (1.0, 1.0), (1.0, 0.1), (0.8, 1.0)])
    for image, (tall, wide) in zip(images, shares, strict=False):
        yield image.crop((0, 0, max(1, round(image.width * wide)), max(1, round(image.height * tall))))


def _digits() -> Iterator[Image.Image]:
    split = open_data("digits").splits["test"]
    return (split.read(row, 1) for row in range(len(split)))


def _parts(photographs: list[Image.Image]) -> Iterator[Image.Image]:
    """Cut photographs into overlapping squares of 160 pixels, then of 120: every one a view of something."""
    for side in (160, 120):
        for image in photographs:
            for top in range(0, image.height - side + 1, side // 2):
                for left in range(0, image.width - side + 1, side // 2):
                    yield image.crop((left, top, left + side, top + side))


def _encoded(image: Image.Image, size: tuple[int, int] | None) -> bytes:
    if size is not None and image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    held = io.BytesIO()
    image.save(held, "PNG")
    return held.getvalue()


def _picture(data: bytes, channels: int) -> Image.Image | np.ndarray:
    """Decode; for a number of channels that no file has, each channel is the gray image."""
    if channels in MODES:
        return decode(data, channels)
    return np.asarray(decode(data, 1))[..., None].repeat(channels, axis=-1)


def _batches(pictures: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut into batches of 1, 2, 5, then 8 each: the batch has to be dynamic to pass."""
    if not pictures:
        raise ModelError("an export needs at least one image for its proof")
    start = 0
    for size in chain(FIRST_BATCHES, repeat(BATCH)):
        if start >= len(pictures):
            return
        yield pictures[start : start + size]
        start += size


def _first(items: Any, count: int) -> Iterator[Any]:
    return (each for each, _ in zip(items, range(max(0, count)), strict=False))
