"""An exported file in the hands of its runtime: what every format's opener gives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vitreous.export.graph import Inputs

OUTPUTS = ["logits", "probabilities"]


class Answers(NamedTuple):
    """What a file computes of a batch, (B, K) each."""

    logits: np.ndarray
    probabilities: np.ndarray


Run = Callable[[Inputs], Answers]


@dataclass(frozen=True)
class Opened:
    """An exported file in the hands of its runtime."""

    runtime: str
    facts: dict[str, Any]
    """What the file records about itself."""
    run: Run
    """From a batch of inputs, as arrays, to its answers; threads may call it at once."""
    unasked: "Opened | None" = None
    """The same as the runtime opens it when it is asked for nothing, where that is another computation."""


def input_names(facts: dict[str, Any]) -> list[str]:
    """Return the names of a file's inputs, in their order."""
    return [facts[entry]["name"] for entry in ("input", "size_input") if entry in facts]
