"""What a report holds, as data: any part may be absent. Nothing is drawn or written here."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from vitreous import console


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure and one sentence on how to read it."""

    title: str
    svg: str = ""
    """An SVG element, from `plot.svg`."""
    png: bytes = b""
    """Or a PNG file."""
    how: str = ""


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Some images with captions under one title, such as an image and its maps."""

    title: str
    text: str = ""
    images: Sequence[tuple[str, np.ndarray]] = ()
    """Caption and uint8 pixels (H, W, 1 or 3)."""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """An image that was taken for another class."""

    truth: str
    answer: str
    probability: float
    """That the model gave to its answer."""
    file: str = ""
    image: np.ndarray | None = None
    """uint8 (H, W, 1 or 3)"""
    seen: np.ndarray | None = None
    """The same, overlaid with what supported the answer."""
    missed: np.ndarray | None = None
    """The same, overlaid with what supported the truth."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The one figure that a page is about."""

    name: str
    value: str
    note: str = ""
    """Its interval, and how many images it is from."""


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """One class of the per-class table."""

    label: str
    count: int
    recall: float
    """The share of its images that was recognised."""
    precision: float | None = None
    """The share of answers naming it that was right; None if there is no such answer."""
    taken_for: str = ""
    """The class that it was most often taken for."""


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Confidence in equal bins from 0 to 1: mean confidence, share right, number of images."""

    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray

    @property
    def error(self) -> float:
        """The expected calibration error: the mean gap, weighted by images."""
        return float((np.abs(self.confidence - self.accuracy) * self.count).sum() / max(1, self.count.sum()))


@dataclass(kw_only=True)
class Report:
    """Everything that a page can show."""

    title: str
    subtitle: str = ""
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    headline: Headline | None = None
    """The first figure, large."""
    summary: Mapping[str, str] = field(default_factory=dict)
    """The other figures that matter, in words: name → text."""
    details: Mapping[str, str] = field(default_factory=dict)
    """How they came about, in small print: steps, time, device."""
    advice: Sequence[str] = ()
    """What seems wrong, and what to try."""
    metrics: Sequence[Mapping[str, Any]] = ()
    """Rows of `metrics.jsonl`: step, and either split with loss, accuracy, …, or train_loss, val_loss, …"""
    split: str = ""
    """The split that confusion, reliability, mistakes and classes were measured on."""
    labels: Sequence[str] = ()
    confusion: np.ndarray | None = None
    """Counts (truth, answer)."""
    reliability: Reliability | None = None
    mistakes: Sequence[Mistake] = ()
    per_class: Sequence[ClassRow] = ()
    pictures: Sequence[Picture] = ()
    pictured: str = "Inside the model"
    """What the pictures are about, as the heading over them."""
    galleries: Sequence[Gallery] = ()
    sections: Mapping[str, Sequence[Gallery]] = field(default_factory=dict)
    """Other images, under headings of their own: heading → galleries."""
    check: Mapping[str, str] = field(default_factory=dict)
    """What `vitreous check` found: name → text."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """How it was made: option → value."""
    card: str = ""
    """The model card, Markdown."""
    notes: Sequence[str] = ()
    """What was left out, and why."""


def environment() -> dict[str, str]:
    """Return where this was made, without importing anything heavy."""
    found = {"vitreous": "", "torch": "", "torchvision": "", "numpy": ""}
    for name in found:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    machine = f"{platform.system()} {platform.release()}, {platform.machine()}"
    return {
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine,
        "Python": platform.python_version(),
        **found,
    }


def class_rows(confusion: np.ndarray, labels: Sequence[str]) -> list[ClassRow]:
    """Return the per-class table of a confusion matrix (truth, answer), the worst recognised first."""
    rows = []
    for i, name in enumerate(labels):
        count, answers = int(confusion[i].sum()), int(confusion[:, i].sum())
        if not count:
            continue
        others = confusion[i].copy()
        others[i] = 0
        rows.append(
            ClassRow(
                label=name,
                count=count,
                recall=float(confusion[i, i] / count),
                precision=float(confusion[i, i] / answers) if answers else None,
                taken_for=f"{labels[int(others.argmax())]} ({int(others.max())})" if others.any() else "",
            )
        )
    return sorted(rows, key=lambda row: row.recall)


def said(name: str) -> str:
    """Return a name of a figure as words: `images_per_second` → `images per second`."""
    return name.replace("_", " ")


def warn_left_out(what: str, why: object) -> str:
    """Warn on the console that a part is missing, and return the sentence for the report."""
    sentence = f"{what} left out: {why}"
    console.warn(sentence)
    return sentence
