"""Runs a function on several gloo ranks of this machine, as torchrun would."""

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from tests.forks import FORKS, say_into


def run(size: int, function: Callable[..., None], *arguments: Any) -> str:
    """Call `function(*arguments)` in `size` processes with torchrun's environment; raise what one raises.

    Return what they wrote on stdout and stderr.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        given = (size, port, said, function, arguments)
        torch.multiprocessing.start_processes(  # type: ignore[attr-defined]
            _enter, given, nprocs=size, start_method=FORKS.get_start_method()
        )
        return said.read_text()


def _enter(
    rank: int, size: int, port: int, said: Path, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    say_into(said)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    function(*arguments)
    if torch.distributed.is_initialized():  # a forked process ends without what `atexit` would have done
        torch.distributed.destroy_process_group()
