"""Checkpoints under every fault that we know of: kills, damage, full disks, other ranks, second processes."""

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from vitreous.resume import Checkpoints, RunLock

from tests import ranks
from tests.tiny import Tiny, batch
from vitreous import optim, parallel, resume
from vitreous.errors import DiskFullError, ResumeError


def tensors_of(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "model.weight": torch.randn(64, 32, generator=generator),
        "optimizer.weight.step": torch.tensor(float(step)),
        "model.empty": torch.zeros(0, 4),
        "model.columns": torch.randn(8, 4, generator=generator).t(),  # not contiguous, as channels_last
        "counts": torch.arange(step, step + 3),
    }


def write(folder: Path, *steps: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=keep)
    for step in steps:
        checkpoints.save(step, tensors_of(step), {"step": step, "seed": 7, "loss": 0.1 + step})
    checkpoints.wait()
    return checkpoints


def assert_holds(checkpoints: Checkpoints, step: int) -> None:
    """The newest intact checkpoint is this one, bit for bit."""
    saved = checkpoints.newest()
    assert saved is not None and saved.step == step
    assert saved.values == {"step": step, "seed": 7, "loss": 0.1 + step}
    found = {name: torch.full_like(value, 99) for name, value in tensors_of(0).items()}
    checkpoints.load(saved, found)
    for name, value in tensors_of(step).items():
        assert torch.equal(found[name], value), name


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
    fingerprint = resume._fingerprint
    monkeypatch.setattr(resume, "_fingerprint", lambda file: go.wait(30) and fingerprint(file))
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


# -- kills ---------------------------------------------------------------------------------------------------

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "vitreous.resume"])


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


# -- several ranks -------------------------------------------------------------------------------------------


class Objective(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Tiny(width=10)  # 10 rows and 3 classes: shards of unequal size, some of them empty

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(images), targets)


Job = tuple[str, bool, int, int]


def _go_on(folder: Path, jobs: list[Job]) -> None:
    with parallel.join("cpu") as world:
        for name, shard, first, last in jobs:
            _train(world, folder / name, shard, first, last)


