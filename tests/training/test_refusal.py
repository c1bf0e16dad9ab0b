"""A loss that is not finite: nothing moves, the images are named, the run stops or goes back."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests import ranks
from tests.forks import FORKS
from tests.training.runs import OPTIONS, assert_same_run, poison, records, weights
from vitreous import checkpoint
from vitreous.config import TrainConfig
from vitreous.data import Dataset
from vitreous.errors import TrainingError
from vitreous.models.weights import Model
from vitreous.objectives import Objective
from vitreous.training import train
from vitreous.training.log import Log
from vitreous.training.plan import Plan
from vitreous.training.state import State


def test_what_is_not_finite_stops_the_run_before_harm(data: str, tmp_path: Path) -> None:
    options = replace(OPTIONS, out=str(tmp_path), epochs=2)
    with pytest.raises(TrainingError) as caught:
        train(data, options, make_objective=poison(40))
    message = str(caught.value)
    report = json.loads(next(tmp_path.glob("nonfinite-*.json")).read_text())
    step = report["step"]
    assert f"not finite at step {step}, learning rate {report['learning_rate']:.3g}, files " in message
    assert "--on-nan rollback" in message
    assert "train_images#40" in report["files"] and len(report["files"]) == 16
    kept = tmp_path / "resume" / f"step-{step:08}"
    tensors = load_file(next(kept.glob("*.safetensors")))
    assert all(torch.isfinite(value).all() for value in tensors.values())
    counts = {value.item() for name, value in tensors.items() if name.endswith(".step")}
    assert counts == ({float(step)} if step else set())  # as many updates as there were steps before it
    with pytest.raises(TrainingError, match=f"not finite at step {step}"):
        train(data, options, make_objective=poison(40))


def test_rollback_leaves_the_batch_out(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = replace(OPTIONS, out=str(tmp_path), epochs=2, on_nan="rollback", save_every=2)
    result = train(data, options, make_objective=poison(40))  # once in each epoch
    said = capsys.readouterr().err
    assert said.count("rolled back to step") == 2
    last = load_file(next((tmp_path / "resume" / "step-00000012").glob("*.safetensors")))
    assert {value.item() for name, value in last.items() if name.endswith(".step")} == {10.0}
    assert all(torch.isfinite(value).all() for value in weights(result.folder).values())


def test_a_task_follows_the_updates_that_were_made(data: str, tmp_path: Path) -> None:
    """Such as an average that teaches: after each update, never after a step that was refused."""
    followed: list[tuple[int, Tensor | None]] = []

    def make(model: Model, plan: Plan, dataset: Dataset) -> Objective:
        objective = poison(40)(model, plan, dataset)
        objective.after_update = lambda step, refused: followed.append((step, refused))  # type: ignore[method-assign]
        return objective

    options = replace(OPTIONS, out=str(tmp_path), epochs=1, on_nan="rollback")
    train(data, options, make_objective=make)
    bad = json.loads(next(tmp_path.glob("nonfinite-*.json")).read_text())["step"]
    assert [step for step, _ in followed] == [*range(bad), *(step for step in range(6) if step != bad)]
    assert all(refused is None for _, refused in followed)  # a CPU waits: there is no flag to look at


def best_of_journal(folder: Path) -> dict[str, Any]:
    """Return the evaluation that should have been sealed: the highest accuracy, then the lowest loss."""
    return max(records(folder, "val"), key=lambda record: (record["accuracy"], -record["loss"]))


def assert_journal_and_best_agree(folder: Path, steps: int) -> None:
    """Every step was recorded once and in order, and the best of them is what was sealed."""
    for split in ("train", "val"):
        assert [record["step"] for record in records(folder, split)] == list(range(6, steps + 1, 6)), split
    assert [record["step"] for record in records(folder, "test")] == [steps]
    sealed = checkpoint.read(folder / "best.safetensors").about
    recorded = best_of_journal(folder)
    assert sealed["step"] == recorded["step"]
    for name in ("loss", "accuracy"):
        assert sealed["results"]["val"][name] == pytest.approx(recorded[name], abs=1e-6)


def test_after_a_rollback_the_journal_is_in_order(data: str, tmp_path: Path) -> None:
    """Checkpoints at 0, 8 and 16; the bad batch comes in each epoch: evaluations are taken again."""
    options = replace(OPTIONS, out=str(tmp_path), epochs=3, on_nan="rollback", save_every=8)
    train(data, options, make_objective=poison(40))
    assert_journal_and_best_agree(tmp_path, 18)
    assert checkpoint.read(tmp_path / "best.safetensors").about["results"]["val"]["count"] == 30


def _killed_after_a_rollback(data: str, options: TrainConfig) -> None:
    torch.set_num_threads(1)
    rewind, update, rolled_back, updates = Log.rewind, State.update, 0, 0

    def rewound(self: Log, *arguments: Any) -> None:
        nonlocal rolled_back
        rewind(self, *arguments)
        rolled_back += 1

    def counted(self: State, *arguments: Any) -> None:
        nonlocal updates
        updates += rolled_back >= 2
        if updates == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        update(self, *arguments)

    Log.rewind, State.update = rewound, counted  # type: ignore[method-assign]
    train(data, options, make_objective=poison(40))


def test_a_kill_after_a_rollback_changes_nothing(data: str, tmp_path: Path) -> None:
    options = replace(OPTIONS, epochs=3, on_nan="rollback", save_every=4)
    whole = train(data, replace(options, out=str(tmp_path / "whole")), make_objective=poison(40))
    killed = replace(options, out=str(tmp_path / "killed"))
    child = FORKS.Process(target=_killed_after_a_rollback, args=(data, killed))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    train(data, killed, make_objective=poison(40))
    assert_journal_and_best_agree(tmp_path / "killed", 18)
    assert_same_run(tmp_path / "killed", whole)


def test_after_three_rollbacks_it_stops(data: str, tmp_path: Path) -> None:
    options = replace(OPTIONS, out=str(tmp_path), on_nan="rollback")
    with pytest.raises(TrainingError, match="after 3 rollbacks"):
        train(data, options, make_objective=poison(40))
    assert len(list(tmp_path.glob("nonfinite-*.json"))) == 4


def _poisoned_here(data: str, folder: Path) -> None:
    options = replace(OPTIONS, out=str(folder), epochs=1, save_every=1)
    with pytest.raises(TrainingError, match="not finite"):
        train(data, options, make_objective=poison(40))


@pytest.mark.slow
def test_one_ranks_nan_is_everyones(data: str, tmp_path: Path) -> None:
    """One rank alone has the bad image: no rank updates, and only its files are named."""
    ranks.run(2, _poisoned_here, data, tmp_path)
    report = json.loads(next(tmp_path.glob("nonfinite-*.json")).read_text())
    assert len(report["files"]) == 8 and "train_images#40" in report["files"]
    kept = tmp_path / "resume" / f"step-{report['step']:08}"
    shards = [load_file(file) for file in kept.glob("*.safetensors")]
    tensors = {name: value for shard in shards for name, value in shard.items()}
    assert all(torch.isfinite(value).all() for value in tensors.values())
