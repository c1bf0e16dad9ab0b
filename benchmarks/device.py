"""What the device makes by itself: batches from stored pixels, and Muon's step; never trains a model.

    python benchmarks/device.py [--device cuda] [--count 50000] [--batch-size 2048] [--epochs 5]

Synthetic images of 32x32, the presets one after the other, plain and compiled; then Muon on the matrices of a
ViT (9 layers of width 384), beside torch's. On a GPU the clock is the GPU's (CUDA events), and `host` is the
time that the host took to ask for the work: below the device's, the device never waits. Without a GPU
everything is tiny: it only shows that it runs.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from vitreous import console
from vitreous.config import Preprocessing
from vitreous.data import augment
from vitreous.data.device import DeviceLoader
from vitreous.data.split import ArrayImages, Split
from vitreous.muon import Muon

PRESETS = ("none", "mix", "light", "medium", "strong", "small")


def measure(work: Callable[[], None], device: torch.device, repeats: int) -> tuple[float, float]:
    """Return seconds on the device and seconds on the host of one repetition, after one to warm up."""
    work()
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        seconds = (time.perf_counter() - start) / repeats
        return seconds, seconds
    torch.cuda.synchronize(device)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start = time.perf_counter()
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    host = (time.perf_counter() - start) / repeats
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / 1000 / repeats, host


def loader_row(split: Split, preset: str, compiled: bool, options: argparse.Namespace) -> list[console.Cell]:
    """Measure epochs of batches with one preset."""
    loader = DeviceLoader(
        split,
        preprocessing=Preprocessing(image_size=(32, 32)),
        augment=augment.preset(preset, tiny=True),
        batch_size=options.batch_size,
        device=options.device,
        compiled=compiled,
    )
    numbers = iter(range(1_000_000))

    def epoch() -> None:
        for _ in loader.epoch(next(numbers)):
            pass

    seconds, host = measure(epoch, loader.device, options.epochs)
    images = loader.steps_per_epoch * min(options.batch_size, len(split))
    figures = [f"{images / seconds:,.0f}", f"{1000 * seconds:.1f}", f"{1000 * host:.1f}"]
    return [preset, "compiled" if compiled else "plain", *figures]


def muon_row(name: str, options: argparse.Namespace) -> list[console.Cell]:
    """Measure steps on the hidden matrices of a ViT."""
    device = torch.device(options.device)
    width = options.width
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)] * options.layers
    parameters = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer: torch.optim.Optimizer
    if name == "torch":
        optimizer = torch.optim.Muon(parameters, adjust_lr_fn="match_rms_adamw")
    else:
        optimizer = Muon(parameters)
        if name.endswith("with a flag"):
            optimizer.found_inf = torch.zeros((), device=device)
    seconds, host = measure(lambda: optimizer.step() and None, device, 4 * options.epochs)
    return [name, f"{1000 * seconds:.2f}", f"{1000 * host:.2f}"]


def main() -> None:
    """Print a table of batches and a table of steps."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--count", type=int, default=50_000 if cuda else 512)
    parser.add_argument("--batch-size", type=int, default=2048 if cuda else 128)
    parser.add_argument("--epochs", type=int, default=5 if cuda else 1)
    parser.add_argument("--layers", type=int, default=9 if cuda else 2)
    parser.add_argument("--width", type=int, default=384 if cuda else 64)
    options = parser.parse_args()
    pixels = np.random.default_rng(0).integers(0, 256, (options.count, 32, 32, 3), np.uint8)
    digests = np.zeros((options.count, 16), np.uint8)
    split = Split(ArrayImages(pixels, "random"), np.arange(options.count) % 10, 10, digests)
    chip = (
        torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else "this processor"
    )
    console.note(
        f"{options.count:,} images, batches of {options.batch_size:,}, torch {torch.__version__}, {chip}"
    )
    ways = (False, True) if options.device.startswith("cuda") else (False,)
    rows = [loader_row(split, preset, compiled, options) for preset in PRESETS for compiled in ways]
    console.table(["augment", "", "images/s", "ms per epoch", "host"], rows)
    names = ("torch", "vitreous", "vitreous with a flag")
    console.table(["Muon", "ms per step", "host"], [muon_row(name, options) for name in names])


if __name__ == "__main__":
    main()
