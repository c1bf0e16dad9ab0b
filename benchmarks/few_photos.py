"""A folder of photographs, the same time: `vitreous train` as it is, and a ResNet-18 from scratch.

    python benchmarks/few_photos.py FOLDER [--time-budget 4m] [--threads 2] [--options "--seed 1"]

The ResNet-18 is torchvision's at 64 pixels, with what people usually take: pictures in memory at 80 pixels,
random crops and flips, SGD with momentum, a cosine over the time, label smoothing. Both see the same splits.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision import models
from torchvision.transforms import v2

from vitreous import console
from vitreous.data import Split, open_data
from vitreous.training.plan import seconds

STORED, SIDE, BATCH, PEAK = 80, 64, 64, 0.05
RESERVE = 0.05
"""Part of the time that is left for the test split."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pixels(split: Split) -> tuple[Tensor, Tensor]:
    """Return all pictures of a split, scaled and cropped to one size, and their labels."""
    fit = v2.Compose([v2.Resize(STORED), v2.CenterCrop(STORED), v2.PILToTensor()])
    images = [fit(split.read(number).convert("RGB")) for number in range(len(split))]
    return torch.stack(images), torch.as_tensor(split.targets)


def train_resnet(splits: dict[str, Split], classes: int, budget: float) -> dict[str, float]:
    """Train until the time is over; return accuracy, images/s and seconds."""
    started, until = time.monotonic(), (1 - RESERVE) * budget
    images, labels = pixels(splits["train"])
    model = models.resnet18(num_classes=classes).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=PEAK, momentum=0.9, weight_decay=5e-4, nesterov=True)
    crop, flip = v2.RandomResizedCrop(SIDE, scale=(0.35, 1.0), antialias=True), v2.RandomHorizontalFlip()
    normalize = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    seen, share = 0, 0.0
    while share < 1.0:
        for chosen in torch.randperm(len(images)).split(BATCH):
            share = (time.monotonic() - started) / until
            if share >= 1.0 or len(chosen) < 2:
                break
            varied = torch.stack([flip(crop(image)) for image in images[chosen]])
            for group in optimizer.param_groups:
                group["lr"] = PEAK * min(share / 0.05, 0.5 + 0.5 * math.cos(math.pi * share))
            batch = normalize(varied).contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(model(batch), labels[chosen], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(chosen)
    taken = time.monotonic() - started
    model.eval()
    others, truth = pixels(splits["test"])
    centre = v2.Compose([v2.Resize(SIDE, antialias=True), normalize])
    with torch.inference_mode():
        guesses = torch.cat([model(centre(part)).argmax(1) for part in others.split(256)])
    return {
        "accuracy": (guesses == truth).float().mean().item(),
        "images_per_second": seen / taken,
        "seconds": time.monotonic() - started,
    }


def train_vitreous(data: str, budget: str, options: list[str], threads: int) -> dict[str, float]:
    """Run the command as a user does."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "vitreous",
            "train",
            data,
            "--time-budget",
            budget,
            "--out",
            str(out),
        ]
        started = time.monotonic()
        subprocess.run([*command, *options], check=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        taken = time.monotonic() - started
        results = json.loads((out / "results.json").read_text())
    figures = results["test"]
    return {
        "accuracy": figures["accuracy"],
        "images_per_second": results["images_per_second"],
        "seconds": taken,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--time-budget", default="4m")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--options", default="", help="for vitreous train")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    dataset = open_data(given.data)
    rows = {
        "vitreous train": train_vitreous(
            given.data, given.time_budget, shlex.split(given.options), given.threads
        ),
        "ResNet-18 from scratch": train_resnet(
            dict(dataset.splits), len(dataset.labels), seconds(given.time_budget)
        ),
    }
    console.table(
        ["", "test accuracy", "images/s", "seconds"],
        [
            [name, f"{row['accuracy']:.2%}", f"{row['images_per_second']:,.0f}", f"{row['seconds']:.0f}"]
            for name, row in rows.items()
        ],
    )


if __name__ == "__main__":
    main()
