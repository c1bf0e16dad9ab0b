"""One step: gradients, their norm, whether all is finite, clip, update, average. Never when, or how often.

A step decides on the device whether it may change anything, so that the host need not wait: it reads the
outcome some steps later. Once a step is refused, all that follow it are refused too, until `resume`: the
weights stay as they were before the first step that was not finite.
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
    ready: torch.cuda.Event | None = None
    """When they have arrived; None: they are here."""

    def read(self) -> dict[str, float]:
        """Return this rank's shares of loss and metrics, the gradient's norm, and `refused`: 0 or 1."""
        if self.ready is not None:
            self.ready.synchronize()
        return dict(zip(self.names, self.values.tolist(), strict=True))


class Step:
    """Moves the state by one batch."""

    def __init__(self, gradients: Gradients, state: State, *, clip: float, wait: bool) -> None:
        """`wait`: let the host see each step's outcome before anything is changed."""
        self.gradients, self.state, self.clip, self.wait = gradients, state, clip, wait
        self.objective, self.world = gradients.objective, gradients.world
        self.refused = torch.zeros((), dtype=torch.bool, device=self.world.device)
        """Whether this step, or one before it since `resume`, was not finite."""

    def __call__(self, batch: Batch, step: int, lr: float, progress: float = 0.0) -> Outcome:
        """Take step number `step`; on a GPU the call returns before it is done."""
        self.prepare(step, lr, progress)
        figures = self.gradients(batch, step, progress)
        figures = self.move(figures)
        self.finish(step)
        return self.deliver(tuple(figures), stacked(figures))

    def prepare(self, step: int, lr: float, progress: float) -> None:
        """Set what the host knows of the step: the mode, the learning rate, the average's weight."""
        self.objective.train()
        self.state.set_step(step, lr, progress)

    def move(self, figures: dict[str, Tensor]) -> dict[str, Tensor]:
        """Move the weights by their gradients, unless something is not finite; add norm and refusal."""
        norm = optim.gradient_norm(self.objective.parameters())
        wrong = ~(torch.isfinite(figures["loss"]) & torch.isfinite(norm))
        self.refused.logical_or_(parallel.agree(wrong, self.world))
        if self.clip:
            optim.clip_gradients(self.objective.parameters(), self.clip, norm)
        if not self.wait:
            self.state.update(self.refused)
        elif not self.refused.item():
            self.state.update()
        return {**figures, "gradient_norm": norm, "refused": self.refused}

    def finish(self, step: int) -> None:
        """Let the task react to the update, and forget the gradients."""
        if not self.wait:
            self.objective.after_update(step, self.refused)
        elif not self.refused.item():
            self.objective.after_update(step, None)
        self.state.clear_gradients()

    def resume(self) -> None:
        """Take steps again after one was refused, or after the state was restored; forget its gradients."""
        self.refused.zero_()
        self.state.clear_gradients()

    def deliver(self, names: tuple[str, ...], values: Tensor) -> Outcome:
        """Send the figures to the host, without waiting for them to arrive."""
        if values.device.type != "cuda":
            return Outcome(names, values)
        arrived = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        arrived.copy_(values, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        return Outcome(names, arrived, ready)


def stacked(figures: dict[str, Tensor]) -> Tensor:
    """Return the figures as one tensor."""
    return torch.stack([value.detach().float() for value in figures.values()])
