"""Runs to test with: small ones, ones that are killed or slowed down, and what makes two runs the same."""

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.forks import FORKS
from vitreous import cli
from vitreous.config import TrainConfig
from vitreous.data import Batch, Dataset
from vitreous.models.weights import Model
from vitreous.objectives import Build, Objective, supervised
from vitreous.training import Result, journal, train
from vitreous.training.plan import Plan
from vitreous.training.state import State
from vitreous.training.step import Outcome, Step

OPTIONS = TrainConfig(
    epochs=6,
    batch_size=16,
    patch_size=(4,),
    augment="light",
    ema=0.9,
    drop_path=0.1,
    device="cpu",
    lr=2e-3,
    optimizer="adamw",
)
FLAGS = ["--epochs", "6", "--batch-size", "16", "--patch-size", "4", "--augment", "light", "--ema", "0.9"]
FLAGS += ["--drop-path", "0.1", "--device", "cpu", "--lr", "2e-3", "--optimizer", "adamw"]


def run(data: str, out: Path, shape: dict[str, Any] | None = None, **changes: Any) -> Result:
    """Train with the options above and these changes, a model of this shape if one is given."""
    return train(data, replace(OPTIONS, out=str(out), **changes), shape=shape)


def weights(folder: Path, name: str = "last") -> dict[str, Tensor]:
    """Return the tensors of a sealed file of a run."""
    return load_file(folder / f"{name}.safetensors")


def assert_same_weights(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float | None = None
) -> None:
    """The same tensors, bit for bit; what another processor computed, as near as its rounding allows."""
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if tolerance is None:
            assert torch.equal(ours[name], value), name
        else:
            assert (ours[name] - value).abs().max() <= tolerance, name


def records(folder: Path, split: str | None = None) -> list[dict[str, Any]]:
    """Return the journal of a run, or its records of one split."""
    found = journal.read(folder / "metrics.jsonl")
    return [record for record in found if split is None or record["split"] == split]


def plan_of(folder: Path) -> Plan:
    """Return the plan that a run wrote down."""
    return Plan.from_json(json.loads((folder / "config.json").read_text())["plan"])


def assert_same_run(folder: Path, undisturbed: Result) -> None:
    """Weights, best weights, records and figures are those of the run that nothing happened to."""
    for name in ("last", "best"):
        assert_same_weights(weights(folder, name), weights(undisturbed.folder, name))
    ours, theirs = (
        [{name: value for name, value in record.items() if name != "images_per_second"} for record in rows]
        for rows in (records(folder), records(undisturbed.folder))
    )
    assert ours == theirs
    figures = json.loads((folder / "results.json").read_text())
    assert figures["test"] == undisturbed.figures["test"]


# -- processes that die or dawdle ----------------------------------------------------------------------------


def dying(data: str, out: Path, how: str, when: int, changes: dict[str, Any]) -> None:
    """Train, and die by SIGKILL at an update, or at a call of the operating system inside a save."""
    torch.set_num_threads(1)
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal count
            count += 1
            if count == when:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)

        return call

    if how == "step":
        State.update = counted(State.update)  # type: ignore[method-assign]
    else:
        for name in ("fsync", "rename", "replace", "unlink", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))
    run(data, out, **changes)


def kill(data: str, out: Path, how: str, when: int, **changes: Any) -> int:
    """Train in a process that dies at the given moment; return how it ended."""
    child = FORKS.Process(target=dying, args=(data, out, how, when, changes))
    child.start()
    child.join(120)
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode


def kill_often(data: str, out: Path, how: str, most: int, **changes: Any) -> int:
    """Start again and again, each time killed at another random moment, until the run ends; count them."""
    chance = random.Random(f"{how} {changes}")
    kills = 0
    while kills < 100:
        if kill(data, out, how, chance.randint(1, most), **changes) == 0:
            return kills
        kills += 1
    raise AssertionError("the run never ends")


def slow(data: str, out: Path, ready: Any, seconds: float, *more: str) -> None:
    """Train through the command line with slow steps, telling when the first is under way."""
    torch.set_num_threads(1)
    os.setsid()  # a group of its own, as a shell gives every command
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
    multiprocessing.set_start_method(None, force=True)  # loader workers of its own, not the fork server's
    take = Step.__call__

    def slowly(self: Step, batch: Batch, step: int, lr: float, progress: float) -> Outcome:
        if step == 3:
            ready.set()
        time.sleep(seconds if step >= 3 else 0.0)
        return take(self, batch, step, lr, progress)

    Step.__call__ = slowly  # type: ignore[method-assign]
    os._exit(cli.main(["train", data, *FLAGS, "--out", str(out), *more]))


# -- tasks with a fault --------------------------------------------------------------------------------------


class Poisoned(Objective):
    """Gives no number whenever one of these images is in the batch; else the task inside."""

    def __init__(self, inner: Objective, images: set[int]) -> None:
        super().__init__()
        self.model, self.images, self.inner = inner.model, images, [inner]  # in a list: not a second owner
        self.headline, self.evaluate, self.score = inner.headline, inner.evaluate, inner.score

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = self.inner[0](batch)
        bad = self.training and bool(self.images & set(batch.indices.tolist()))
        return (loss * float("nan") if bad else loss), metrics


def poison(*images: int) -> Build:
    """Return what builds a task that fails at these images."""

    def make(model: Model, plan: Plan, dataset: Dataset) -> Objective:
        return Poisoned(supervised.build(model, plan, dataset), set(images))

    return make


def scarce(most: int) -> Build:
    """Return what builds a task that has memory for so many images only."""

    def make(model: Model, plan: Plan, dataset: Dataset) -> Objective:
        inner = supervised.build(model, plan, dataset)

        def guard(module: Objective, arguments: tuple[Batch, ...], _: object) -> None:
            # After the forward pass, which has drawn numbers.
            if module.training and len(arguments[0]) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

        inner.register_forward_hook(guard)
        return inner

    return make


def watched(seen: list[Batch]) -> Build:
    """Return what builds the usual task, which keeps every batch that it learns from."""

    def make(model: Model, plan: Plan, dataset: Dataset) -> Objective:
        objective = supervised.build(model, plan, dataset)
        objective.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        return objective

    return make
