"""Training loaders side by side, on this machine, in one run: ours, timm's and torchvision's; never trains a
model.

python benchmarks/data.py [--photos DIR] [--count 1000] [--large 48] [--rounds 3]

Every contender makes batches of 64 at 224x224 (Inception crop, flip, RandAugment of two operations) with two
workers, in a process of its own, three epochs a round; rounds alternate. "Per core" counts the processor time
of the process and its workers, so other work on the machine changes it little. Memory is the tree's
proportional set size (PSS), sampled from outside.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

WORKERS = 2
SIZE = 224
EPOCHS = 3
PEERS = ("vitreous", "timm", "torchvision")


def make_photos(source: Path | None, folder: Path, count: int, size: tuple[int, int]) -> None:
    """Write JPEGs of one size in two classes, cut from photographs: a folder's, or scikit-learn's two."""
    random = np.random.default_rng(0)
    if source is None:
        from sklearn.datasets import load_sample_images

        photos: list[Any] = list(load_sample_images().images)
    else:
        photos = sorted(path for path in source.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    for i in range(count):
        photo = photos[i * len(photos) // count if len(photos) >= count else i % len(photos)]
        image = Image.open(photo) if isinstance(photo, Path) else Image.fromarray(photo)
        part = random.uniform(0.75, 1.0) * min(image.width / size[0], image.height / size[1])
        width, height = int(size[0] * part), int(size[1] * part)
        left = int(random.integers(0, image.width - width + 1))
        top = int(random.integers(0, image.height - height + 1))
        image = image.convert("RGB").resize(
            size, Image.Resampling.BICUBIC, (left, top, left + width, top + height)
        )
        grain = random.normal(0, 4, (size[1] // 4 + 1, size[0] // 4 + 1, 1)).repeat(4, 0).repeat(4, 1)
        pixels = np.clip(np.asarray(image) + grain[: size[1], : size[0]], 0, 255).astype(np.uint8)
        target = folder / "ab"[i % 2] / f"{i}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(target, quality=90)


def batches(peer: str, folder: Path, cache: Path, batch_size: int) -> tuple[object, list[Iterable[Any]]]:
    """Return a loader, to be held as long as its workers shall live, and one iterable an epoch."""
    if peer == "vitreous":
        from vitreous.config import Augment, Preprocessing
        from vitreous.data import make_loader, open_data

        train = open_data(folder, carve=False).splits["train"]
        augment = Augment(randaugment=(2, 9))
        loader = make_loader(
            train,
            preprocessing=Preprocessing(image_size=(SIZE, SIZE)),
            augment=augment,
            batch_size=batch_size,
            workers=WORKERS,
            cache=cache,
        )
        return loader, [loader.epoch(epoch) for epoch in range(EPOCHS)]
    if peer == "timm":
        from timm.data import loader as timm_loader
        from timm.data.dataset import ImageDataset

        create: Any = timm_loader.create_loader
        theirs = create(
            ImageDataset(str(folder)),
            input_size=(3, SIZE, SIZE),
            batch_size=batch_size,
            is_training=True,
            auto_augment="rand-m9-n2",
            color_jitter=None,
            interpolation="bicubic",
            num_workers=WORKERS,
            device=__import__("torch").device("cpu"),
            persistent_workers=True,
        )
        return theirs, [theirs] * EPOCHS
    import torch
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomHorizontalFlip(),
            v2.RandAugment(2, 9),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ]
    )
    plain = torch.utils.data.DataLoader(
        ImageFolder(str(folder), transform),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    return plain, [plain] * EPOCHS


def contend(peer: str, folder: Path, cache: Path, batch_size: int) -> None:
    """Run one contender's epochs; print a line for each."""
    import psutil

    def processor_time() -> float:
        tree = [psutil.Process(), *psutil.Process().children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in tree)

    held, epochs = batches(peer, folder, cache, batch_size)
    for epoch, iterable in enumerate(epochs):
        start, spent, count = time.perf_counter(), processor_time(), 0
        for batch in iterable:
            count += len(batch.images if peer == "vitreous" else batch[0])
        row = {
            "epoch": epoch,
            "count": count,
            "wall": time.perf_counter() - start,
            "processor": processor_time() - spent,
        }
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    del held
    os._exit(0)  # persistent workers of the peers otherwise take seconds to end


