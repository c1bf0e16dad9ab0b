"""How fast whole steps on small images are, loader and augmentation included, and where their time goes.

    python benchmarks/steps.py [--device cuda] [--only NAME ...] [--steps 40] [--out FILE]

`vitreous bench --profile` times the step of any variant on a batch that is ready; here are the models that
`vitreous train` makes for small images, which have no name, fed by its loader from synthetic pixels. Without
a GPU everything is tiny: it only shows that it runs.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous import console, objectives, parallel
from vitreous.bench import families
from vitreous.config import TrainConfig
from vitreous.data import open_data
from vitreous.models import cost
from vitreous.training import Caller, assembly, resume, setup
from vitreous.training.extension import Stage
from vitreous.training.loop import Training
from vitreous.training.signals import StopSignal


@dataclass(frozen=True)
class Case:
    """What is trained: a shape, the images, the batch."""

    name: str
    size: int
    shape: tuple[int, int, int]
    """Width, depth, heads."""


SMALL: dict[str, Any] = {"optimizer": "muon", "augment": "small", "batch_size": 2048}
IMAGES = 20_000
CASES = [
    Case("4 M, 32 px", 32, (192, 9, 3)),
    Case("16 M, 32 px", 32, (384, 9, 6)),
    Case("4 M, 64 px", 64, (192, 9, 3)),
    Case("16 M, 64 px", 64, (384, 9, 6)),
]


def synthetic(case: Case, folder: Path, tiny: bool) -> str:
    """Write random pixels in as many classes as CIFAR-10 has."""
    count, rng = 256 if tiny else IMAGES, np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split, number in (("train", count), ("val", 64), ("test", 64)):
        shape = (number, case.size, case.size, 3)
        arrays[f"{split}_images"] = rng.integers(0, 256, shape, dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(number) % 10
    path = folder / "pixels.npz"
    np.savez(path, **arrays)
    return str(path)


def prepared(case: Case, folder: Path, device: str) -> Training:
    """Return a run before its first step."""
    tiny = device == "cpu"
    data = synthetic(case, folder, tiny)
    size: dict[str, Any] = {"image_size": (case.size,), "patch_drop": 0.0}
    options = TrainConfig(out=str(folder / "run"), device=device, epochs=1000, **size, **SMALL)
    if tiny:
        options = replace(options, batch_size=8, optimizer="adamw", augment="light")
    dataset = open_data(data)
    with parallel.join(device) as world:
        plan = setup.agree_on_plan(folder / "run", data, dataset, options, world)
    if not tiny:
        width, depth, heads = case.shape
        shape = {"width": width, "depth": depth, "heads": heads, "mlp_width": 4 * width}
        plan = replace(plan, architecture=replace(plan.architecture, **shape))
    stages = [Stage(epochs=plan.epochs, seconds=plan.time_budget)]
    training = Training(folder / "run", plan, stages, options, dataset, world, StopSignal())
    assembly.build(training, objectives.builder(plan.objective), None)
    resume.take_up(training, Caller())
    return training


def take(training: Training, steps: int) -> float:
    """Take so many steps, and return the seconds of one."""
    per_epoch, taken = training.loader.steps_per_epoch, 0
    parallel.synchronize(training.world.device)
    start = time.perf_counter()
    while taken < steps:
        for batch in training.loader.epoch(training.position.step // per_epoch):
            training.take_step(batch)
            training.settle(everything=False)
            taken += 1
            if taken == steps:
                break
    parallel.synchronize(training.world.device)
    return (time.perf_counter() - start) / steps


def measure(case: Case, device: str, steps: int) -> dict[str, Any]:
    """Measure one case after its start."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        training = prepared(case, Path(folder), device)
        take(training, 1)
        start = time.monotonic() - began
        take(training, 8 if device != "cpu" else 1)
        seconds = take(training, steps)
        speed = training.step.gradients.images / seconds
        flops = 2 * cost.flops(training.plan.architecture)
        rate = parallel.matrix_rate(training.world.device, training.plan.precision)
        with training.log:
            kinds = families.profiled(lambda: take(training, min(steps, 10)), training.world.device)
        training.checkpoints.close()
    return {
        "case": case.name,
        "parameters": cost.parameters(training.plan.architecture),
        "batch": training.step.gradients.images,
        "milliseconds": round(1000 * seconds, 2),
        "images_per_second": round(speed),
        "mfu": round(parallel.utilization(speed, flops, rate), 4),
        "tflops": round(3 * flops * speed / 1e12, 1),
        "start_seconds": round(start, 1),
        "profile": {kind: round(share, 3) for kind, share in kinds.items()},
    }


def main() -> None:
    """Measure the cases one after the other; write each as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", help="parts of the names of cases")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, help="a file of JSON lines")
    options = parser.parse_args()
    steps = options.steps if options.device != "cpu" else 2
    rows: list[list[console.Cell]] = []
    for case in CASES:
        if options.only and not any(part in case.name for part in options.only):
            continue
        found = measure(case, options.device, steps)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in found["profile"].items())
        figures = [
            f"{found['images_per_second']:,}",
            f"{found['mfu']:.1%}",
            f"{found['start_seconds']:.0f} s",
        ]
        rows.append([case.name, f"{found['milliseconds']:.2f}", *figures, shares])
    console.table(["case", "ms a step", "images/s", "MFU", "start", "where the time goes"], rows)


if __name__ == "__main__":
    main()
