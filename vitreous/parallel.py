"""How a module meets the hardware: ranks, shards, compilation, precision, speed; never what it learns.

A module is prepared in place and keeps its parameter names, so that checkpoints don't depend on any of this.
What torch needs for shards takes a second to import, and is imported where it is used.
"""

import atexit
import functools
import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from vitreous import config
from vitreous.errors import OptionError, TrainingError, VitreousError
from vitreous.files import cache_root
from vitreous.models import kernels
from vitreous.models.vit import Attention

Value = TypeVar("Value")
_BLOCK = re.compile(r"(^|\.)blocks\.\d+$")


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


@contextmanager
def uncompiled() -> Iterator[None]:
    """Let modules run uncompiled: a few images are evaluated in less time than compiling would take."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _lost_rank(error: RuntimeError) -> bool:
    """Tell whether the error means that another rank is gone, or does not answer in time."""
    lost = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe")
    return isinstance(error, dist.DistError) or ("gloo" in str(error) and any(t in str(error) for t in lost))


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def choose_device(device: str = "auto", local_rank: int = 0) -> torch.device:
    """Return the device by name; `auto` takes a GPU where there is one, each local rank its own."""
    if device == "auto":
        device = (
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise OptionError(f"unknown device {device!r}: use auto, cpu, cuda, cuda:N or mps") from None
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise OptionError("device mps is not available here: use --device cpu")
    if chosen.type == "cuda":
        count = torch.cuda.device_count()
        index = local_rank if chosen.index is None else chosen.index
        if index >= count:
            raise OptionError(
                f"device cuda:{index} is not available: {count} GPUs are visible; use --device cpu"
            )
        chosen = torch.device("cuda", index)
    return chosen


def has_bf16(device: torch.device) -> bool:
    """Tell whether the hardware multiplies bf16 natively (on a CPU: AMX, or AVX-512's BF16 instructions)."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):  # torch 2.11 may not tell
        found = torch.cpu.get_capabilities()
        return bool(found.get("amx_bf16") or found.get("avx512_bf16"))
    return False


def precision(asked: config.Precision | Literal["auto"], device: torch.device) -> config.Precision:
    """Return the precision to infer in: for `auto` bf16 where the hardware has it."""
    if asked == "auto":
        return "bf16" if has_bf16(device) else "float32"
    return asked


def autocast(device: torch.device, precision: config.Precision) -> AbstractContextManager[Any]:
    """Compute matrix products in bf16 inside this context; weights, sums and gradients stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def blocks(module: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks (`blocks.N` at any depth): the unit of all that `prepare` does."""
    return [part for name, part in module.named_modules() if _BLOCK.search(name)]


def prepare(
    module: nn.Module,
    world: World,
    *,
    shard: bool = False,
    compile: config.Compile = "none",
    checkpointing: bool = False,
    precision: config.Precision = "float32",
    frozen: Sequence[nn.Module] = (),
) -> nn.Module:
    """Move the module to its device and return what to call in its place: itself, or its DDP wrapper.

    `frozen` are modules that it calls and that don't learn: they are moved and compiled with it. The order
    matters: checkpointing inside compilation inside sharding.
    """
    for each in frozen:
        each.to(world.device)
    module.to(world.device)
    if not shard and _channels_last(module, world, precision):
        module.to(memory_format=torch.channels_last)
    if checkpointing:
        for block in blocks(module):
            block.forward = _recomputed(block.forward)
    if precision == "bf16" and world.device.type == "cuda":
        # The few float32 products left are not worth full precision.
        torch.set_float32_matmul_precision("high")
        for part in module.modules():
            if isinstance(part, Attention):
                part.cudnn = cudnn_attends(world.device, part.head_width)
    if compile == "blocks":
        for block in [each for part in (module, *frozen) for each in blocks(part)]:
            block.compile()
    elif compile == "whole":
        module.compile()
    if world.size == 1:
        return module
    if shard:
        return _shard(module, world, precision)
    ids = [world.device.index] if world.device.type == "cuda" else None
    # Buffers are the same everywhere, or each rank's own: nothing to broadcast.
    return DistributedDataParallel(
        module, device_ids=ids, gradient_as_bucket_view=True, broadcast_buffers=False
    )


def _channels_last(module: nn.Module, world: World, precision: config.Precision) -> bool:
    """Tell whether channels should come last in memory: convolutions are a tenth faster, but the group norm
    of bf16 takes up to ten times as long on a CPU."""
    convolutions = sum(isinstance(part, nn.Conv2d) for part in module.modules())
    return convolutions > 1 and not (world.device.type == "cpu" and precision == "bf16")


@functools.cache
def cudnn_attends(device: torch.device, head_width: int) -> bool:
    """Try cuDNN's attention once, with its backward pass: whether it is there, and right."""
    inputs = torch.randn(3, 2, 2, 77, head_width, generator=torch.Generator().manual_seed(0))
    halves, exact = inputs.to(device, torch.bfloat16).requires_grad_(), inputs.double().requires_grad_()
    scale = head_width**-0.5
    try:
        q, k, v = halves.unbind()
        kernels.cudnn_attention(q, k, v, scale).square().sum().backward()
    except RuntimeError:  # an older GPU, another maker's, or an unsupported width
        return False
    q, k, v = exact.unbind()
    kernels.attention(q, k, v, scale=scale).square().sum().backward()
    assert halves.grad is not None and exact.grad is not None
    error = (halves.grad.cpu().double() - exact.grad).norm() / exact.grad.norm()
    return bool(error < 0.05)  # NaN is not


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a block's input alone and compute the rest again in backward.

    Not a wrapper module, which would change the parameters' names, nor a partial, which torch.compile skips.
    """

    def forward_again(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False)

    return forward_again


def _shard(module: nn.Module, world: World, precision: config.Precision) -> nn.Module:
    """FSDP2: each rank keeps a slice of every parameter, its gradient and its optimizer state."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("data",))
    halves = precision == "bf16" and world.device.type == "cuda"
    # Blocks travel in bf16, half the traffic; autocast inside keeps norms in float32.
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if halves else None, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for block in blocks(module):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    if isinstance(inner := getattr(module, "model", None), nn.Module):
        fully_shard(inner, mesh=mesh)  # a unit of its own: evaluation calls it without the objective
    fully_shard(module, mesh=mesh)
    return module


@contextmanager
def accumulating(module: nn.Module, *, last: bool) -> Iterator[None]:
    """Let gradients add up on each rank, and exchange them in the `last` of the micro-batches only."""
    if hasattr(module, "set_requires_gradient_sync"):  # FSDP2's
        module.set_requires_gradient_sync(last)  # pyright: ignore[reportCallIssue]
        yield
    elif isinstance(module, DistributedDataParallel) and not last:
        with module.no_sync():
            yield
    else:
        yield


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed dropout and stochastic depth for a step: a function of (seed, step, rank), so nothing to save."""
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little", signed=True))


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


def is_main() -> bool:
    """Tell whether this process is the one that prints, before it has joined the others."""
    return int(os.environ.get("RANK", "0")) == 0


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


def whole_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return detached CPU copies with the shards of all ranks joined: what a sealed file holds."""
    joined = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value  # pyright: ignore[reportAttributeAccessIssue]
        for name, value in tensors.items()
    }
    return {name: value.detach().cpu().clone() for name, value in joined.items()}


def load_whole(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a module, sharded or not, the weights that every rank holds as whole tensors."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(module, dict(tensors), options=StateDictOptions(full_state_dict=True))


def out_of_memory(error: BaseException) -> bool:
    """Tell whether the error means that the device is out of memory, whatever kind of device it is."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that were held at once: by tensors on a GPU, by the process on a CPU; 0 where the
    system does not tell (Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@functools.cache
def matrix_rate(device: torch.device, precision: config.Precision) -> float:
    """Return the ceiling for MFU, measured once in a process: hardware does not change."""
    return measure_matrix_rate(device, precision, seconds=0.2)


def measure_matrix_rate(device: torch.device, precision: config.Precision, *, seconds: float) -> float:
    """Measure how many operations a second a large matrix product reaches, at best in so many seconds."""
    side = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    best = float("inf")
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or best == float("inf"):
        synchronize(device)
        start = time.perf_counter()
        torch.mm(left, right, out=product)
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2.0 * side**3 / best


def utilization(images_per_second: float, flops_per_image: int, rate: float, passes: float = 3.0) -> float:
    """Return MFU: the share of the matrix rate that forward and backward (3 times forward) make use of."""
    return images_per_second * passes * flops_per_image / rate
