"""What a device is and can do: its choice, precision, memory and speed; never what runs on it."""

import functools
import sys
import time
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch

from vitreous import config
from vitreous.errors import OptionError


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
