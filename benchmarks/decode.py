"""JPEGs to training batches on a device: decoded by workers, read from their cache, or decoded by nvJPEG.

    python benchmarks/decode.py photos/ [--workers 4 8 16] [--epochs 3] [--image-size 224] [--device cuda]

Batches of 256, Inception crop, flip and RandAugment of two operations: what `vitreous train` feeds a model of
that size. The first epoch of each, which starts the workers, is not counted.
"""

import argparse
import os
import tempfile
import time
from typing import Any

from vitreous import console, parallel
from vitreous.config import Augment, Preprocessing
from vitreous.data import Split, make_loader, open_data
from vitreous.data.loader import why_not_decoded


def rate(split: Split, epochs: int, **settings: Any) -> float:
    """Return images per second over some epochs, after one that is not counted."""
    loader = make_loader(split, augment="medium", batch_size=256, **settings)
    seen, started = 0, 0.0
    for epoch in range(1 + epochs):
        for batch in loader.epoch(epoch):
            seen += len(batch)
        parallel.synchronize(settings["device"])
        if not epoch:
            seen, started = 0, time.monotonic()
    return seen / (time.monotonic() - started)


def main() -> None:
    """Measure each way with each number of workers; print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    split = open_data(options.data).splits["train"]
    side = options.image_size
    device = parallel.choose_device(options.device)
    common: dict[str, Any] = {"preprocessing": Preprocessing(image_size=(side, side)), "device": device}
    if reason := why_not_decoded(split, common["preprocessing"], Augment(), None):
        raise SystemExit(f"nothing to compare: {reason}")
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as cache:
        ways: dict[str, dict[str, Any]] = {
            "decoded by workers": {"pixels": "host", "cache": None},
            "from the workers' cache": {"pixels": "host", "cache": cache},
            "decoded on the device": {"pixels": "decode"},
        }
        for way, settings in ways.items():
            for workers in options.workers:
                found = rate(split, options.epochs, workers=workers, **common, **settings)
                rows.append([way, str(workers), f"{found:,.0f}"])
                console.note(f"{way}, {workers} workers: {found:,.0f} images/s")
    console.table(["", "workers", "images/s"], rows)
    console.note(f"{len(split):,} JPEGs, {side} pixels, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
