"""Who asked for a run: when they began, how long they need after it, and their callbacks. No torch.

A callback is called once the loop has read the figures anyway, on a GPU some steps later, so that no step
waits for it. While a callback works, the run waits.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitreous.errors import CallbackError

Callback = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Caller:
    """A verb, or a Python program with callbacks, for a dashboard say; they are called on rank 0 alone."""

    on_step: Callback | None = None
    """After each step: step, steps, epoch, lr, loss, what else the task measures, gradient_norm."""
    on_evaluation: Callback | None = None
    """After each evaluation: step, split (val, at the end test) and its figures."""
    started: float = field(default_factory=lambda: time.monotonic())
    """When it began, by `time.monotonic`: a time budget counts from there."""
    afterwards: float = 0.5
    """Seconds of a time budget that the caller needs after the run."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Report a step."""
        self._call("on_step", self.on_step, record)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Report an evaluation."""
        self._call("on_evaluation", self.on_evaluation, record)

    def _call(self, name: str, callback: Callback | None, record: Mapping[str, Any]) -> None:
        if callback is None:
            return
        try:
            callback(dict(record))
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise CallbackError(
                f"the callback {name} raised {type(error).__name__} at step {record['step']:,}: {reason}; "
                "fix it, and the same call goes on from the last checkpoint"
            ) from error
