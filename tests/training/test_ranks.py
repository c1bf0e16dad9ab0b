"""Several ranks train as one, and go on where one of them was killed."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests import ranks
from tests.forks import FORKS, say_into
from tests.training.conftest import stripes
from tests.training.runs import FLAGS, assert_same_weights, records, run, weights
from tests.training.test_pretrain import options
from vitreous import cli
from vitreous.training import Result, pretrain


def _train_here(data: str, folder: Path, runs: dict[str, dict[str, Any]]) -> None:
    for name, changes in runs.items():
        run(data, folder / name, **changes)


@pytest.mark.slow
def test_ranks_train_as_one(data: str, tmp_path: Path) -> None:
    """Batches of 15 over 2 ranks: shares of unequal size; 30 and 31 images to judge: a tail for one rank."""
    changes: dict[str, Any] = {"batch_size": 15, "drop_path": 0.0, "epochs": 2}
    changes["lr"] = 5e-4  # what AdamW makes of a gradient that is rounding alone grows with it
    sgd = {**changes, "optimizer": "sgd", "lr": 0.05}
    alone = {
        "adamw": run(data, tmp_path / "alone", **changes),
        "sgd": run(data, tmp_path / "alone-sgd", **sgd),
    }
    runs = {
        "adamw-ddp": changes,
        "adamw-fsdp": {**changes, "shard": True},
        "sgd-ddp-parts": {**sgd, "micro_batch": 3},
        "sgd-fsdp-parts": {**sgd, "shard": True, "micro_batch": 7},  # one part of the smaller share, two else
    }
    ranks.run(2, _train_here, data, tmp_path, runs)
    assert ", 2 ranks, in " in (tmp_path / next(iter(runs)) / "model_card.md").read_text()
    for name in runs:
        reference = alone[name.partition("-")[0]]
        figures = json.loads((tmp_path / name / "results.json").read_text())
        assert figures["ranks"] == 2 and figures["test"]["count"] == 31
        for part in ("val", "test"):
            assert figures[part] == pytest.approx(reference.figures[part], abs=1e-5), name
        traces = [
            [(r["step"], r["loss"], r["gradient_norm"]) for r in records(f) if "lr" in r]
            for f in (tmp_path / name, reference.folder)
        ]
        assert len(traces[0]) > 1
        for ours, theirs in zip(*traces, strict=True):
            assert ours[:2] == pytest.approx(theirs[:2], abs=1e-5), name
            assert ours[2] == pytest.approx(theirs[2], rel=1e-4), name
        if name.startswith("sgd"):  # AdamW divides by the gradient's size, even where that is rounding alone
            for key, value in weights(reference.folder).items():
                torch.testing.assert_close(weights(tmp_path / name)[key], value, rtol=0, atol=1e-5)


FEW: dict[str, Callable[[str, Path], Result]] = {
    "mixed": lambda data, out: run(data, out, epochs=3, augment="mix", drop_path=0.0),
    "padded": lambda data, out: run(data, out, epochs=3, fit="pad", image_size=(8, 12), drop_path=0.0),
    "sharded": lambda data, out: run(data, out, epochs=3, shard=True, drop_path=0.0),
    "painted": lambda data, out: run(data, out, epochs=3, patch_drop=0.5, reconstruct=2.0, drop_path=0.0),
    "painted, sharded": lambda data, out: run(
        data, out, epochs=3, patch_drop=0.5, reconstruct=2.0, drop_path=0.0, shard=True
    ),
    "mae": lambda data, out: pretrain(data, options("mae", out, epochs=3, preview=True)),
    "dino": lambda data, out: pretrain(data, options("dino", out, epochs=3)),
}


def _train_few(data: str, folder: Path) -> None:
    for name, learn in FEW.items():
        learn(data, folder / name)


@pytest.mark.slow
def test_ranks_without_an_image_take_part(tmp_path: Path) -> None:
    """Two images over three ranks: one has none, and no one waits for it."""
    data = stripes(tmp_path / "few.npz", train=2, val=1, test=2)
    ranks.run(3, _train_few, data, tmp_path / "three")
    for name, learn in FEW.items():
        found = json.loads((tmp_path / "three" / name / "results.json").read_text())
        alone = learn(data, tmp_path / "alone" / name)
        assert found["ranks"] == 3 and found["test"]["count"] == 2
        assert found["test"] == pytest.approx(alone.figures["test"], abs=2e-3), name
        traces = [
            [row["loss"] for row in records(folder, "train")]
            for folder in (tmp_path / "three" / name, alone.folder)
        ]
        assert len(traces[0]) == 3 and traces[0] == pytest.approx(traces[1], abs=1e-4), name


@pytest.mark.slow
def test_torchrun_goes_on_after_a_killed_rank(data: str, tmp_path: Path) -> None:
    """With the settings of docs/distributed.md: one rank is killed, both start again, nothing is lost."""
    out, said = tmp_path / "run", tmp_path / "said"
    arguments = ["train", data, *FLAGS, "--epochs", "4", "--save-every", "2", "--out", str(out)]
    torchrun = FORKS.Process(target=_torchrun, args=(said, arguments))
    torchrun.start()
    deadline = time.monotonic() + 90
    while not (out / "resume" / "step-00000004").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    ranks_alive = [int(pid) for pid in _children(torchrun.pid or 0)]
    assert len(ranks_alive) == 2, said.read_text()
    os.kill(ranks_alive[1], signal.SIGKILL)
    torchrun.join(150)
    assert torchrun.exitcode == 0, said.read_text()
    assert "going on from step" in said.read_text() and "this is a bug" not in said.read_text()
    ranks.run(2, _train_here, data, tmp_path, {"whole": {"epochs": 4}})
    assert_same_weights(weights(out), weights(tmp_path / "whole"))


def _torchrun(said: Path, arguments: list[str]) -> None:
    """Do as `torchrun --nproc-per-node 2 --max-restarts 3 --rdzv-backend c10d -m vitreous …`, whose ranks are
    forked from this process, which has imported everything."""
    say_into(said)
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=3,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        start_method="fork",
    )
    elastic_launch(config, _command)(arguments)


def _command(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    assert cli.main(arguments) == 0


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
