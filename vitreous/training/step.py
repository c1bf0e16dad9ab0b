"""One step: gradients, their norm, whether all is finite, clip, update, average. Never when, or how often.

A step decides on the device whether it may move anything, so that the host need not wait for it: it reads the
outcome some steps later. Once a step was refused, all that follow it are refused too, until `resume`: the
weights stay as they were before the first that was not finite.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous import optim, parallel
from vitreous.data import Batch
from vitreous.training.gradients import Gradients
from vitreous.training.state import State


@dataclass(frozen=True)
class Outcome:
    """What a step found: numbers that may still be on their way from the device."""

    names: tuple[str, ...]
    values: Tensor
    ready: torch.cuda.Event | None
    """When they have arrived; None: they are here."""

    def read(self) -> dict[str, float]:
        """Return this rank's shares of loss and metrics, the gradient's norm, and `refused`: 0 or 1."""
        if self.ready is not None:
            self.ready.synchronize()
        return dict(zip(self.names, self.values.tolist(), strict=True))


class Step:
    """Moves the state by one batch."""

    def __init__(self, gradients: Gradients, state: State, *, clip: float, wait: bool) -> None:
        """`wait`: let the host see each step's outcome before it moves anything."""
        self.gradients, self.state, self.clip, self.wait = gradients, state, clip, wait
        self._refused = torch.zeros((), dtype=torch.bool, device=gradients.world.device)

    def __call__(self, batch: Batch, step: int, lr: float) -> Outcome:
        """Take the step of this number; on a device the call returns before it is done."""
        state, world = self.state, self.gradients.world
        self.gradients.objective.train()
        optim.set_learning_rate(state.optimizers, lr)
        figures = self.gradients(batch, step)
        norm = optim.gradient_norm(state.objective.parameters())
        refused = parallel.agree(~(torch.isfinite(figures["loss"]) & torch.isfinite(norm)), world)
        if self.clip:
            optim.clip_gradients(state.objective.parameters(), self.clip, norm)
        self._update(step, refused)
        state.clear_gradients()
        return self._outcome({**figures, "gradient_norm": norm, "refused": refused})

    def resume(self) -> None:
        """Take steps again after one was refused."""
        self._refused.zero_()

    def _update(self, step: int, refused: Tensor) -> None:
        if self.wait:
            if not refused.item():
                self.state.update(step)
            return
        self._refused.logical_or_(refused)
        refused.copy_(self._refused)
        self.state.update(step, self._refused)

    def _outcome(self, figures: dict[str, Tensor]) -> Outcome:
        values = torch.stack([value.detach().float() for value in figures.values()])
        if values.device.type != "cuda":
            return Outcome(tuple(figures), values, None)
        arrived = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        arrived.copy_(values, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        return Outcome(tuple(figures), arrived, ready)
