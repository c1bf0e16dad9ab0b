"""What the loop holds in its hands: the state to save, the clock, the log, the signals; never the loop."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from vitreous import console, optim, parallel
from vitreous.config import TrainConfig
from vitreous.data import Loader
from vitreous.defaults import Plan
from vitreous.journal import Journal
from vitreous.resume import Checkpoints, Saved

SAVE_SECONDS = 300.0
MARGIN = 0.97
"""Part of a time budget that is planned with; the rest is for what can't be foreseen."""


@dataclass
class Progress:
    """Where a run is: beside the tensors, all that a checkpoint has to hold."""

    step: int = 0
    steps: int = 0
    """How many there are to be; a time budget may change it on the way."""
    seconds: float = 0.0
    """Spent on the run so far, over all its starts."""
    best: list[float] | None = None
    """Accuracy and negated loss of the best evaluation, and its step."""
    skipped: list[int] = field(default_factory=list)
    """Steps that are left out because their batch gave no finite gradient."""
    rollbacks: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


class State:
    """All tensors of a run by name: weights, their average, and the optimizer's state."""

    def __init__(self, module: nn.Module, plan: Plan, options: TrainConfig) -> None:
        self.module = module
        self.plan = plan
        self.options = options
        self.ema = optim.Ema(module, plan.ema) if plan.ema else None
        self.optimizers = self._build()

    def _build(self) -> list[torch.optim.Optimizer]:
        return optim.build(
            self.module.named_parameters(),
            self.plan.optimizer,
            lr=self.plan.lr,
            weight_decay=self.plan.weight_decay,
            layer_decay=self.plan.layer_decay,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the live tensors: what is loaded into them takes effect."""
        found = {f"weights.{name}": value for name, value in self.module.state_dict().items()}
        if self.ema:
            found |= {f"ema.{name}": value for name, value in self.ema.tensors.items()}
        return found | {
            f"optimizer.{key}": value for key, value in optim.state_tensors(self.optimizers).items()
        }

    def restore(self, checkpoints: Checkpoints, saved: Saved) -> None:
        """Take everything from a checkpoint, also what the optimizers have not allocated yet."""
        self.optimizers = self._build()
        prefix = "optimizer."
        keys = [name.removeprefix(prefix) for name in saved.tensors if name.startswith(prefix)]
        if keys:
            optim.create_state(self.optimizers, keys)
        checkpoints.load(saved, self.tensors())

    def update(self, step: int) -> None:
        """Move the weights by their gradients, and the average after them."""
        for optimizer in self.optimizers:
            optimizer.step()
        if self.ema:
            self.ema.update(step)

    def clear(self) -> None:
        """Forget the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)


class Clock:
    """Measures a run over all its starts, and fits it into a time budget."""

    def __init__(self, started: float, before: float, budget: float | None) -> None:
        self.started, self.before, self.budget = started, before, budget
        self.judging = 0.0
        """Seconds of the latest evaluation."""
        self.afterwards = 1.0
        """What follows the last step, in evaluations like that."""
        self._durations: deque[float] = deque(maxlen=100)  # of the latest steps: the first are slow
        self._mark = self._saved = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds spent on the run so far."""
        return self.before + time.monotonic() - self.started

    @property
    def late(self) -> bool:
        """Whether the time budget is used up."""
        return self.budget is not None and self.seconds > MARGIN * self.budget - self._reserve

    @property
    def pace(self) -> float:
        """Seconds a step, over the latest ones."""
        return sum(self._durations) / max(1, len(self._durations))

    @property
    def _reserve(self) -> float:
        return self.judging * self.afterwards + 0.5

    def begin(self) -> None:
        """Start measuring a step, or something else that `step` or `judged` ends."""
        self._mark = time.monotonic()

    def step(self) -> None:
        """End a step, and begin the next."""
        now = time.monotonic()
        self._durations.append(now - self._mark)
        self._mark = now

    def judged(self) -> None:
        """End an evaluation, and begin a step."""
        now = time.monotonic()
        self.judging, self._mark = now - self._mark, now

    def save_due(self, step: int, every: int | None) -> bool:
        """Tell whether a checkpoint is due after this step."""
        if every is not None:
            return step % every == 0
        return time.monotonic() - self._saved > SAVE_SECONDS

    def saved(self) -> None:
        """Note that a checkpoint was just taken."""
        self._saved = time.monotonic()

    def fit(self, step: int, steps: int, evaluations: Callable[[int], int]) -> int:
        """Return how many steps there should be, at the pace so far, to end when the budget does.

        `evaluations` tells how many are to come if there are so many steps: the two depend on each other.
        """
        assert self.budget is not None
        left = MARGIN * self.budget - self.seconds - self._reserve
        possible = step + 1
        for _ in range(4):
            spare = left - evaluations(possible) * self.judging
            possible = step + max(1, int(spare / max(1e-9, self.pace)))
        # Towards the end no longer: the learning rate, low by then, would rise again.
        return possible if possible < steps or step <= 0.7 * steps else steps


class Stop:
    """Turns SIGTERM and Ctrl-C into a wish that the loop sees between steps; a second one ends at once."""

    def __init__(self) -> None:
        self.armed = False
        """Before the loop there is nothing to save: a signal ends at once."""
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether a signal came."""
        return self.signal is not None

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            os._exit(128 + number)
        self.signal = number
        if not self.armed:
            self.leave()

    def leave(self) -> None:
        """End the process as the signal asks: 130 for Ctrl-C, 143 for SIGTERM."""
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt


