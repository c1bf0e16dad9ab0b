"""The processes that train together: how one joins them, and how they agree; never what they compute."""

import atexit
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from vitreous.errors import TrainingError, VitreousError
from vitreous.files import cache_root
from vitreous.parallel.hardware import choose_device

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class World:
    """The place of this process among all that train together."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the one process that prints and writes."""
        return self.rank == 0


@contextmanager
def join(device: str = "auto", *, timeout: timedelta = timedelta(minutes=10)) -> Iterator[World]:
    """Enter the process group that torchrun's environment describes, or run alone without one.

    gloo carries CPU tensors, nccl those of GPUs; `timeout` is how long a rank waits for a lost one. The group
    stays until the process ends: a second one at the same address would meet what is left of the first.
    torch's settings, which a run changes, are put back.
    """
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1 and not dist.is_initialized()
    chosen = choose_device(device, 0 if alone else int(os.environ.get("LOCAL_RANK", "0")))
    with _settings_kept(chosen):
        # cuDNN's attention returned NaN gradients of finite inputs (bf16, torch 2.11, H200): flash does not,
        # and `prepare` takes cuDNN's only with keys for which it can't (models/kernels.py).
        torch.backends.cuda.enable_cudnn_sdp(False)
        _keep_compiled_code()
        if alone:
            yield World(device=chosen)
            return
        if not dist.is_initialized():
            if chosen.type == "cuda":
                dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timeout, device_id=chosen)
            else:
                dist.init_process_group("gloo", timeout=timeout)
            atexit.register(_leave_group)
        try:
            yield World(device=chosen, rank=dist.get_rank(), size=dist.get_world_size())
        except RuntimeError as error:
            if not _lost_rank(error):
                raise
            raise TrainingError(
                f"rank {dist.get_rank()} lost another rank ({str(error).splitlines()[0][-160:]}): run the "
                f"same command again, or let torchrun do it with --max-restarts; it goes on from the last "
                f"checkpoint"
            ) from error


@contextmanager
def _settings_kept(device: torch.device) -> Iterator[None]:
    """Give torch its settings back in the end: who trains may compute with others of their own.

    Streams, events and recorded graphs are those of the current GPU: it is the chosen one meanwhile.
    """
    with ExitStack() as stack:
        if device.type == "cuda":
            stack.callback(torch.cuda.set_device, torch.cuda.current_device())
            torch.cuda.set_device(device)
        with suppress(RuntimeError):  # torch can't tell where its newer settings were used as well
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        stack.callback(torch.backends.cuda.enable_cudnn_sdp, torch.backends.cuda.cudnn_sdp_enabled())
        yield


def _keep_compiled_code() -> None:
    """Let torch.compile keep its results in the user's cache, unless told where: a second start is quick."""
    folder = cache_root() / "compiled"
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # torch falls back to a temporary folder of its own
    if os.access(folder, os.W_OK):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def _lost_rank(error: RuntimeError) -> bool:
    """Tell whether the error means that another rank is gone, or does not answer in time."""
    lost = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe")
    return isinstance(error, dist.DistError) or ("gloo" in str(error) and any(t in str(error) for t in lost))


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def is_main() -> bool:
    """Tell whether this process is the one that prints, before it has joined the others."""
    return int(os.environ.get("RANK", "0")) == 0


def total(values: Mapping[str, float | int], world: World) -> dict[str, float]:
    """Sum each figure over all ranks in float64: whole numbers stay exact up to 2**53."""
    sums = torch.tensor(list(values.values()), dtype=torch.float64)
    if world.size > 1:
        dist.all_reduce(sums)  # a CPU tensor: gloo carries it, also beside nccl
    return dict(zip(values, sums.tolist(), strict=True))


def any_rank(flags: Sequence[bool], world: World) -> list[bool]:
    """Tell for each flag of the host whether any rank raised it; no device is asked or waited for."""
    if world.size == 1:
        return list(flags)
    raised = torch.tensor(flags, dtype=torch.int32)
    dist.all_reduce(raised, op=dist.ReduceOp.MAX)  # a CPU tensor: gloo carries it, also beside nccl
    return [bool(flag) for flag in raised.tolist()]


def largest(number: int, world: World) -> int:
    """Return the largest of the ranks' numbers."""
    if world.size == 1:
        return number
    known = torch.tensor(number)
    dist.all_reduce(known, op=dist.ReduceOp.MAX)  # a CPU tensor, as above
    return int(known)


def agree(flag: Tensor, world: World) -> Tensor:
    """Return on every rank's device whether any rank's flag is true, without waiting for it."""
    if world.size == 1:
        return flag
    raised = flag.to(torch.int32)
    dist.all_reduce(raised, op=dist.ReduceOp.MAX)
    return raised.bool()


def added_up(tensor: Tensor) -> Tensor:
    """Return the sum of every rank's tensor on its device, without waiting for it."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def broadcast(value: Value, world: World) -> Value:
    """Return rank 0's value on every rank."""
    box = [value]
    if world.size > 1:
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def on_main(work: Callable[[], object], world: World) -> None:
    """Do the work on rank 0 alone; an error there that a user can cause is raised on every rank."""
    problem: VitreousError | None = None
    if world.is_main:
        try:
            work()
        except VitreousError as error:
            problem = error
    problem = broadcast(problem, world)
    if problem is not None:
        raise problem


def gather(value: Value, world: World) -> list[Value]:
    """Return every rank's value, in the order of ranks, on every rank."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return cast(list[Value], values)
