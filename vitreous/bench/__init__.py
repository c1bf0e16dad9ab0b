"""`vitreous bench`: how fast this machine trains, predicts, loads and starts, beside other libraries.

cases      from options to what is timed
measure    the stopwatch: rounds in turn, medians
train  predict  load  start    the jobs: each yields its contenders, ours first, then the peers
peers      other libraries' models with our weights
families   where the time goes
table      rows, tables, files
"""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import torch

from vitreous import console, parallel
from vitreous.bench import cases, families, measure, table
from vitreous.bench.cases import COMPUTING, Case, Request
from vitreous.bench.peers import Peers
from vitreous.bench.place import Place
from vitreous.config import Precision
from vitreous.errors import OptionError
from vitreous.models import cost
from vitreous.training.setup import cores
from vitreous.version import __version__

MOST_WORKERS = 16


def bench(asked: Request) -> dict[str, Any]:
    """Time every case, one after the other; return the rows, and the machine they were found on."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise OptionError("bench times one process: start it without torchrun")
    peers = Peers(asked.peers)
    with parallel.join(asked.device) as world:
        todo = [_job(each).settled(cases.with_batch(each, world.device.type), world) for each in asked.cases]
        machine = describe(world.device)
        console.note(f"on {machine['device']}, threads: {machine['threads']}, torch {machine['torch']}")
        ceiling = Ceiling(world.device)
        for precision in dict.fromkeys(
            each.precision for each in todo if each.precision in get_args(Precision)
        ):
            ceiling.look(precision, seconds=1.0)
            console.note(f"matrix products in {precision}: {ceiling.rates[precision] / 1e9:,.0f} GFLOP/s")
        workers = min(MOST_WORKERS, cores()) if asked.workers is None else asked.workers
        found: list[tuple[Case, table.Row]] = []
        for case in todo:
            console.note(f"timing {case}")
            with TemporaryDirectory() as scratch, _restored():
                place = Place(world=world, peers=peers, scratch=Path(scratch), workers=workers)
                rows = time_case(case, place, asked, ceiling)
            console.note(table.brief(rows))  # at once: so a stopped run has shown something
            found += [(case, row) for row in rows]
    for case, row in found:  # at the end: the ceiling may have been seen higher in a later round
        if not row["merge"]:
            row["mfu"] = ceiling.utilization(case, row["images_per_second"])
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "matrix_rates": ceiling.rates,
        "rows": [row for _, row in found],
    }


class Ceiling:
    """How many operations per second large matrix products reach: the best of many measurements.

    Each round measures again, because a shared machine has quiet moments and busy ones."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rates: dict[Precision, float] = {}

    def look(self, precision: Any, *, seconds: float = 0.1) -> None:
        """Measure again what is reached in this precision, if it is one that torch multiplies in."""
        if precision in get_args(Precision):
            rate = parallel.measure_matrix_rate(self.device, precision, seconds=seconds)
            self.rates[precision] = max(rate, self.rates.get(precision, 0.0))

    def utilization(self, case: Case, rate: float) -> float | None:
        """Return MFU, counting the same operations for ours and the peers', two for each multiply-add."""
        if case.model is None or case.precision not in self.rates:
            return None
        flops = 2 * cost.flops(case.architecture)
        return parallel.utilization(rate, flops, self.rates[case.precision], _job(case).PASSES)


def time_case(case: Case, place: Place, asked: Request, ceiling: Ceiling) -> list[table.Row]:
    """Time one case: make its contenders ready, take turns, and profile them if asked."""
    device = place.world.device
    timed = measure.wall if case.job == "start" else measure.clock(device)
    ready = measure.make_ready(_job(case).contenders(case, place), device, timed)
    try:
        measure.take_turns(ready, asked.rounds, timed, lambda: ceiling.look(case.precision))
        ours = next((each.rate for each in ready if each.contender.ours), None)
        on_cores = device.type == "cpu" and case.job in COMPUTING
        rows = [table.row(case, each, ours, on_cores) for each in ready]
        if asked.profile and case.job in COMPUTING:
            for each, row in zip(ready, rows, strict=True):
                row["profile"] = families.profiled(each.again, device)
    finally:
        measure.close(ready, device)
    return rows


def describe(device: torch.device) -> dict[str, Any]:
    """Return what must be known of the machine and the software on which a speed was measured."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else f"{processor()} ({device.type})",
        "processor": processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "vitreous": __version__,
    }


def processor() -> str:
    """Return the processor's name, if the system has it (Linux), else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@contextmanager
def _restored() -> Iterator[None]:
    """Undo what a case sets for all of torch: bf16 training allows TF32 on a GPU."""
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)


def _job(case: Case) -> Any:
    return import_module(f"{__name__}.{case.job}")
