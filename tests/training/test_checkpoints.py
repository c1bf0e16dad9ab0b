"""Checkpoints: what is saved comes back, in the background, and damage is passed over."""

import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.saved import assert_holds, tensors_of, write
from vitreous.errors import ResumeError
from vitreous.training import checkpoints as module
from vitreous.training.checkpoints import Checkpoints


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "resume").newest() is None
    checkpoints = write(tmp_path / "resume", 3)
    assert_holds(checkpoints, 3)
    assert_holds(Checkpoints(tmp_path / "resume"), 3)
    folder = tmp_path / "resume" / "step-00000003"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["manifest.json", "shard-00001-model-00001-of-00001.safetensors"]
    assert (tmp_path / "resume" / ".latest").read_text() == "step-00000003\n"


def test_the_last_k_are_kept(tmp_path: Path) -> None:
    checkpoints = write(tmp_path, 1, 2, 3, 4, 5, keep=2)
    assert sorted(os.listdir(tmp_path)) == [".latest", "step-00000004", "step-00000005"]
    assert_holds(checkpoints, 5)


def test_a_step_is_not_held_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is stuck, save has returned and the weights change; the old ones are stored."""
    go = threading.Event()
    fingerprint = module._fingerprint
    monkeypatch.setattr(module, "_fingerprint", lambda file: go.wait(30) and fingerprint(file))
    checkpoints = Checkpoints(tmp_path)
    live = tensors_of(1)
    checkpoints.save(1, live, {"step": 1, "seed": 7, "loss": 1.1})
    for value in live.values():
        value.zero_()
    time.sleep(0.2)
    assert not checkpoints.failed and not (tmp_path / ".latest").exists()
    assert not (tmp_path / "step-00000001").exists()
    go.set()
    checkpoints.wait()
    assert_holds(checkpoints, 1)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    place = random.Random(str(file.name)).randrange(len(data))
    data[place] ^= 1 << (place % 8)
    file.write_bytes(data)


FAULTS: dict[str, Callable[[Path], Any]] = {
    "bit flipped": flip,
    "cut in half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "emptied": lambda file: os.truncate(file, 0),
    "lost": lambda file: file.unlink(),
    "added": lambda file: shutil.copy(file, file.with_name("shard-00009-model-00001-of-00001.safetensors")),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("victim", ["manifest.json", "shard-00001-model-00001-of-00001.safetensors"])
def test_damage_is_named_and_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, victim: str
) -> None:
    write(tmp_path, 1, 2, 3)
    FAULTS[fault](tmp_path / "step-00000003" / victim)
    checkpoints = Checkpoints(tmp_path)
    assert_holds(checkpoints, 2)
    said = capsys.readouterr().err
    assert f"warning: checkpoint {tmp_path / 'step-00000003'} is damaged and passed over" in said
    assert said.count("\n") == 1
    for step in (3, 4):  # the run comes by the same step again, and the damaged one gives way
        checkpoints.save(step, tensors_of(step), {"step": step, "seed": 7, "loss": 0.1 + step})
        assert_holds(checkpoints, step)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == [f"step-0000000{s}" for s in (2, 3, 4)]
    assert capsys.readouterr().err == ""


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    checkpoints = write(tmp_path, 1)
    chance = random.Random(0)
    for file in sorted((tmp_path / "step-00000001").iterdir()):
        whole = file.read_bytes()
        for _ in range(40):
            data = bytearray(whole)
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            file.write_bytes(data)
            assert checkpoints.newest() is None, f"{file.name} was changed and taken"
        file.write_bytes(whole)
    assert_holds(checkpoints, 1)


def test_damaged_ones_do_not_push_out_good_ones(tmp_path: Path) -> None:
    write(tmp_path, 1, 8, 9, keep=3)
    for step in (8, 9):
        flip(tmp_path / f"step-0000000{step}" / "manifest.json")
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert_holds(checkpoints, 1)
    checkpoints.save(2, tensors_of(2), {"step": 2, "seed": 7, "loss": 2.1})
    checkpoints.wait()
    assert (tmp_path / "step-00000001").exists() and (tmp_path / "step-00000002").exists()
    assert_holds(Checkpoints(tmp_path), 2)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    checkpoints = write(tmp_path, 1)
    saved = checkpoints.newest()
    assert saved is not None
    other = {**tensors_of(1), "model.weight": torch.zeros(64, 16)}
    with pytest.raises(ResumeError, match="model.weight is float32 of 64x32 there and float32 of 64x16 here"):
        checkpoints.load(saved, other)
    del other["counts"], other["model.weight"]
    with pytest.raises(ResumeError, match="counts is int64 of 3 there and absent here"):
        checkpoints.load(saved, other)
