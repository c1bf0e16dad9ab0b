"""Processes that start in milliseconds: forked, one by one, from a process that has imported everything."""

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["pytest", "sklearn.datasets", "tests.training.runs", "torch.distributed.fsdp", "vitreous.report"]
)
