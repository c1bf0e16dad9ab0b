"""The run folder: which one a run takes, its lock, and the options it was started with; never its results."""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from vitreous import console, files
from vitreous.errors import DiskFullError, ResumeError, VitreousError
from vitreous.training import chosen

DEFAULTS = {"seed": 0, "warmup": 0.1, "balance": "none", "tune": "full", "reconstruct": 0.0}
"""What these options mean where the plan of an earlier version does not tell."""


HOLDER = "process "
"""How the lock of a run begins, which says who has it."""


class FolderInUse(ResumeError):
    """A run folder that another process holds."""


class RunLock:
    """Holds a run folder for one process; the kernel releases it when the process ends, in whatever way."""

    def __init__(self, folder: Path) -> None:
        try:
            import fcntl
        except ImportError:
            raise ResumeError(
                "training needs Linux or macOS: this system can't lock a run folder; use WSL on Windows"
            ) from None
        self.folder = folder
        while True:
            self._made = [each for each in (folder, *folder.parents) if not each.exists()]
            self._file = self._open()
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.seek(0)
                holder = self._file.read().strip() or "another process"
                self._file.close()
                raise FolderInUse(
                    f"{folder} is in use by {holder}: wait for it, or give another --out"
                ) from None
            if os.fstat(self._file.fileno()).st_nlink:
                break
            self._file.close()  # its owner deleted it between our two calls
        for left_over in folder.glob(".*.part"):  # a killed process was writing it
            left_over.unlink()
        try:
            self._file.truncate(0)
            self._file.write(f"{HOLDER}{os.getpid()} on {socket.gethostname()}")
            self._file.flush()
        except OSError:
            with suppress(OSError):
                self.release()
            raise
        # A forked loader worker would share the lock and could outlive us with it.
        os.register_at_fork(after_in_child=self._file.close)

    def _open(self) -> TextIO:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return (self.folder / ".lock").open("a+")
        except OSError as error:
            reason = error.strerror or str(error)
            raise ResumeError(
                f"{self.folder} can't be used as a run folder: {reason}: give another --out"
            ) from None

    def release(self) -> None:
        """Let other processes have the folder; if nothing was written into it, remove it."""
        if self._made and [each.name for each in self.folder.iterdir()] == [".lock"]:
            (self.folder / ".lock").unlink()
            with suppress(OSError):  # another process has put something there
                for each in self._made:
                    each.rmdir()
        self._file.close()


def take(out: str | None, data: str, now: Mapping[str, Any]) -> RunLock:
    """Hold the folder of a run with these options: the one that is named, or the first that suits.

    Without a name it is `runs/NAME-OF-DATA`, or where that holds another run `runs/NAME-OF-DATA-2`, and so
    on: the first that holds a run of the same options, else the first that holds nothing.
    """
    if out is not None:
        _refuse_place(Path(out), data)
        return RunLock(Path(out))
    others: list[tuple[Path, list[str]]] = []
    for folder in names(data):
        started = (folder / "config.json").exists()
        if started and (changed := changes(read_config(folder), now)):
            others.append((folder, changed))
            continue
        if _foreign(folder):
            console.note(f"{folder} holds other files and is no run: this run takes another folder")
            continue
        try:
            lock = RunLock(folder)
        except FolderInUse:
            if started:
                raise  # the same command holds it
            continue  # a run that has not written its options yet holds it
        if not started and (folder / "config.json").exists():
            lock.release()  # another process started a run there in between
            return take(out, data, now)
        if others and not started:
            nearest, changed = min(others, key=lambda other: len(other[1]))
            console.note(f"{nearest} holds a run with other options: {'; '.join(changed)}")
            console.note(f"this run is {folder}")
        return lock
    raise AssertionError("there is always another number")


def _foreign(folder: Path) -> set[str]:
    """Return what a folder holds if it is no run's: one has `config.json`, read later, or our lock."""
    held = files.held(folder)
    if "config.json" in held or held == {".lock"}:
        return set()
    ours = ".lock" in held and (folder / ".lock").read_bytes().startswith(HOLDER.encode())
    return set() if ours else held


def _refuse_place(out: Path, data: str) -> None:
    """Refuse to write a run among other files, or among the pictures that the next run would learn from."""
    if foreign := _foreign(out):
        raise ResumeError(
            f"{out} holds other files ({min(foreign)}) and is no run: give a new or an empty folder as --out"
        )
    if not data.startswith("memory:") and os.path.isdir(data) and files.lies_in(out, data):
        raise ResumeError(
            f"{out} lies in the data, which would then hold this run's pictures: give another --out"
        )


