"""The state of a run: its tensors by name, and where it is. All that a checkpoint has to hold."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from vitreous import optim
from vitreous.objectives import Objective
from vitreous.training.checkpoints import Checkpoints, Saved
from vitreous.training.plan import Plan


@dataclass
class Position:
    """Where a run is: all that a checkpoint has to hold besides the tensors."""

    step: int = 0
    """Steps that were taken."""
    steps: int = 0
    """Steps in all; a time budget may change it on the way."""
    share: float = 0.0
    """Share of a time budget's schedule that is behind the run."""
    seconds: float = 0.0
    """Spent on the run so far, over all its starts."""
    skipped: list[int] = field(default_factory=list)
    """Steps that are left out because their batch gave no finite gradient."""
    rollbacks: int = 0
    evaluated: int = 0
    """The step of the newest evaluation."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Position":
        """Read what `to_json` wrote; names that only earlier versions had are left out."""
        known = {each.name for each in fields(Position)}
        found = {name: value for name, value in values.items() if name in known}
        return Position(**{"evaluated": found.get("step", 0), **found})


class State:
    """All tensors of a run by name: weights, their average, and the optimizer's state."""

    def __init__(self, objective: Objective, plan: Plan, *, capturable: bool = False) -> None:
        """`capturable`: keep all that changes from step to step on the device, for a recorded CUDA graph."""
        self.objective, self.plan, self.capturable = objective, plan, capturable
        self.ema = optim.Ema(objective, plan.ema) if plan.ema else None
        device = next(objective.parameters()).device
        self._step: int | Tensor = torch.zeros((), device=device) if capturable else 0
        self.optimizers = self._build()
        self.decay: optim.ScheduledDecay | None = None
        if plan.final_weight_decay is not None:
            self.decay = optim.ScheduledDecay(
                objective.named_parameters(),
                plan.weight_decay,
                plan.final_weight_decay,
                device,
                layer_decay=plan.layer_decay,
            )

    def _build(self) -> list[torch.optim.Optimizer]:
        return optim.build(
            self.objective.named_parameters(),
            self.plan.optimizer,
            lr=self.plan.lr,
            weight_decay=self.plan.weight_decay if self.plan.final_weight_decay is None else 0.0,
            layer_decay=self.plan.layer_decay,
            capturable=self.capturable,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the live tensors: values loaded into them take effect."""
        found = {f"weights.{name}": value for name, value in self.objective.state_dict().items()}
        if self.ema:
            found |= {f"ema.{name}": value for name, value in self.ema.tensors.items()}
        return found | {
            f"optimizer.{key}": value for key, value in optim.state_tensors(self.optimizers).items()
        }

    def restore(self, checkpoints: Checkpoints, saved: Saved) -> None:
        """Restore everything from a checkpoint, even state that the optimizers have not allocated yet."""
        self.optimizers = self._build()
        prefix = "optimizer."
        keys = [name.removeprefix(prefix) for name in saved.tensors if name.startswith(prefix)]
        if keys:
            optim.create_state(self.optimizers, keys)
        checkpoints.load(saved, self.tensors())

    def set_step(self, step: int, lr: float, progress: float = 0.0) -> None:
        """Set what the next update depends on: learning rate, weight decay, the pace of the average."""
        optim.set_learning_rate(self.optimizers, lr)
        if self.decay is not None:
            self.decay.set(lr, progress)
        if isinstance(self._step, Tensor):
            self._step.fill_(step)
        else:
            self._step = step

    def update(self, refused: Tensor | None = None) -> None:
        """Move the weights by their gradients, and their average after them.

        Where `refused` is given and true, on the device, nothing moves.
        """
        if self.decay is not None:
            self.decay.apply(refused)
        for optimizer in self.optimizers:
            optim.refuse(optimizer, refused)
            optimizer.step()
        if self.ema:
            self.ema.update(self._step, refused)

    def clear_gradients(self) -> None:
        """Forget the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def averaged(self) -> AbstractContextManager[None]:
        """Put the average, if there is one, in place of the weights: it is what is evaluated and sealed."""
        return self.ema.applied() if self.ema else nullcontext()
