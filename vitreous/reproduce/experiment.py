"""What an experiment of the paper is, as data: its claim, its runs, how they are judged and drawn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from vitreous.config import ReproduceScale
from vitreous.errors import OptionError

Row = dict[str, Any]
"""What is known of one run: its columns, seed, accuracy, size, cost and time."""

SIZES = {
    "digits": (8, 2),
    "mnist": (28, 4),
    "fashion-mnist": (28, 4),
    "cifar10": (32, 4),
    "cifar100": (32, 4),
}
"""Image and patch size of data sets that are given by name, in place of a scale's own."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An experiment's setting at one scale."""

    data: str | None = None
    """What it learns from by default; None: `needs` says what must be given."""
    needs: str = ""
    at_hand: str | None = None
    """A named data set that is taken instead if `--data-root` has it."""
    cost: str
    """How long it takes, and where: measured, or estimated."""
    image_size: int
    patch_size: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of every run, as `vitreous train` takes them."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every model's configuration."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the experiment varies, under names of its own."""

    def on(self, data: str) -> "Scale":
        """Return the same setting for other data."""
        if data == self.data:
            return self
        image, patch = SIZES.get(data, (self.image_size, self.patch_size))
        return replace(self, data=data, image_size=image, patch_size=patch)

    @property
    def size(self) -> dict[str, Any]:
        """The options of a model's size in pixels."""
        return {"image_size": (self.image_size,), "patch_size": (self.patch_size,)}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One ordinary run of an experiment, in a folder of its own."""

    name: str
    columns: Mapping[str, Any]
    """What distinguishes its row from the others."""
    verb: Literal["train", "finetune", "pretrain", "distill"] = "train"
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    """The point whose model is fine-tuned, or teaches; it comes earlier in the list."""
    images: int | None = None
    """Use at most this many training images."""
    half: Literal["first", "second"] | None = None
    """Use only images of one half of the classes."""
    measure: Callable[[Path], Row] | None = None
    """Further figures, measured in the folder of the finished run."""

    def settings(self) -> Row:
        """Return what defines the run, as plain values."""
        names = ("verb", "source", "images", "half")
        kept = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {**kept, "options": dict(self.options), "shape": dict(self.shape)}


@dataclass(frozen=True)
class Finding:
    """One part of a claim, beside what was measured; `held` None: within the noise."""

    text: str
    held: bool | None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A claim of the paper, and how it is tested."""

    name: str
    source: str
    """Where the paper says it: a table, a figure or a section."""
    claim: str
    rule: str
    """When it counts as held, in words: what `judge` computes."""
    scales: Mapping[ReproduceScale, Scale]
    points: Callable[[Scale], list[Point]]
    judge: Callable[[Sequence[Row]], list[Finding]]
    draw: Callable[[Sequence[Row]], dict[str, Figure]]
    """From the rows to figures by file name; `plot` is the one that shows the claim."""
    shown: Sequence[str] = ()
    """Figures of a row that the table shows, beside its columns and the usual ones."""

    def setting(self, scale: ReproduceScale, data: str | None) -> Scale:
        """Return the setting at a scale, on the given data or else on its own."""
        found = self.scales[scale]
        if data is None and found.data is None:
            raise OptionError(f"{self.name} --scale {scale} needs {found.needs}: name it with --data")
        return found.on(data) if data is not None else found


def verdict(findings: Sequence[Finding]) -> str:
    """Return `held` where every part did, `not held` where one did not, else `not decided`."""
    if all(finding.held for finding in findings):
        return "held"
    return "not held" if any(finding.held is False for finding in findings) else "not decided"
