"""An exported file, opened by its runtime: what every format's opener returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vitreous.export.graph import Inputs

OUTPUTS = ["logits", "probabilities"]


class Answers(NamedTuple):
    """What a file computes for a batch, (B, K) each."""

    logits: np.ndarray
    probabilities: np.ndarray


Run = Callable[[Inputs], Answers]


@dataclass(frozen=True)
class Opened:
    """An exported file, opened by its runtime."""

    runtime: str
    facts: dict[str, Any]
    """What the file records about itself."""
    run: Run
    """From a batch of inputs, as arrays, to its answers; threads may call it at once."""
    unasked: "Opened | None" = None
    """The same file as the runtime opens it by default, if it then computes otherwise."""


def input_names(facts: dict[str, Any]) -> list[str]:
    """Return the names of a file's inputs, in their order."""
    return [facts[entry]["name"] for entry in ("input", "size_input") if entry in facts]
