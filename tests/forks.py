"""Processes that start in milliseconds: forked, one by one, from a process that has imported everything."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "pytest",
        "sklearn.datasets",
        "tests.training.runs",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torchvision.transforms.v2.functional",
        "vitreous.report",
    ]
)


def say_into(path: Path) -> None:
    """Send what this process writes to stdout and stderr into a file: where it was forked, nobody looks."""
    with path.open("a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)


def forget_vitreous() -> None:
    """Let this process import vitreous anew, so that what nobody imports is missing, as for a user."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vitreous"]:
        del sys.modules[name]


def printed(folder: Path, work: Callable[..., None], *arguments: Any) -> list[str]:
    """Do the work in a process and a folder of its own; return the lines that it prints."""
    process = FORKS.Process(target=_work, args=(folder, work, *arguments))
    process.start()
    process.join()
    assert process.exitcode == 0, (folder / "stderr").read_text()
    return (folder / "stdout").read_text().splitlines()


def _work(folder: Path, work: Callable[..., None], *arguments: Any) -> None:
    os.chdir(folder)
    say_into(Path("stderr"))
    with Path("stdout").open("w") as stream:
        os.dup2(stream.fileno(), 1)
    work(*arguments)
