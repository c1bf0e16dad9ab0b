"""The run folder: one process, one set of options, and a disk that may be full."""

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError

from tests.forks import FORKS
from tests.training.runs import OPTIONS, assert_same_run, run, slow
from vitreous import checkpoint, cli, files
from vitreous.config import DistillConfig, FinetuneConfig, PretrainConfig, TrainConfig
from vitreous.errors import DiskFullError, ResumeError
from vitreous.training import Result, chosen, distill, finetune, folder, pretrain, train
from vitreous.training.folder import RunLock
from vitreous.training.journal import Journal
from vitreous.training.run import train as start


def test_changed_options_are_refused(data: str, undisturbed: Result, tmp_path: Path) -> None:
    with pytest.raises(
        ResumeError, match="batch_size was 16 and is now 8; lr was 0.002 and is now 0.1: repeat"
    ):
        run(data, undisturbed.folder, batch_size=8, lr=0.1)
    with np.load(data) as arrays:
        changed = {**arrays}
    changed["train_images"][0] += 1
    np.savez(tmp_path / "stripes.npz", **changed)
    with pytest.raises(
        ResumeError, match="other options: the data has other images, labels or splits now: repeat"
    ):
        run(str(tmp_path / "stripes.npz"), undisturbed.folder)
    free = {"workers": 1, "keep": 2, "save_every": 7, "on_nan": "rollback", "micro_batch": 4}
    assert run(data, undisturbed.folder, **free).figures == undisturbed.figures


def test_another_seed_is_not_told_as_other_data() -> None:
    """The held-out images follow from the seed, and the checksum of the data with them."""
    before = {"seed": 0, "data": "1f", "checkpoint": "2e"}
    stored = {"options": before, "plan": {}}
    assert folder.changes(stored, {**before, "seed": 1, "data": "3d"}) == ["seed was 0 and is now 1"]
    (other,) = folder.changes(stored, {**before, "checkpoint": "4c"})
    assert other == "the model to start from has other weights now"


@pytest.mark.parametrize(
    ("name", "chosen", "usual"), [("tune", "head", "full"), ("warmup", 0.05, 0.1), ("seed", 5, 0)]
)
def test_an_option_that_was_left_open_is_what_the_plan_says(name: str, chosen: object, usual: object) -> None:
    """Not what it usually is: time chooses what to tune, a recipe has a warm-up and a seed."""
    stored = {"options": {"lr": 1.0, name: None}, "plan": {name: chosen}}
    assert folder.changes(stored, {"lr": 1.0}) == []
    assert folder.changes(stored, {"lr": 1.0, name: chosen}) == []
    (change,) = folder.changes(stored, {"lr": 1.0, name: usual})
    assert change == f"{name} was {json.dumps(chosen)} and is now {json.dumps(usual)}"
    assert folder.changes({"options": {}, "plan": {}}, {name: usual}) == []  # of an earlier version


def test_every_value_that_was_chosen_may_be_given_again(data: str, tmp_path: Path) -> None:
    """All that `auto` became, as `config.json` has it; and a rate as it was shown."""
    left_open = TrainConfig(epochs=1, out=str(tmp_path / "run"), device="cpu", batch_size=48)
    first = train(data, left_open)
    plan = json.loads((tmp_path / "run" / "config.json").read_text())["plan"]
    given = {
        each.name: value
        for each in fields(TrainConfig)
        if getattr(left_open, each.name) in (None, "auto")
        and (value := chosen.value(plan, each.name)) is not None
    }
    assert given.keys() >= {"lr", "image_size", "precision", "mixup", "fit", "init", "drop_path", "augment"}
    given |= {"image_size": (8,), "lr": float(f"{given['lr']:.3g}")}
    for name, value in given.items():
        assert train(data, replace(left_open, **{name: value})).figures == first.figures, name
    assert train(data, replace(left_open, **given)).figures == first.figures
    other = {"lr": given["lr"] * 1.001, "mixup": 0.3, "augment": "light", "image_size": (16,), "init": "tiny"}
    for name, value in other.items():
        with pytest.raises(ResumeError, match=f"{name} was .* and is now"):
            start(data, replace(left_open, **{name: value}))