def measure(peer: str, folder: Path, cache: Path, batch_size: int) -> list[dict[str, float]]:
    """Run a contender in its own process and sample its memory; return a row an epoch."""
    command = [sys.executable, __file__, "--contend", peer, str(folder), str(cache), str(batch_size)]
    rows: list[dict[str, float]] = []
    peak = 0.0
    with tempfile.NamedTemporaryFile("r") as said, open(said.name, "w") as output:
        process = subprocess.Popen(command, stdout=output)
        ended = False
        while not ended:
            time.sleep(0.1)
            ended = process.poll() is not None
            if not ended:
                peak = max(peak, _memory(process.pid))
            for line in said:
                rows.append({**json.loads(line), "peak": peak})
                peak = 0.0
    if len(rows) != EPOCHS:
        raise SystemExit(f"{peer} ended after {len(rows)} of {EPOCHS} epochs")
    return rows


def _memory(process: int) -> float:
    """Return the megabytes that a process and its children hold, shared pages counted once."""
    import psutil

    try:
        tree = [psutil.Process(process), *psutil.Process(process).children(recursive=True)]
        return sum(member.memory_full_info().pss for member in tree) / 2**20
    except psutil.Error:
        return 0.0


def compare(folder: Path, batch_size: int, rounds: int, scratch: Path) -> dict[str, list[dict[str, float]]]:
    """Return for each contender the medians over rounds, an epoch each."""
    runs: dict[str, list[list[dict[str, float]]]] = {peer: [] for peer in PEERS}
    for turn in range(rounds):
        for peer in PEERS if turn % 2 == 0 else PEERS[::-1]:
            cache = scratch / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            runs[peer].append(measure(peer, folder, cache, batch_size))
    return {peer: [_median([run[e] for run in done]) for e in range(EPOCHS)] for peer, done in runs.items()}


def _median(rows: list[dict[str, float]]) -> dict[str, float]:
    return {
        "images/s": median(row["count"] / row["wall"] for row in rows),
        "images/s/core": median(row["count"] / row["processor"] for row in rows),
        "peak MB": max(row["peak"] for row in rows),
    }


def show(title: str, result: dict[str, list[dict[str, float]]]) -> None:
    """Print a Markdown table of one folder's result."""
    out = [
        f"\n{title}\n",
        "| loader | epoch | images/s | images/s per core | ours over it, per core | peak memory |",
    ]
    out.append("|---|---|---|---|---|---|")
    for peer, epochs in result.items():
        for epoch, row in enumerate(epochs):
            ratio = result["vitreous"][epoch]["images/s/core"] / row["images/s/core"]
            cells = (peer, epoch + 1, f"{row['images/s']:.0f}", f"{row['images/s/core']:.0f}", f"{ratio:.2f}")
            out.append("| " + " | ".join(map(str, cells)) + f" | {row['peak MB']:.0f} MB |")
    sys.stdout.write("\n".join(out) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Make the photographs, run the rounds, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=Path, help="take the photographs from this folder")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--large", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contend", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        peer, folder, cache, batch_size = options.contend
        contend(peer, Path(folder), Path(cache), int(batch_size))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        os.environ["VITREOUS_CACHE"] = str(scratch / "user-cache")
        make_photos(options.photos, scratch / "small", options.count, (500, 375))
        make_photos(options.photos, scratch / "large", options.large, (4000, 3000))
        sys.stdout.write(
            f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {WORKERS} workers\n"
        )
        small = compare(scratch / "small", 64, options.rounds, scratch)
        show(f"{options.count} JPEGs of 500x375", small)
        large = compare(scratch / "large", 8, options.rounds, scratch)
        show(f"{options.large} JPEGs of 4000x3000 (batches of 8)", large)


if __name__ == "__main__":
    main()
