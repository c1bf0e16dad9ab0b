"""The figures of a run as it goes: on screen, and in the journal; never how they are computed."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitreous import console, parallel
from vitreous.config import TrainConfig
from vitreous.data import Loader
from vitreous.training.caller import Caller
from vitreous.training.journal import Journal

EVERY = 100
"""Steps between records, or an epoch if that is shorter. Every record but the last averages as many."""


class Log:
    """Takes every step's outcome, in order; writes means now and then. Every rank makes the same calls."""

    def __init__(
        self,
        folder: Path,
        options: TrainConfig,
        world: parallel.World,
        *,
        step: int,
        evaluated: int | None = None,
        steps: int,
        images: int,
        per_epoch: int,
        about: Mapping[str, Any],
        caller: Caller | None = None,
        warm: int = 0,
    ) -> None:
        """`evaluated`: the step of the newest evaluation; `images`: in a batch; `per_epoch`: batches in an
        epoch; `about`: the plan, for other trackers.

        The first `warm` steps of this process compile, and don't count towards its speed.
        """
        self.world, self.images, self.per_epoch = world, images, per_epoch
        self.caller = caller if caller and world.is_main else Caller()
        self.sums: dict[str, float] = {}
        self.means: dict[str, float] = {}
        """Of the latest record, over all ranks."""
        self.speeds: list[tuple[int, float]] = []
        """Images and seconds of each record."""
        self._named: set[int] = set()
        self._steps = self._timed = 0
        self._cold = warm
        self._shown = self._since = time.monotonic()
        self.journal = None
        if world.is_main:
            sinks = {name: getattr(options, name) for name in ("tensorboard", "wandb", "mlflow")}
            self.journal = Journal(folder, step=step, evaluated=evaluated, about=about, **sinks)
        self.bar = console.ProgressBar(steps, done=step, quiet=not world.is_main)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.journal:
            self.journal.close()

    @property
    def images_per_second(self) -> float | None:
        """Over the whole run: images over time; the start, evaluations and checkpoints left out."""
        seconds = self.seconds
        return sum(images for images, _ in self.speeds) / seconds if seconds else None

    @property
    def seconds(self) -> float:
        """Of this process's steps; its first ones, evaluations and checkpoints left out."""
        return sum(each for _, each in self.speeds)

    def step(self, step: int, figures: Mapping[str, float], *, steps: int, lr: float) -> None:
        """Take the outcome of a step, the `step`th of `steps`; write a record if one is due.

        A step that was left out has no figures.
        """
        for name, value in figures.items():
            if name not in ("gradient_norm", "refused"):
                self.sums[name] = self.sums.get(name, 0.0) + value
        self._steps += bool(figures)
        self._timed += bool(figures)
        due = step % min(self.per_epoch, EVERY) == 0 or step == steps
        if due and self._steps:
            self._record(step, lr, figures.get("gradient_norm", math.nan))
        self._cold -= 1
        if self._cold == 0 and step != steps:
            self.speeds.clear()
            self._timed, self._since = 0, time.monotonic()
        if figures:
            self._tell(step, figures, steps, lr)

    def _tell(self, step: int, figures: Mapping[str, float], steps: int, lr: float) -> None:
        """Report a step to the caller; with several ranks, this one's share scaled up to the whole."""
        whole = {
            name: value if name == "gradient_norm" else value * self.world.size
            for name, value in figures.items()
            if name != "refused"
        }
        epoch = round(step / self.per_epoch, 4)
        self.caller.step({"step": step, "steps": steps, "epoch": epoch, "lr": lr, **whole})

    def _record(self, step: int, lr: float, norm: float) -> None:
        totals = parallel.total(dict(sorted(self.sums.items())), self.world)
        self.means = {name: value / self._steps for name, value in totals.items()}
        seconds = max(1e-9, time.monotonic() - self._since)
        self.speeds.append((self._timed * self.images, seconds))
        if self.journal:
            self.journal.write(
                {
                    "step": step,
                    "split": "train",
                    "epoch": round(step / self.per_epoch, 4),
                    "batches": self._steps,
                    **{name: round(value, 6) for name, value in self.means.items()},
                    "lr": lr,
                    "gradient_norm": round(norm, 6) if math.isfinite(norm) else None,
                    "images_per_second": round(self._timed * self.images / seconds, 1),
                }
            )
        self.restart()

    def restart(self) -> None:
        """Begin a new mean, and a new measure of speed."""
        self.sums, self._steps, self._timed, self._since = {}, 0, 0, time.monotonic()

    def running(self) -> dict[str, Any]:
        """Return the unfinished mean, for a checkpoint: the sums of every rank, and their number of steps."""
        return {"steps": self._steps, "sums": parallel.gather(dict(self.sums), self.world)}

    def go_on_with(self, running: Mapping[str, Any]) -> None:
        """Go on with the mean that was unfinished at a checkpoint, so that the next record is that of a run
        that was never stopped. If the number of ranks has changed, rank 0 takes the total."""
        self.restart()
        sums = running.get("sums", [])
        if len(sums) != self.world.size:
            names = sums[0] if sums else {}
            totals = {name: sum(each[name] for each in sums) for name in names}
            sums = [totals] + [dict.fromkeys(names, 0.0)] * (self.world.size - 1)
        self.sums, self._steps = dict(sums[self.world.rank]), running.get("steps", 0)

    def pause(self) -> float:
        """Return the time, to be given to `go_on` after work that is not training."""
        return time.monotonic()

    def go_on(self, paused: float) -> None:
        """Leave the time since `pause` out of the measure of speed."""
        self._since += time.monotonic() - paused

    def rewind(self, step: int, evaluated: int | None = None) -> None:
        """Drop what came after the step to which the run has gone back."""
        if self.journal:
            self.journal.rewind(step, evaluated)
        self.restart()

    def show(self, step: int, steps: int, seconds_per_step: float) -> None:
        """Bring the bar up to date, a few times a second."""
        now = time.monotonic()
        if not self.world.is_main or (now - self._shown < 0.2 and step != steps):
            return
        self._shown = now
        means = {name: value / self._steps * self.world.size for name, value in self.sums.items()}
        parts = []
        for name in ("loss", "accuracy"):
            if (mean := (means or self.means).get(name)) is not None:
                parts.append(f"{name} {mean:.1%}" if name == "accuracy" else f"{name} {mean:.3f}")
        if not parts:
            return  # no outcome has arrived yet
        if speed := self._pace(now):
            parts.append(f"{speed:,.0f} images/s")
        self.bar.update(step, steps, ", ".join(parts), left=(steps - step) * seconds_per_step)

    def _pace(self, now: float) -> float | None:
        """Return images over time since the record before the latest: waiting counts, evaluation does not."""
        images, seconds = self.speeds[-1] if self.speeds else (0, 0.0)
        images, seconds = images + self._timed * self.images, seconds + now - self._since
        return images / seconds if images and seconds > 0 else None

    def unreadable(self, loader: Loader) -> None:
        """Name a few of the files that could not be read since the last time; others took their places."""
        fresh = [index for index in loader.bad if index not in self._named]
        self._named.update(fresh)
        for index in fresh[:3]:
            console.warn(f"left out: {loader.bad[index]}")
        if len(fresh) > 3:
            console.warn(f"left out: {len(fresh) - 3} more files (`vitreous check` names them all)")

    def evaluation(self, step: int, split: str, figures: Mapping[str, float]) -> None:
        """Record an evaluation, and report it to the caller."""
        if self.journal:
            rounded = {name: round(value, 6) for name, value in figures.items()}
            self.journal.write({"step": step, "split": split, **rounded})
        self.caller.evaluation({"step": step, "split": split, **figures})
