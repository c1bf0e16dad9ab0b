"""Checkpoints under kills, full disks and other faults of the operating system."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.forks import FORKS
from tests.training.saved import assert_holds, tensors_of, write
from vitreous.errors import DiskFullError, ResumeError
from vitreous.training.checkpoints import Checkpoints


def _save_until_killed(folder: Path, durable: Any, kill_at: int | None) -> None:
    """Save step after step; with `kill_at`, die at that call of the system inside the third save."""
    torch.set_num_threads(1)
    calls = 0
    third = False

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += third
            if third and calls - 1 == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return counted

    if kill_at is not None:
        for name in ("fsync", "rename", "replace", "open", "unlink", "rmdir", "mkdir"):
            setattr(os, name, counting(getattr(os, name)))
    checkpoints = Checkpoints(folder, keep=2)
    saved = checkpoints.newest()
    first = saved.step + 1 if saved else 1
    for step in range(first, first + 3 if kill_at is not None else 10**6):
        third = step == first + 2
        checkpoints.save(step, tensors_of(step), {"step": step, "seed": 7, "loss": 0.1 + step})
        checkpoints.wait()
        durable.value = step
    durable.value = -calls  # survived: how many calls there are to die at


def _run_and_kill(folder: Path, after: float | None, kill_at: int | None) -> int:
    durable = FORKS.Value("q", 0)
    child = FORKS.Process(target=_save_until_killed, args=(folder, durable, kill_at))
    child.start()
    if after is not None:
        deadline = time.monotonic() + 60
        while durable.value == 0 and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(after)
        child.kill()
    child.join(60)
    assert child.exitcode in (-signal.SIGKILL, 0)
    return durable.value


def test_killed_at_random_inside_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(1)
    for _ in range(12):
        durable = _run_and_kill(tmp_path, chance.uniform(0.0, 0.15), None)
        assert durable >= 1
        checkpoints = Checkpoints(tmp_path)
        saved = checkpoints.newest()
        assert saved is not None and saved.step in (durable, durable + 1)
        assert_holds(checkpoints, saved.step)
        assert not [path for path in tmp_path.iterdir() if path.suffix]
    assert "damaged" not in capsys.readouterr().err


@pytest.mark.slow
def test_killed_at_every_call_inside_a_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not at random: once at each opening, syncing, renaming and deleting of the third save."""
    calls = -_run_and_kill(tmp_path / "whole", None, 10**9)
    assert calls > 10
    for kill_at in range(calls):
        folder = tmp_path / str(kill_at)
        assert _run_and_kill(folder, None, kill_at) == 2
        checkpoints = Checkpoints(folder)
        saved = checkpoints.newest()
        assert saved is not None and saved.step in (2, 3), kill_at
        assert_holds(checkpoints, saved.step)
        assert not [path for path in folder.iterdir() if path.suffix]
    assert "damaged" not in capsys.readouterr().err


def _no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_keeps_the_last_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = write(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr("torch.distributed.checkpoint.filesystem.os.fsync", _no_space)
        checkpoints.save(2, tensors_of(2), {"step": 2, "seed": 7, "loss": 2.1})
        while not checkpoints.failed:
            time.sleep(0.01)
    with pytest.raises(DiskFullError) as caught:
        checkpoints.wait()
    free = r"[\d.]+ [KMG]?i?B are free"
    assert caught.match(rf"no space for the checkpoint of step 2 in .*: it needs 8 KiB and {free}; ")
    assert caught.match(r".*; step-00000001 stays: make room, then run the same command again")
    assert not list(tmp_path.glob("*.partial"))
    assert_holds(checkpoints, 1)
    checkpoints.save(2, tensors_of(2), {"step": 2, "seed": 7, "loss": 2.1})  # room again: the run goes on
    assert_holds(checkpoints, 2)


def _fill(folder: Path) -> None:
    checkpoints = Checkpoints(folder / "resume")
    checkpoints.save(1, {"weight": torch.ones(600_000 // 4)}, {})
    checkpoints.wait()
    checkpoints.save(2, {"weight": torch.ones(600_000 // 4)}, {})
    with pytest.raises(DiskFullError, match="it needs 586 KiB and .* step-00000001 stays"):
        checkpoints.wait()
    saved = checkpoints.newest()
    assert saved is not None and saved.step == 1
    assert [path.name for path in (folder / "resume").glob("step-*")] == ["step-00000001"]
    (folder / "resume" / "proof").write_text("room again")


def test_a_really_full_disk(tmp_path: Path) -> None:
    """A file system of one megabyte, mounted for a child process alone."""
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    into = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*into, mount], capture_output=True).returncode:
        pytest.skip("this machine lets no one mount a small file system (unshare --map-root-user --mount)")
    where = "from tests.training.test_checkpoint_faults import _fill"
    code = f"import pathlib; {where}; _fill(pathlib.Path({str(tmp_path)!r}))"
    command = (
        f"{mount} && {sys.executable} -c '{code.replace(chr(39), chr(34))}' && cat {tmp_path}/resume/proof"
    )
    path = str(Path(__file__).parents[2])
    done = subprocess.run(
        [*into, command], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout == "room again", done.stderr


def test_other_faults_of_the_disk_are_named(tmp_path: Path) -> None:
    checkpoints = write(tmp_path, 1)
    (tmp_path / "step-00000002.partial").write_text("a file where a folder should be")
    checkpoints.save(2, tensors_of(2), {})
    with pytest.raises(
        ResumeError, match=r"can't write the checkpoint of step 2 .*File exists.*step-00000001 stays"
    ):
        checkpoints.wait()
    (tmp_path / "file").write_text("")
    with pytest.raises(ResumeError, match=r"file/resume can't be used: .*Not a directory"):
        Checkpoints(tmp_path / "file" / "resume")
