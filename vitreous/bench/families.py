"""Where the time goes, by the kind of work: GPU kernels or CPU operators, told apart by their names."""

import os
from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

from vitreous import parallel
from vitreous.bench.measure import wall

KERNELS = {
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "matrix products": ("gemm", "cutlass", "nvjet", "sm90_xmma", "cublas", "splitk", "conv"),
    "optimizer": ("multi_tensor", "adam"),
    "pointwise, norms": ("triton", "elementwise", "reduce", "norm", "softmax"),
    "copies": ("memcpy", "memset", "copy"),
}
OPERATORS = {
    "attention": ("attention",),
    "matrix products": ("mm", "linear", "conv", "matmul", "dot"),
    "optimizer": ("foreach", "adam", "optimizer", "lerp", "addcmul", "addcdiv"),
    "copies": ("copy", "clone", "contiguous", "cat", "stack", "memcpy", "fill", "zero", "aten::to"),
    "pointwise, norms": (
        *("norm", "gelu", "softmax", "add", "sub", "mul", "div", "sum", "mean", "relu", "tanh", "exp"),
        *("cross_entropy", "nll", "isfinite", "sqrt", "clamp", "argmax", "eq", "logical", "bitwise"),
    ),
}
"""Kinds by parts of names; the first match counts."""
NONE = {"cuda": "idle", "cpu": "between operators"}
"""The rest of the time: no kernel ran; the host was in Python, or waited for a thread."""


def kind_of(name: str, kinds: dict[str, tuple[str, ...]]) -> str:
    """Return the kind of work that a kernel or operator of this name does."""
    lowered = name.lower()
    return next((kind for kind, parts in kinds.items() if any(part in lowered for part in parts)), "other")


def shares(spent: Iterable[tuple[str, float]], seconds: float, device: str) -> dict[str, float]:
    """Return the share of the time of each kind, largest first, then the rest of the time."""
    kinds = KERNELS if device == "cuda" else OPERATORS
    total: dict[str, float] = {}
    for name, each in spent:
        kind = kind_of(name, kinds)
        total[kind] = total.get(kind, 0.0) + each
    seconds = max(seconds, sum(total.values()))  # several threads may be busy at once
    ordered = sorted(total.items(), key=lambda pair: -pair[1])
    found = {kind: each / seconds for kind, each in ordered if each > 0}
    return {**found, NONE.get(device, "rest"): max(0.0, 1.0 - sum(found.values()))}


def profiled(work: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Do some work under torch's profiler, and return where its time went."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it logs to stderr when it starts and stops
    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as found:
        seconds = wall(lambda: (work(), parallel.synchronize(device)))
    spent = [
        (each.key, (each.self_device_time_total if on_gpu else each.self_cpu_time_total) / 1e6)
        for each in found.key_averages()
    ]
    return shares(spent, seconds, device.type)
