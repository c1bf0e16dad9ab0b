"""What a plan is chosen by (data, hardware, a trained model), and how a choice is made. No torch."""

from dataclasses import dataclass
from typing import TypeVar

from vitreous.config import Preprocessing, TrainConfig
from vitreous.models.architecture import Architecture
from vitreous.training.plan import Task
from vitreous.training.recipes import SHORT, Recipe

Value = TypeVar("Value")
WIDE = 384
"""Width from which a model learns tens of thousands of small images by heart."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the choices depend on."""

    images: int
    classes: int
    multilabel: bool
    size: tuple[int, int]
    """Median height and width of the training images."""
    channels: int
    mirror: bool = True
    """Whether a mirrored image is still of its class."""
    device: str
    """cpu, cuda or mps."""
    bf16: bool
    """Whether the device multiplies bf16 natively."""
    cores: int
    """Processors for each rank."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A trained model that a run starts from: its shape and preprocessing stay, and part of it may learn."""

    architecture: Architecture
    preprocessing: Preprocessing
    source: str = ""
    tune: str = "full"
    fit_head: bool = False


class Chooser:
    """Takes the user's value, else the recipe's, else the rule's; notes the reason for the last two."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.reasons: dict[str, str] = {}

    def __call__(self, name: str, given: Value | None, otherwise: Value, reason: str = "") -> Value:
        if given is not None:
            return given
        if (value := self.recipe.values.get(name)) is not None:
            self.reasons[name] = f"recipe {self.recipe.source}"
            return value
        if reason:
            self.reasons[name] = reason
        return otherwise


def is_short(budget: float | None) -> bool:
    """Tell whether a time budget is too short for a wide model."""
    return budget is not None and budget < SHORT


def seen_often(facts: Facts, options: TrainConfig) -> bool:
    """Tell whether a GPU will see these images hundreds of times: they are small, and not very many."""
    small = facts.device == "cuda" and 16 <= min(facts.size) <= 64 and 10_000 <= facts.images < 200_000
    return small and options.optimizer in (None, "muon")


def by_heart(width: int, options: TrainConfig, facts: Facts, task: Task) -> bool:
    """Tell whether a ViT of this width could learn its images by heart, which it sees hundreds of times."""
    return width >= WIDE and task.labels and seen_often(facts, options)