def test_settings_of_a_task_that_were_chosen_may_be_given_again(data: str, tmp_path: Path) -> None:
    left_open = PretrainConfig(epochs=1, out=str(tmp_path / "run"), device="cpu")
    first = pretrain(data, left_open)
    width = json.loads((tmp_path / "run" / "config.json").read_text())["plan"]["settings"]["decoder_width"]
    assert pretrain(data, replace(left_open, decoder_width=width)).figures == first.figures
    with pytest.raises(ResumeError, match=f"options: decoder_width was {width} and is now {width + 4}: "):
        pretrain(data, replace(left_open, decoder_width=width + 4))


def test_another_teacher_is_told_in_words() -> None:
    task = {"teacher": "a", "teacher_checksum": "1f", "match": "token", "hard": True, "share": 0.5}
    stored = {"options": {"task": task}, "plan": {"settings": task}}
    other = {**task, "teacher": "b", "teacher_checksum": "2e"}
    lines = ['teacher was "a" and is now "b"', "the teacher has other weights now"]
    assert folder.changes(stored, {"task": other}) == lines
    (line,) = folder.changes(stored, {"task": {**task, "share": 1.0}, "teacher_share": 1.0})
    assert line == "teacher_share was 0.5 and is now 1.0"


def test_a_size_that_time_chose_may_be_given_again() -> None:
    """The weights that a run starts from are then read at that size, with other positions."""
    stored = {"options": {"checkpoint": "2e"}, "plan": {"architecture": {"image_size": [160, 160]}}}
    assert folder.changes(stored, {"checkpoint": "3f", "image_size": (160,)}) == []
    assert len(folder.changes(stored, {"checkpoint": "3f", "image_size": (128,)})) == 2
    assert len(folder.changes(stored, {"checkpoint": "3f"})) == 1


def test_values_are_compared_as_they_are_meant() -> None:
    plan = {"time_budget": 180.0, "fit_head": True, "preprocessing": {"resize": "exact"}}
    plan |= {"reasons": {"lr": "recipe modern"}, "settings": {"hard": True, "share": 0.5}}
    stored = {"options": {"time_budget": "3m", "recipe": "auto", "task": plan["settings"]}, "plan": plan}
    same = {"time_budget": "180s", "fit_head": "yes", "fit": "stretch", "recipe": "modern", "targets": "hard"}
    given = {**stored["options"], "teacher_share": 0.5, **same}
    assert folder.changes(stored, given) == []
    for name, value in {"time_budget": "4m", "fit_head": "no", "recipe": "paper", "targets": "soft"}.items():
        assert len(folder.changes(stored, {**given, name: value})) == 1, name


