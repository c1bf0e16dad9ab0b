"""What a classifier loses in a layout of other libraries: found by reading back what was written."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from vitreous import console, layouts
from vitreous.config import Preprocessing
from vitreous.models import adapt
from vitreous.models.weights import Weights
from vitreous.predict.loading import assumed_names


def write(weights: Weights, path: Path, layout: str) -> tuple[Path, list[str]]:
    """Write weights in another layout; return the file that holds them, and what it can't carry, in words."""
    written = layouts.write(weights, path, layout)
    return written, _left_behind(weights, path)


def warn(layout: str, lost: Iterable[str]) -> None:
    """Say what is lost, each in one line."""
    for each in lost:
        console.warn(f"the {layout} layout can't carry {each}")


def _left_behind(weights: Weights, path: Path) -> list[str]:
    """Return what is lost in a file of another layout, found by reading it back."""
    config, about, lost = weights.config, weights.about, []
    origin, found = layouts.read(path, {"heads": config.heads, "image_size": config.image_size})
    if (temperature := (about.get("calibration") or {}).get("temperature", 1.0)) != 1.0:
        lost.append(f"the temperature: divide the logits by {temperature:.4g} for calibrated probabilities")
    if about.get("multilabel"):
        lost.append("that an image may have several labels: take the sigmoid of each logit")
    if about.get("thresholds"):
        lost.append(f"the thresholds of {len(about['thresholds'])} labels")
    if about.get("abstain"):
        lost.append(f"the probability below which no label is given ({about['abstain']:g})")
    if weights.labels and (found.labels or assumed_names(found, origin)) != weights.labels:
        lost.append(f"the names of {len(weights.labels):,} classes")
    read = adapt.refit(found.preprocessing or Preprocessing(), config.image_size, config.in_channels)
    if weights.preprocessing is not None and _filled(read) != _filled(weights.preprocessing):
        lost.append(f"the preprocessing: {_described(weights.preprocessing)}")
    return lost


def _filled(preprocessing: Preprocessing) -> Preprocessing:
    """Return the same preprocessing with its size before the crop written out."""
    return replace(preprocessing, resize_size=preprocessing.resize_size or preprocessing.image_size)


def _described(preprocessing: Preprocessing) -> str:
    """Return a preprocessing in one line."""
    height, width = preprocessing.resize_size or preprocessing.image_size
    size = f"{preprocessing.image_size[0]}x{preprocessing.image_size[1]}"
    mean, std = (
        ", ".join(f"{each:.4g}" for each in some) for some in (preprocessing.mean, preprocessing.std)
    )
    how = f"{preprocessing.resize} {height}x{width}, {preprocessing.interpolation}"
    return f"{how}, cropped to {size}, mean {mean}, std {std}"
