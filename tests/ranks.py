"""Runs a function on several gloo ranks of this machine, as torchrun would."""

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing


def run(size: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call `function(*arguments)` in `size` processes with torchrun's environment; raise what one raises."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(_enter, (size, port, function, arguments), nprocs=size)  # type: ignore[attr-defined]


def _enter(
    rank: int, size: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    function(*arguments)