@pytest.mark.parametrize("document", [{"model_type": "vit"}, [], {"options": {}, "plan": None}], ids=str)
@pytest.mark.parametrize("option", ["--out", "--recipe"])
def test_a_folder_of_another_program_is_named(
    document: object, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hugging Face's folders have a config.json too."""
    files.write_json(tmp_path / "model" / "config.json", document)
    assert cli.main(["train", "digits", option, str(tmp_path / "model"), "--device", "cpu"]) == 1
    assert "holds a config.json that is not a run's" in capsys.readouterr().err
    assert json.loads((tmp_path / "model" / "config.json").read_text()) == document


def test_a_second_process_is_refused(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready = FORKS.Event()
    child = FORKS.Process(target=slow, args=(data, tmp_path / "run", ready, 60.0))
    child.start()
    assert ready.wait(60)
    assert cli.main(["train", data, "--out", str(tmp_path / "run")]) == 1
    assert f"error: {tmp_path / 'run'} is in use by process {child.pid}" in capsys.readouterr().err
    child.kill()
    child.join()


class _Os:
    """The module `os` as one other module sees it, with some functions replaced."""

    def __init__(self, **replaced: Any) -> None:
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def _full_journal(patch: pytest.MonkeyPatch) -> None:
    rewind = Journal.rewind

    def rewound(self: Journal, *arguments: Any) -> None:
        rewind(self, *arguments)
        assert self._file is not None
        self._file.close()
        self._file = open("/dev/full", "a", buffering=1)

    patch.setattr(Journal, "rewind", rewound)


def _full_sealed_file(patch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    patch.setattr(checkpoint, "save_file", full)


def _full_results(patch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.name.startswith(".results.json"):
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return write(self, data)

    patch.setattr(Path, "write_bytes", full)


@pytest.mark.parametrize("who", [_full_journal, _full_sealed_file, _full_results])
def test_a_full_disk_is_told_whoever_meets_it_first(
    who: Callable[[pytest.MonkeyPatch], None], data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    undisturbed: Result,
) -> None:  # fmt: skip
    """In one line; with room again the run goes on, and ends as one that nothing happened to."""
    with monkeypatch.context() as patch:
        who(patch)
        with pytest.raises(DiskFullError, match=r"^the disk of [^\n]* is full: [^\n]*make room"):
            run(data, tmp_path / "run", save_every=4)
    run(data, tmp_path / "run", save_every=4)
    assert_same_run(tmp_path / "run", undisturbed)


def _no_space(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_lock_on_a_full_disk_is_told(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = RunLock._open

    def full(self: RunLock) -> Any:
        file = opened(self)
        file.write = _no_space  # type: ignore[method-assign]
        return file

    monkeypatch.setattr(RunLock, "_open", full)
    with pytest.raises(DiskFullError, match=r"^the disk of .* is full: make room"):
        run(data, tmp_path / "run")


def test_a_full_disk_ends_the_run_with_its_last_checkpoint(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Result
) -> None:
    real, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("torch.distributed.checkpoint.filesystem.os", _Os(fsync=full))
        with pytest.raises(
            DiskFullError, match=r"no space for the checkpoint of step 12 .* step-00000008 stays"
        ):
            run(data, tmp_path, save_every=4)
    kept = sorted(path.name for path in (tmp_path / "resume").glob("step-*"))
    assert kept == ["step-00000000", "step-00000004", "step-00000008"]
    run(data, tmp_path, save_every=4)  # room again
    assert_same_run(tmp_path, undisturbed)


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
    files.write_json(tmp_path / "config.json", before)
    stored = {"options": json.loads((tmp_path / "config.json").read_text()), "plan": {}}
    folder.refuse_changes(stored, {**before, "image_size": (32, 32)}, tmp_path)
    with pytest.raises(ResumeError) as caught:
        folder.refuse_changes(stored, {**before, "lr": 0.01, "ema": 0.99}, tmp_path)
    assert caught.match("ema was null and is now 0.99; lr was 0.001 and is now 0.01: repeat the old ones, or")
    assert "image_size" not in str(caught.value)


def test_a_run_without_a_folder_is_named_by_its_data(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = train(data, replace(OPTIONS, epochs=1))
    assert result.folder == Path("runs") / "stripes"
    assert (tmp_path / "runs" / "stripes" / "results.json").is_file()


def test_data_without_a_name_of_its_own_stays_in_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos" / "more").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "photos" / "more")
    names = {data: next(folder.names(data)) for data in (".", "..", "../", "/", "memory:pairs", "cifar10")}
    assert {data: str(path) for data, path in names.items()} == {
        **{".": "runs/more", "..": "runs/photos", "../": "runs/photos", "/": "runs/data"},
        **{"memory:pairs": "runs/pairs", "cifar10": "runs/cifar10"},
    }


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".best.safetensors.4711.part").write_bytes(b"half")
    (tmp_path / "best.safetensors").write_bytes(b"whole")
    RunLock(tmp_path).release()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "best.safetensors"]


def test_a_second_experiment_gets_a_number_and_the_same_command_its_own_run(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = train(data, replace(OPTIONS, epochs=1))
    second = train(data, replace(OPTIONS, epochs=1, lr=1e-3))
    assert "runs/stripes holds a run with other options: lr was 0.002 and is now 0.001\n" in (
        shown := capsys.readouterr().err
    )
    assert "this run is runs/stripes-2\n" in shown
    third = train(data, replace(OPTIONS, epochs=1, seed=1))
    names = [result.folder.name for result in (first, second, third)]
    assert names == ["stripes", "stripes-2", "stripes-3"]
    again = train(data, replace(OPTIONS, epochs=1, lr=1e-3))
    assert (again.folder, again.figures) == (second.folder, second.figures)
    assert "the run in runs/stripes-2 has ended" in capsys.readouterr().err
    assert sorted(path.name for path in Path("runs").iterdir()) == names


def test_distilling_and_finetuning_get_folders_of_their_own(
    data: str, undisturbed: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source, about = str(undisturbed.folder), {**vars(OPTIONS), "epochs": 1, "drop_path": None}
    student = train(data, replace(OPTIONS, epochs=1))
    taught = distill(source, data, DistillConfig(**{**about, "match": "logits"}))
    fitted = finetune(source, data, FinetuneConfig(**{**about, "patch_size": None}))
    folders = [result.folder.name for result in (student, taught, fitted)]
    assert folders == ["stripes", "stripes-2", "stripes-3"]


def test_an_unfinished_folder_in_use_is_passed_over_unless_it_is_the_same_run(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = RunLock(Path("runs/stripes"))  # has not written its options yet
    lock = folder.take(None, data, {"lr": 1.0})
    assert lock.folder == Path("runs/stripes-2")
    files.write_json(lock.folder / "config.json", {"options": {"lr": 1.0}, "plan": {}})
    with pytest.raises(ResumeError, match="runs/stripes-2 is in use by process"):
        folder.take(None, data, {"lr": 1.0})
    third = folder.take(None, data, {"lr": 2.0})
    assert third.folder == Path("runs/stripes-3")
    for each in (other, lock, third):
        each.release()
    assert [path.name for path in Path("runs").iterdir()] == ["stripes-2"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["digits", "--model", "nonsense"],
        ["digits", "--image-size", "1"],
        ["digits", "--ema", "1.5"],
        ["digits", "--label-smoothing", "1.5"],
        ["digits", "--layer-decay", "0"],
        ["digits", "--binary-targets"],
        ["digits", "--out", "mine", "--workers", "-1"],
    ],
)
def test_a_start_that_is_refused_leaves_nothing_behind(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *arguments]) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_its_owner_took_away_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process ends between our opening of the file and our hold on it."""
    run = tmp_path / "run"
    first = RunLock(run)
    real, calls = fcntl.flock, []

    def flock(file: Any, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            first.release()
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    second = RunLock(run)
    assert len(calls) == 2
    with pytest.raises(ResumeError, match="is in use"):
        RunLock(run)
    second.release()
    assert not run.exists()


def test_train_and_finetune_are_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their defaults differ, although the same options were given."""
    monkeypatch.chdir(tmp_path)
    data = str(Path(__file__).parents[1] / "fixtures" / "fruits")
    kept = {"epochs": 1, "image_size": (32,), "tune": "head", "device": "cpu", "workers": 0}
    options = FinetuneConfig(**kept)
    first = finetune("tiny", data, options)
    assert finetune("tiny", data, options).folder == first.folder
    second = finetune("tiny", data, options, by_train=True)
    assert second.folder == first.folder.with_name("fruits-2")
    stored = json.loads((first.folder / "config.json").read_text())
    assert stored["options"]["verb"] == "finetune"
    now = {**stored["options"], "verb": "train", "init": "none"}
    assert folder.changes(stored, now) == ["`vitreous finetune` made it"]
    del stored["options"]["verb"]  # an earlier version's
    assert folder.changes(stored, {**stored["options"], "verb": "train"}) == []


def test_another_start_is_told_as_one_change(data: str, tmp_path: Path) -> None:
    made = run(data, tmp_path / "run", epochs=1)
    stored = json.loads((made.folder / "config.json").read_text())
    stored["options"] |= {"recipe": "auto", "checkpoint": "abc"}
    stored["plan"]["init"] = "tiny"
    now = {**stored["options"], "init": "none", "recipe": None, "checkpoint": None}
    assert folder.changes(stored, now) == ['init was "tiny" and is now "none"']


def test_the_folder_that_a_run_takes_by_itself_holds_nothing_else(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "runs" / Path(data).stem
    own.mkdir(parents=True)
    (own / "report.html").write_text("of an evaluation")
    lock = folder.take(None, data, {})
    assert lock.folder == Path(f"runs/{own.name}-2")
    lock.release()
    assert [each.name for each in own.iterdir()] == ["report.html"]
    assert f"runs/{own.name} holds other files and is no run" in capsys.readouterr().err


def test_a_run_is_not_written_among_other_files(data: str, pictures: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "holiday.jpg").write_bytes(b"mine")
    with pytest.raises(ResumeError, match=r"holds other files \(holiday.jpg\) and is no run"):
        run(data, tmp_path / "mine")
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["holiday.jpg"]
    (tmp_path / "checked").mkdir()
    for name in ("report.html", "check.json"):  # as of `vitreous check photos/ --json > check.json`
        (tmp_path / "checked" / name).write_text("mine")
    with pytest.raises(ResumeError, match=r"holds other files \(check.json\) and is no run"):
        run(data, tmp_path / "checked")
    assert {each.read_text() for each in (tmp_path / "checked").iterdir()} == {"mine"}
    with pytest.raises(ResumeError, match="lies in the data"):
        run(pictures, Path(pictures) / "run")
    assert not (Path(pictures) / "run").exists()
    (tmp_path / "empty").mkdir()
    assert run(data, tmp_path / "empty", epochs=1).folder == tmp_path / "empty"
