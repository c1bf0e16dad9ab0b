"""The plan of a run: all that determines it. Written at its start, sealed as its recipe. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from vitreous.config import (
    Augment,
    Balance,
    Initialization,
    Loss,
    Optimizer,
    Precision,
    Preprocessing,
    Schedule,
)
from vitreous.errors import OptionError
from vitreous.models import architecture
from vitreous.models.architecture import Architecture

UNSEALED = ("architecture", "preprocessing", "reasons")
"""Fields that a sealed file holds elsewhere, or not at all."""

LABELLED = ("loss", "label_smoothing", "binary_targets", "reconstruct")
"""Options that shape what is learned from labels, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a verb asks of a plan beside its options."""

    objective: str = "supervised"
    settings: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    """What the model must have, by the names of its configuration."""
    asked: dict[str, Any] = field(default_factory=dict)
    """What the caller wants of the model beyond the options, likewise by name: part of the run's identity."""
    labels: bool = True
    """Whether the data's classes are learned."""
    verb: str = "train"
    arguments: tuple[str, ...] = ()
    """The verb's arguments before the data."""
    recipe: Callable[..., Any] | None = None
    """From options and facts to the task's defaults, as a `recipes.Recipe`."""

    fill: "Callable[[Plan], dict[str, Any]] | None" = None
    """From the rest of a plan to the settings that depend on it and were left open."""

    refuse: "Callable[[Plan], None]" = lambda plan: None
    """Raises an error if the task can't be learned by a plan, whoever chose it."""

    def filled(self, plan: "Plan") -> dict[str, Any]:
        """Return the settings for this plan."""
        return self.settings if self.fill is None else {**self.settings, **self.fill(plan)}


SUPERVISED = Task()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Two runs of one plan on the same data are the same run."""

    architecture: Architecture
    preprocessing: Preprocessing
    objective: str = "supervised"
    """The file of `objectives/` that has the task."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What that task alone needs, as plain JSON values."""
    init: str = ""
    """The trained model that the run starts from, as it was named; empty: from scratch."""
    tune: str = "full"
    """What of the model learns, as `tuning.parse` reads it."""
    fit_head: bool = False
    """Whether a trained model's head starts with what logistic regression on its features finds."""
    initialization: Initialization = "paper"
    """How a model that is trained from scratch starts."""
    epochs: int | None
    """None: as many as fit into the time budget."""
    time_budget: float | None
    """Seconds."""
    batch_size: int
    optimizer: Optimizer
    lr: float
    schedule: Schedule
    warmup: float
    """Part of all steps over which the learning rate rises."""
    layer_decay: float
    clip: float
    weight_decay: float
    final_weight_decay: float | None = None
    """The weight decay at the end, approached along a cosine; None: it stays the same."""
    ema: float
    loss: Loss
    label_smoothing: float
    balance: Balance
    binary_targets: bool
    reconstruct: float = 0.0
    """Weight of painting the patches that the model is trained without, beside the labels."""
    augment: Augment
    precision: Precision
    seed: int
    reasons: dict[str, str] = field(default_factory=dict, compare=False)
    """Why each value that the user did not give was chosen."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; `from_json` reads them back."""
        return {**asdict(self), "architecture": architecture.to_dict(self.architecture)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Plan":
        """Build the plan that `to_json` wrote."""
        return Plan(
            **{
                **values,
                "architecture": architecture.from_dict(values["architecture"]),
                "preprocessing": Preprocessing(**tuples(values["preprocessing"])),
                "augment": Augment(**tuples(values["augment"])),
            }
        )

    def recipe(self) -> dict[str, Any]:
        """Return what a sealed file records of the plan: how the weights came about, without their shape."""
        return {name: value for name, value in self.to_json().items() if name not in UNSEALED}


NAMES = frozenset(each.name for each in fields(Plan))


def tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that were read from JSON, its lists as tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def seconds(text: str | float) -> float:
    """Read a time such as `90s`, `10m`, `1.5h`; a bare number is seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    text = str(text)
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        found = float(number) * units[unit]
    except ValueError:
        found = float("nan")
    if found == 0.0:
        raise OptionError(f"time {text!r} is zero: give more, such as 90s or 10m")
    if not 0.0 < found < float("inf"):
        raise OptionError(
            f"time {text!r} is not understood: give a number and s, m, h or d, such as 90s or 10m"
        )
    return found