def names(data: str) -> Iterator[Path]:
    """Yield the folders that runs on these data may take if none is named."""
    own = data.startswith("memory:")
    name = Path(data.removeprefix("memory:") if own else os.path.abspath(data)).stem  # of `.` and `..` too
    first = Path("runs") / (name or "data")
    yield first
    for number in count(2):
        yield first.with_name(f"{first.name}-{number}")


@contextmanager
def undone_if_refused(folder: Path) -> Iterator[None]:
    """Remove the plan of a new run that is refused before its first checkpoint: the command can be mended."""
    known = (folder / "config.json").exists()
    try:
        yield
    except VitreousError:
        if not known and not any(folder.glob("resume/step-*")):
            for name in ("config.json", "check.json"):
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):
                (folder / "resume").rmdir()
        raise


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """Say that the disk is full, whoever met it first: journal, lock, a tracker's file, or a sealed one."""
    try:
        yield
    except VitreousError:
        raise  # it is told already
    except Exception as error:
        if not files.disk_is_full(error):
            raise
        raise DiskFullError(
            f"the disk of {folder} is full: make room, then run the same command again: it goes on from the "
            "last checkpoint"
        ) from error


CHECKSUMS = {
    "data": "the data has other images, labels or splits now",
    "checkpoint": "the model to start from has other weights now",
    "teacher_checksum": "the teacher has other weights now",
}
"""What to say of a checksum that differs, since nobody can read the numbers."""


def refuse_changes(stored: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuse options that differ from those that a run was started with, naming each."""
    if changed := changes(stored, now):
        raise ResumeError(
            f"{folder} holds a run with other options: {'; '.join(changed)}: "
            f"repeat the old ones, or give another --out"
        )


def changes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how these options differ from those that a run was started with.

    An option that is given now is no change if the plan has that value, whoever chose it.
    """
    before, plan = _given(stored["options"]), stored["plan"]
    now = _given(json.loads(json.dumps(now)))  # as `before` was read: tuples are lists
    verb = before.setdefault("verb", now.get("verb"))  # earlier versions did not tell
    if verb != now.get("verb", verb):
        return [f"`vitreous {verb}` made it"]
    for name, default in DEFAULTS.items():
        if name in now or name in before:
            before.setdefault(name, plan.get(name, default))
            now.setdefault(name, default)
    other = {name for name in {*before, *now} if before.get(name) != now.get(name)}
    same = {name for name in other if name in now and chosen.is_same(plan, name, now[name])}
    other -= same
    other -= {name for name in other if before.get(name) in chosen.OPEN and now.get(name) in chosen.OPEN}
    if "init" in other:
        other.discard("checkpoint")  # follows from it
    if "seed" in other:
        other.discard("data")  # the held-out images follow from the seed
    if same.intersection(chosen.SIZES) and "checkpoint" in now:
        other.discard("checkpoint")  # its positions were resampled to that size
    lines = [CHECKSUMS.get(name) or _described(name, before, now, plan) for name in sorted(other - {"task"})]
    if "task" in other:
        lines += _settings_changed(before.get("task", {}), now.get("task", {}), other)
    return lines


def _settings_changed(before: Mapping[str, Any], now: Mapping[str, Any], told: set[str]) -> list[str]:
    """Return how the settings of a task differ, where no option tells it."""
    names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return [
        CHECKSUMS.get(name) or _described(name, before, now, {})
        for name in names
        if chosen.OPTION.get(name, name) not in told
    ]


def _described(name: str, before: Mapping[str, Any], now: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Return how an option differs: from what was given then, or was chosen."""
    was = before.get(name)
    if was in chosen.OPEN:
        was = chosen.value(plan, name) or was
    return f"{name} was {json.dumps(was)} and is now {json.dumps(now.get(name))}"


def read_config(folder: Path) -> dict[str, Any]:
    """Read what a run wrote into `config.json` when it started: its options and its plan, beside others."""
    found = read_json(folder / "config.json")
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key), dict) for key in ("options", "plan")
    ):
        raise ResumeError(
            f"{folder} holds a config.json that is not a run's: another program made it: "
            f"choose another folder"
        )
    return found


def read_json(path: Path) -> Any:
    """Read what `files.write_json` wrote."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ResumeError(f"{path} can't be read: {error}; repair it, or give another --out") from None


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set: one that a newer version has added is then not a change."""
    return {name: value for name, value in options.items() if value is not None and value is not False}
