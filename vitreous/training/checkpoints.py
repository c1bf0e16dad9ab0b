"""Checkpoints, whole or absent, that let a run survive; what they hold is not decided here.

A checkpoint is a folder `resume/step-00001234/`: one safetensors file a rank (torch.distributed.checkpoint's;
no pickle anywhere) and `manifest.json`, which names every file with its checksum. It is written beside its
final name, synced, then renamed, and only then `.latest` moves. A name without `.partial` is always complete.
"""

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from vitreous import console, files
from vitreous.errors import DiskFullError, ResumeError, VitreousError

_NAME = re.compile(r"step-(\d{8,})")
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was found intact."""

    folder: Path
    step: int
    values: dict[str, Any]
    """What `save` was given beside the tensors."""
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    """Type and whole shape of each tensor."""


class Checkpoints:
    """The checkpoints of one run, written in the background; all ranks make the same calls."""

    def __init__(self, folder: Path, *, keep: int = 3) -> None:
        self.folder = folder
        self.keep = max(1, keep)
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        # Its own group: saving goes on in a thread while the steps use the default one.
        self._group = None if alone else _group()
        self._rank, self._ranks = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        # On a GPU: copied into pinned memory that is kept, which is several times faster than fresh memory.
        self._stager = BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
        self._staged: set[str] = set()
        self._damaged: set[Path] = set()
        self._durable: int | None = None
        self._together(self._tidy)

    def save(self, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Copy the tensors and return; the rest happens in the background, once an earlier save has ended.

        A step that is already durable is not written again.
        """
        self.wait()
        if step == self._durable:
            return
        _quiet()
        body = {
            "format": 1,
            "step": step,
            "ranks": self._ranks,
            "values": dict(values),
            "tensors": {name: [str(t.dtype), list(t.shape)] for name, t in tensors.items()},
        }
        needed = sum(t.numel() * t.element_size() for t in tensors.values())
        partial = self.folder / f"step-{step:08}.partial"
        writer = HuggingFaceStorageWriter(str(partial), save_distributed=True)
        writer.per_thread_copy_ahead = 0  # the tensors are in CPU memory already
        if self._staged != set(tensors):  # the first save has no optimizer state: other tensors to stage
            self._stager = BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
            self._staged = set(tensors)
        written = async_save(
            dict(tensors),
            storage_writer=writer,
            async_stager=self._stager,
            process_group=self._group,
            no_dist=self._group is None,
        )
        assert isinstance(written, Future)
        self._pending = self._thread.submit(self._complete, written, partial, body, needed)

    def wait(self) -> None:
        """Return when the last save is durable; raise if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    @property
    def failed(self) -> bool:
        """Whether the last save has ended, and failed; `wait` raises the reason."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def close(self) -> None:
        """Finish a save that is under way, and end the background thread."""
        self._thread.shutdown(wait=True)
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def newest(self) -> Saved | None:
        """Return the newest intact checkpoint; warn of newer ones that are damaged, and pass over them."""
        self.wait()
        for folder in self._together(lambda: sorted(self._complete_ones(), key=_step, reverse=True)):
            saved, problem = self._examine(folder)
            if saved is not None:
                self._durable = saved.step
                return saved
            self._damaged.add(folder)
            if self._rank == 0:
                console.warn(f"checkpoint {folder} is damaged and passed over: {problem}")
        return None

    def load(self, saved: Saved, tensors: Mapping[str, Tensor]) -> None:
        """Read the checkpoint into these tensors in place, whatever ranks and shards wrote it."""
        _quiet()
        wanted = {name: (str(t.dtype), tuple(t.shape)) for name, t in tensors.items()}
        for name in sorted({*wanted, *saved.tensors}):
            if wanted.get(name) != saved.tensors.get(name):
                raise ResumeError(
                    f"{saved.folder} does not fit this model: {name} is {_describe(saved.tensors.get(name))} "
                    f"there and {_describe(wanted.get(name))} here: repeat the old options, or change --out"
                )
        reader = HuggingFaceStorageReader(str(saved.folder))
        alone = self._group is None
        load(dict(tensors), storage_reader=reader, process_group=self._group, no_dist=alone)

    # -- in the background thread ----------------------------------------------------------------------

    def _complete(self, written: "Future[Any]", partial: Path, body: dict[str, Any], needed: int) -> None:
        """Turn the written files into a checkpoint, or remove them; every rank learns which it was."""
        problem: BaseException | None = None
        digests: dict[str, dict[str, Any]] = {}
        try:
            written.result()
            parts = sorted(partial.iterdir())
            digests = {file.name: _fingerprint(file) for file in parts[self._rank :: self._ranks]}
        except (Exception, CheckpointException) as error:
            problem = error
        results = self._exchange((problem, digests))
        problem = next((error for error, _ in results if error is not None), None)
        if problem is None:
            problem = self._exchange_from_leader(
                lambda: self._publish(partial, body, [d for _, d in results])
            )
        if problem is not None:
            if self._rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise self._explain(problem, body["step"], needed) from problem
        self._durable = body["step"]

    def _publish(self, partial: Path, body: dict[str, Any], digests: list[dict[str, dict[str, Any]]]) -> None:
        body["files"] = {name: entry for part in digests for name, entry in sorted(part.items())}
        files.write_json(partial / _MANIFEST, {**body, "sha256": _digest(body)})
        final = partial.with_suffix("")
        if final.exists():  # it must be damaged: the run would have gone on from an intact one
            _remove(final)
        partial.rename(final)
        files.sync_folder(self.folder)
        files.write_text(self.folder / ".latest", final.name + "\n")
        intact = sorted((f for f in self._complete_ones() if f not in self._damaged or f == final), key=_step)
        surplus = [folder for folder in intact[: -self.keep] if folder != final]
        for folder in [*surplus, *(f for f in self._damaged if _step(f) < _step(final) and f.exists())]:
            _remove(folder)
        self._damaged.discard(final)

    def _explain(self, problem: BaseException, step: int, needed: int) -> ResumeError:
        causes = _causes(problem)
        full = any(map(files.disk_is_full, causes))
        left = max(self._complete_ones(), key=_step, default=None)
        left_over = f"{left.name} stays" if left else "no earlier one exists"
        if full:
            free = shutil.disk_usage(self.folder).free
            return DiskFullError(
                f"the disk is full, no space for the checkpoint of step {step} in {self.folder}: it needs "
                f"{console.size(needed)} and {console.size(free)} are free; {left_over}: make room, "
                f"then run the same command again"
            )
        reason = next((str(cause) for cause in causes if isinstance(cause, OSError)), str(problem))
        return ResumeError(
            f"can't write the checkpoint of step {step} in {self.folder}: {reason}; {left_over}"
        )

    # -- on disk ---------------------------------------------------------------------------------------

    def _complete_ones(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]

    def _tidy(self) -> None:
        """Remove what a killed process left half-written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.suffix in (".partial", ".old") and _NAME.fullmatch(path.stem):
                shutil.rmtree(path)
        for path in self.folder.glob(".*.part"):
            path.unlink()

    def _examine(self, folder: Path) -> tuple[Saved | None, str]:
        """Read the manifest and compare every file with it; the ranks share the files among them."""
        saved, problem = None, ""
        try:
            body = json.loads((folder / _MANIFEST).read_bytes())
            if body.pop("sha256") != _digest(body):
                raise ValueError(f"{_MANIFEST} differs from its own checksum")
            # Desktops and network drives leave files of their own (.DS_Store, .nfs…), which nobody reads.
            found = {file.name for file in folder.iterdir() if file.suffix == ".safetensors"}
            if found != set(body["files"]):
                raise ValueError(f"files missing or added: {', '.join(sorted(found ^ set(body['files'])))}")
            for name, entry in sorted(body["files"].items())[self._rank :: self._ranks]:
                if _fingerprint(folder / name) != entry:
                    raise ValueError(f"{name} differs from its checksum")
            tensors = {name: (dtype, tuple(shape)) for name, (dtype, shape) in body["tensors"].items()}
            saved = Saved(folder, int(body["step"]), body["values"], tensors)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
        problem = next((text for text in self._exchange(problem) if text), "")
        return (None, problem) if problem else (saved, "")

    # -- between ranks ---------------------------------------------------------------------------------

    def _exchange(self, value: Any) -> list[Any]:
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self._ranks
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _exchange_from_leader(self, work: Callable[[], None]) -> BaseException | None:
        problem: BaseException | None = None
        if self._rank == 0:
            try:
                work()
            except VitreousError as error:
                problem = error.__cause__ or error
            except Exception as error:
                problem = error
        return self._exchange(problem)[0]

    def _together(self, work: Callable[[], Any]) -> Any:
        """Do it on rank 0 alone and return its result, or raise its error, on all."""
        result, problem = None, None
        if self._rank == 0:
            try:
                result = work()
            except OSError as error:
                problem = ResumeError(f"{self.folder} can't be used: {error}")
        result, problem = self._exchange((result, problem))[0]
        if problem is not None:
            raise problem
        return result


def _remove(folder: Path) -> None:
    """Delete a checkpoint; it is renamed first, so that a half-deleted one never passes for a damaged one."""
    doomed = folder.with_name(folder.name + ".old")
    folder.rename(doomed)
    shutil.rmtree(doomed)


def _group() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"bytes": stream.tell(), "sha256": digest}


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _step(folder: Path) -> int:
    match = _NAME.match(folder.name)
    assert match is not None
    return int(match[1])


def _causes(problem: BaseException) -> list[BaseException]:
    """Return the error and all that torch.distributed.checkpoint wrapped in it, from any rank."""
    if not isinstance(problem, CheckpointException):
        return [problem]
    return [problem, *(cause for failure in problem.failures.values() for cause in _causes(failure[0]))]


def _describe(tensor: tuple[str, tuple[int, ...]] | None) -> str:
    return (
        "absent"
        if tensor is None
        else f"{tensor[0].removeprefix('torch.')} of {'x'.join(map(str, tensor[1])) or '1'}"
    )


def _quiet() -> None:
    """Silence torch's warning that a single process saves alone: one for each save would drown the rest."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