def _train(world: parallel.World, folder: Path, shard: bool, first: int, last: int) -> None:
    """Train the steps [first, last) from the checkpoint before them, if any, and save after them."""
    torch.manual_seed(world.rank + first)  # other weights everywhere: only a checkpoint can make them equal
    objective = Objective()
    module = parallel.prepare(objective, world, shard=shard)
    optimizers = optim.build(objective.named_parameters(), lr=0.02)
    ema = optim.Ema(objective, 0.9)
    checkpoints = Checkpoints(folder)

    def live() -> dict[str, Tensor]:
        state = {f"optimizer.{name}": value for name, value in optim.state_tensors(optimizers).items()}
        weights = {f"model.{name}": value for name, value in objective.state_dict().items()}
        return {**weights, **{f"ema.{name}": value for name, value in ema.tensors.items()}, **state}

    saved = checkpoints.newest()
    if saved is not None:
        keys = [name.removeprefix("optimizer.") for name in saved.tensors if name.startswith("optimizer.")]
        optim.create_state(optimizers, keys)
        checkpoints.load(saved, live())
        assert saved.step == first
    for step in range(first, last):
        images, targets = batch(step)
        share = slice(world.rank * 6 // world.size, (world.rank + 1) * 6 // world.size)
        module(images[share], targets[share]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        ema.update(step)
    checkpoints.save(last, live(), {})
    checkpoints.wait()
    whole = parallel.whole_tensors(live())
    if world.leads:
        save_file(whole, folder.with_suffix(f".{last}.safetensors"))
    checkpoints.close()


def test_two_ranks_write_one_and_three_go_on(tmp_path: Path) -> None:
    kinds = {"sharded": True, "replicated": False}
    # Uninterrupted; the same stopped at 3; and from there on, on as many ranks, on one, and on three.
    whole = [(f"whole-{kind}", shard, 0, 6) for kind, shard in kinds.items()]
    stopped = [(f"stopped-{kind}", shard, 0, 3) for kind, shard in kinds.items()]
    ranks.run(2, _go_on, tmp_path, [*whole, *stopped])
    shards = (tmp_path / "stopped-sharded" / "step-00000003").glob("*.safetensors")
    assert len(list(shards)) == 2
    for size in (1, 3):
        for kind in kinds:
            shutil.copytree(tmp_path / f"stopped-{kind}", tmp_path / f"{size}-{kind}")
        then = [(f"{size}-{kind}", shard, 3, last) for last in (3, 6) for kind, shard in kinds.items()]
        if size == 1:
            _go_on(tmp_path, then)
        else:
            ranks.run(size, _go_on, tmp_path, then)
    for kind in kinds:
        start = load_file(tmp_path / f"stopped-{kind}.3.safetensors")
        end = load_file(tmp_path / f"whole-{kind}.6.safetensors")
        for size in (1, 3):
            loaded = load_file(tmp_path / f"{size}-{kind}.3.safetensors")
            final = load_file(tmp_path / f"{size}-{kind}.6.safetensors")
            assert loaded.keys() == start.keys() == end.keys()
            for name, value in start.items():
                assert torch.equal(loaded[name], value), name  # exact: nothing was computed in between
                torch.testing.assert_close(
                    final[name], end[name], rtol=0, atol=1e-5, msg=f"{size} ranks: {name}"
                )
                assert not torch.equal(value, end[name])


def _one_rank_fails(folder: Path) -> None:
    with parallel.join("cpu") as world:
        checkpoints = Checkpoints(folder)
        checkpoints.save(1, {f"r{i}": torch.ones(5) for i in range(4)}, {})
        checkpoints.wait()
        if world.rank == 1:
            real = resume.async_save

            def full(*arguments: Any, storage_writer: Any, **options: Any) -> Any:
                storage_writer.write_data = _no_space
                return real(*arguments, storage_writer=storage_writer, **options)

            resume.async_save = full  # type: ignore[assignment]
        checkpoints.save(2, {f"r{i}": torch.ones(5) for i in range(4)}, {})
        with pytest.raises(DiskFullError, match="no space for the checkpoint of step 2"):
            checkpoints.wait()
        saved = checkpoints.newest()
        assert saved is not None and saved.step == 1
        torch.distributed.barrier()
        assert sorted(path.name for path in folder.glob("step-*")) == ["step-00000001"]


def _no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_fault_on_one_rank_is_everyones(tmp_path: Path) -> None:
    ranks.run(2, _one_rank_fails, tmp_path)


# -- full disks ----------------------------------------------------------------------------------------------


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
    code = (
        f"import pathlib; from tests import test_resume; test_resume._fill(pathlib.Path({str(tmp_path)!r}))"
    )
    command = (
        f"{mount} && {sys.executable} -c '{code.replace(chr(39), chr(34))}' && cat {tmp_path}/resume/proof"
    )
    path = str(Path(__file__).parents[1])
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


# -- the run folder ------------------------------------------------------------------------------------------


def _hold(folder: Path, ready: Any, forked: bool) -> None:
    _lock = RunLock(folder)
    if forked and os.fork() == 0:
        time.sleep(60)  # a loader worker that outlives its parent
        os._exit(0)
    ready.set()
    time.sleep(60)


@pytest.mark.parametrize("forked", [False, True])
def test_one_process_a_run_folder(tmp_path: Path, forked: bool) -> None:
    ready = FORKS.Event()
    child = FORKS.Process(target=_hold, args=(tmp_path, ready, forked))
    child.start()
    assert ready.wait(60)
    with pytest.raises(ResumeError, match=rf"is in use by process {child.pid} on .*: wait for it, or"):
        RunLock(tmp_path)
    child.kill()
    child.join()
    lock = RunLock(tmp_path)  # what a killed process left is no obstacle
    with pytest.raises(ResumeError, match=f"is in use by process {os.getpid()}"):
        RunLock(tmp_path)
    lock.release()
    RunLock(tmp_path).release()


def test_changed_options_are_refused_with_both_values(tmp_path: Path) -> None:
    before = {"lr": 0.001, "image_size": [32, 32], "model": "vit_tiny", "ema": None}
    resume.write_json(tmp_path / "config.json", before)
    stored = json.loads((tmp_path / "config.json").read_text())
    resume.refuse_changes(stored, {**before, "image_size": (32, 32)}, tmp_path)
    with pytest.raises(ResumeError) as caught:
        resume.refuse_changes(stored, {**before, "lr": 0.01, "ema": 0.99}, tmp_path)
    assert caught.match("ema was null and is now 0.99; lr was 0.001 and is now 0.01: repeat the old ones, or")
    assert "image_size" not in str(caught.value)


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
