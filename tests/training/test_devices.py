"""The same run on the CPU and on a GPU, where one is; and with the pixels on the device, which a CPU can be.

`python -m pytest tests -k cuda` comes first on a machine with a GPU.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.runs import assert_same_weights, records, run, weights
from tests.training.test_pretrain import OBJECTIVES, options
from vitreous import parallel
from vitreous.config import DistillConfig, FinetuneConfig
from vitreous.training import Result, distill, finetune, pretrain

pytestmark = [  # torch 2.11's compiler warns of what it does itself
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
]
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
GPU = pytest.param("cuda", marks=CUDA)
PLAIN: dict[str, Any] = {"augment": "none", "drop_path": 0.0, "epochs": 4, "precision": "float32"}
"""Nothing is drawn: devices have generators of their own."""
PLAIN["shape"] = {"width": 64, "depth": 4, "heads": 4, "mlp_width": 256}  # a GPU would choose a larger model


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed is not measured here."""
    monkeypatch.setattr(parallel, "matrix_rate", lambda *_, **__: 1e12)


@pytest.fixture(scope="module")
def plain(data: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run on the CPU, with its pixels on the host."""
    torch.set_num_threads(1)
    return run(data, tmp_path_factory.mktemp("plain") / "run", **PLAIN, pixels="host")


def assert_near(ours: Result, theirs: Result, tolerance: float) -> None:
    """The losses of all steps and evaluations lie as near as the rounding of two devices allows."""
    mine, other = records(ours.folder), records(theirs.folder)
    assert [(row["step"], row["split"]) for row in mine] == [(row["step"], row["split"]) for row in other]
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(mine, other, strict=True)) <= tolerance


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("pixels", ["host", "device"])
def test_devices_learn_the_same(data: str, tmp_path: Path, plain: Result, device: str, pixels: str) -> None:
    found = run(data, tmp_path / "run", **PLAIN, device=device, pixels=pixels)
    assert_near(found, plain, 1e-3)
    assert_same_weights(weights(found.folder), weights(plain.folder), 2e-3)
    assert found.figures["test"]["accuracy"] == plain.figures["test"]["accuracy"]


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("preset", ["small", "strong"])
def test_devices_augment_the_same(data: str, tmp_path: Path, preset: str, device: str) -> None:
    """What is drawn for an image follows from the seed alone; a pixel may differ by a grey level."""
    changes = {**PLAIN, "augment": preset}
    host = run(data, tmp_path / "host", **changes, pixels="host")
    found = run(data, tmp_path / "device", **changes, device=device, pixels="device")
    assert_near(found, host, 0.02)


@CUDA
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_bf16_on_cuda(data: str, tmp_path: Path, optimizer: str) -> None:
    """The whole path of a GPU: pixels on the device, bf16, recorded steps, a lag of eight."""
    changes = {**PLAIN, "optimizer": optimizer, "lr": None}
    host = run(data, tmp_path / "host", **changes)
    changes |= {"device": "cuda", "pixels": "device", "precision": "bf16"}
    assert_near(run(data, tmp_path / "run", **changes), host, 0.1)


@CUDA
def test_a_run_on_cuda_that_is_stopped_goes_on(data: str, tmp_path: Path) -> None:
    """A process of its own: one that has used a GPU can't be forked."""
    whole, flags = tmp_path / "whole", ["--device", "cuda", "--patch-size", "4", "--epochs", "60"]
    command = [sys.executable, "-m", "vitreous", "train", data, *flags, "--out"]
    subprocess.run([*command, str(whole)], check=True)
    stopped = subprocess.Popen([*command, str(tmp_path / "run")])
    journal, until = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not (journal.exists() and "val" in journal.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(stopped.pid, signal.SIGTERM)
    assert stopped.wait() != 0
    assert not (tmp_path / "run" / "results.json").exists()
    subprocess.run([*command, str(tmp_path / "run")], check=True)
    ours, theirs = (
        {row["step"]: row["loss"] for row in records(folder, "train")} for folder in (tmp_path / "run", whole)
    )
    assert ours.keys() == theirs.keys()  # no step is missing, none is taken twice
    assert max(abs(ours[step] - theirs[step]) for step in ours) <= 0.05  # its kernels add in any order


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_tasks_without_labels(data: str, tmp_path: Path, objective: str, device: str) -> None:
    found = pretrain(data, replace(options(objective, tmp_path / "run"), device=device))
    losses = [row["loss"] for row in records(found.folder, "train")]
    assert losses and all(0 < loss < 20 for loss in losses)


@CUDA
@pytest.mark.parametrize("tune", ["full", "head", "lora"])
def test_finetuning_on_cuda(data: str, tmp_path: Path, plain: Result, tune: str) -> None:
    asked = FinetuneConfig(tune=tune, epochs=2, batch_size=16, device="cuda", out=str(tmp_path / "run"))  # type: ignore[arg-type]
    found = finetune(str(plain.folder), data, asked)
    assert found.figures["test"]["accuracy"] >= plain.figures["test"]["accuracy"] - 0.1


@CUDA
def test_distilling_on_cuda(data: str, tmp_path: Path, plain: Result) -> None:
    asked = DistillConfig(patch_size=(4,), batch_size=16, epochs=2, device="cuda", out=str(tmp_path / "run"))
    found = distill(str(plain.folder), data, asked)
    assert json.loads((found.folder / "results.json").read_text())["test"]["accuracy"] > 0.3