class Log:
    """The figures of a run as it goes: on screen, and in the journal. Sums stay on the device until said."""

    def __init__(
        self,
        folder: Path,
        at: Progress,
        options: TrainConfig,
        world: parallel.World,
        about: Mapping[str, Any],
    ) -> None:
        self.world = world
        self._sums: dict[str, Tensor] = {}
        self._named: set[int] = set()
        self._steps = 0
        self._shown = self._since = time.monotonic()
        self.speeds: list[float] = []
        """Images a second, one for each record."""
        self.journal = None
        if world.leads:
            sinks = {name: getattr(options, name) for name in ("tensorboard", "wandb", "mlflow")}
            self.journal = Journal(folder, step=at.step, about=about, **sinks)
        self.bar = console.ProgressBar(at.steps, done=at.step, quiet=not world.leads)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.journal:
            self.journal.close()

    def step(self, figures: Mapping[str, Tensor]) -> None:
        """Add one step's share of loss and metrics."""
        for name, value in figures.items():
            self._sums[name] = self._sums[name] + value.detach() if name in self._sums else value.detach()
        self._steps += 1

    def due(self, at: Progress, per_epoch: int) -> bool:
        """Tell whether a record is due: at the end of an epoch, and every hundred steps."""
        return at.step % per_epoch == 0 or at.step % 100 == 0 or at.step == at.steps

    def record(self, at: Progress, images: int, per_epoch: int, lr: float, norm: Tensor) -> None:
        """Write down the means since the last record; every rank takes part."""
        names = sorted(self._sums)
        sums = torch.stack([self._sums[name] for name in names]).tolist() if names else []
        means = parallel.total(dict(zip(names, sums, strict=True)), self.world)
        means = {name: value / max(1, self._steps) for name, value in means.items()}
        speed = self._steps * images / max(1e-9, time.monotonic() - self._since)
        if self._steps:
            self.speeds.append(speed)
        if self.journal:
            self.journal.write(
                {
                    "step": at.step,
                    "split": "train",
                    "epoch": round(at.step / per_epoch, 4),
                    **{name: round(value, 6) for name, value in means.items()},
                    "lr": lr,
                    "gradient_norm": round(norm.item(), 6) if torch.isfinite(norm) else None,
                    "images_per_second": round(speed, 1),
                }
            )
        self.means = means
        self.restart()

    def restart(self) -> None:
        """Begin a new mean, and a new measure of speed."""
        self._sums, self._steps, self._since = {}, 0, time.monotonic()

    def show(self, at: Progress, images: int, clock: Clock) -> None:
        """Bring the bar up to date, a few times a second."""
        now = time.monotonic()
        if not self.world.leads or (now - self._shown < 0.2 and at.step != at.steps):
            return
        self._shown = now
        parts = []
        for name in ("loss", "accuracy"):
            if name in self._sums:
                mean = self._sums[name].item() / max(1, self._steps) * self.world.size
                parts.append(f"{name} {mean:.1%}" if name == "accuracy" else f"{name} {mean:.3f}")
        parts.append(f"{images / max(1e-9, clock.pace):,.0f} images/s")
        self.bar.update(at.step, at.steps, ", ".join(parts), left=(at.steps - at.step) * clock.pace)

    def unreadable(self, loader: Loader) -> None:
        """Name a few of the files that could not be read since the last time; others took their places."""
        fresh = [index for index in loader.bad if index not in self._named]
        self._named.update(fresh)
        for index in fresh[:3]:
            console.warn(f"left out: {loader.bad[index]}")
        if len(fresh) > 3:
            console.warn(f"left out: {len(fresh) - 3} more files (`vitreous check` names them all)")

    def evaluation(self, at: Progress, split: str, figures: Mapping[str, float]) -> None:
        """Write down an evaluation."""
        if self.journal:
            rounded = {name: round(value, 6) for name, value in figures.items()}
            self.journal.write({"step": at.step, "split": split, **rounded})


Say = Callable[[str], None]
