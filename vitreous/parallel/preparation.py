"""How a module is made ready for its device and the ranks: moved, checkpointed, compiled, sharded.

It is prepared in place and keeps its parameter names, so that checkpoints don't depend on any of this. What
torch needs for shards takes a second to import, and is imported where it is used.
"""

import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from vitreous import config
from vitreous.models import kernels
from vitreous.models.vit import Attention
from vitreous.parallel.ranks import World

PARTS = ("embed", "run_blocks", "forward_features", "forward_head")
"""Methods of a model that tasks call instead of its `forward`."""
_BLOCK = re.compile(r"(^|\.)blocks\.\d+$")


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
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

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
        for name in PARTS:  # and tasks call parts of it
            if hasattr(inner, name):
                register_fsdp_forward_method(inner, name)
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


@contextmanager
def uncompiled() -> Iterator[None]:
    """Let modules run uncompiled: a few images are evaluated in less time than compiling would take."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed dropout and stochastic depth for a step: a function of (seed, step, rank), so nothing to save."""
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little", signed=True))


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
