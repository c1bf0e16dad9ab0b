"""Runs that are killed again and again end as if nothing had happened."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.training.runs import assert_same_run, kill, kill_often, run
from vitreous.training import Result


@pytest.mark.slow
def test_killed_at_random_steps(data: str, tmp_path: Path, undisturbed: Result) -> None:
    kills = kill_often(data, tmp_path / "run", "step", 7, save_every=2)
    assert kills >= 10
    assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_killed_inside_saves(data: str, tmp_path: Path, undisturbed: Result) -> None:
    kills = kill_often(data, tmp_path / "run", "save", 60, save_every=1)
    assert kills >= 10
    assert_same_run(tmp_path / "run", undisturbed)


def test_killed_with_muon_and_micro_batches(data: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"optimizer": "muon", "micro_batch": 5, "schedule": "rsqrt", "epochs": 2}
    whole = run(data, tmp_path / "whole", **changes)
    assert kill_often(data, tmp_path / "run", "step", 9, save_every=1, **changes) >= 1
    assert_same_run(tmp_path / "run", whole)


def test_a_damaged_checkpoint_is_passed_over(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], undisturbed: Result
) -> None:
    assert kill(data, tmp_path / "run", "step", 20, save_every=3) == -signal.SIGKILL
    newest = max(path for path in (tmp_path / "run" / "resume").glob("step-*") if not path.suffix)
    shard = next(newest.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    run(data, tmp_path / "run", save_every=3)
    assert f"checkpoint {newest} is damaged and passed over" in capsys.readouterr().err
    assert_same_run(tmp_path / "run", undisturbed)
