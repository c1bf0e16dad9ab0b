"""How a module meets the hardware, never what it learns.

hardware     devices: their choice, precision, memory and speed
preparation  a module made ready: moved, checkpointed, compiled, sharded
ranks        the processes that train together, and how they agree
threads      how many of them compute on a CPU
"""

from vitreous.parallel.hardware import (
    autocast,
    choose_device,
    has_bf16,
    matrix_rate,
    measure_matrix_rate,
    out_of_memory,
    peak_memory,
    precision,
    synchronize,
    utilization,
)
from vitreous.parallel.preparation import (
    accumulating,
    blocks,
    cudnn_attends,
    load_whole,
    prepare,
    seed_step,
    uncompiled,
    whole_tensors,
)
from vitreous.parallel.ranks import (
    World,
    added_up,
    agree,
    any_rank,
    broadcast,
    gather,
    is_main,
    join,
    largest,
    on_main,
    total,
)
from vitreous.parallel.threads import keep_threads, settle, settled

__all__ = [
    "World",
    "accumulating",
    "added_up",
    "agree",
    "any_rank",
    "autocast",
    "blocks",
    "broadcast",
    "choose_device",
    "cudnn_attends",
    "gather",
    "has_bf16",
    "is_main",
    "join",
    "keep_threads",
    "largest",
    "load_whole",
    "matrix_rate",
    "measure_matrix_rate",
    "on_main",
    "out_of_memory",
    "peak_memory",
    "precision",
    "prepare",
    "seed_step",
    "settle",
    "settled",
    "synchronize",
    "total",
    "uncompiled",
    "utilization",
    "whole_tensors",
]
