"""Settings of `vitreous train` side by side, each for the same epochs on a part of a data set: what defaults
are chosen by.

    python benchmarks/settings.py cifar10.npz \\
        --common "--epochs 150 --image-size 48 --patch-size 4 --patch-drop 0.5" \\
        --shape width=384 depth=9 heads=6 mlp_width=1536 -- "--reconstruct 2.5" "--reconstruct 10"

The part, and as many other images as are asked for to choose with, are drawn from the training images; test
is the data's own. All runs are made in one process, so that what was compiled serves the next. A run that has
ended is read from --out, if its plan is still what the options come to, and one that was stopped goes on: the
same command adds settings to a table.
"""

import argparse
import hashlib
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from vitreous import console, files, parallel, training
from vitreous.config import TrainConfig
from vitreous.data import Dataset, open_data
from vitreous.training import Result, defaults, setup
from vitreous.training.plan import SUPERVISED


def part_of(dataset: Dataset, images: int, val: int, seed: int) -> Dataset:
    """Return a data set of some training images, with others of them to choose by."""
    train = dataset.splits["train"]
    order = np.random.default_rng(seed).permutation(len(train))
    if images + val > len(order):
        raise SystemExit(f"{images:,} and {val:,} images are more than the {len(order):,} that there are")
    splits = {
        **dataset.splits,
        "train": train.select(np.sort(order[:images])),
        "val": train.select(np.sort(order[images : images + val])),
    }
    name = f"{dataset.fingerprint}, {images} and {val} of part {seed}"
    return replace(dataset, splits=splits, fingerprint=name, carved=())


def row(name: str, result: Result) -> dict[str, Any]:
    """Return the figures of one run."""
    figures = result.figures
    val, test = figures["val"], figures.get("test", {})
    return {
        "settings": name,
        "val": val["accuracy"],
        "val loss": val["loss"],
        "test": test.get("accuracy"),
        "train": figures["train"]["accuracy"],
        "images/s": figures["images_per_second"],
        "seconds": figures["seconds"],
    }


def table(rows: list[dict[str, Any]]) -> None:
    """Show what is there so far: a session that ends early has it then."""
    forms = {"val": "{:.2%}", "test": "{:.2%}", "train": "{:.1%}", "val loss": "{:.4f}"}
    forms |= {"images/s": "{:,.0f}", "seconds": "{:.0f}"}
    lines = [
        ["" if value is None else forms.get(key, "{}").format(value) for key, value in each.items()]
        for each in rows
    ]
    console.table(list(rows[0]), lines)


def main() -> None:
    """Make what runs are missing, and show the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("settings", nargs="+", help="options of `vitreous train`, each set in quotes")
    parser.add_argument("--common", default="", help="options of all runs")
    parser.add_argument("--shape", nargs="*", default=[], help="fields of the model, as width=384")
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--val", type=int, default=10_000)
    parser.add_argument("--part", type=int, default=1, help="which part: a seed")
    parser.add_argument("--out", default="runs/settings")
    given = parser.parse_args()
    dataset = part_of(open_data(given.data), given.images, given.val, given.part)
    shape = {name: int(value) for name, _, value in (each.partition("=") for each in given.shape)}
    facts = setup.measure_facts(dataset, parallel.World(device=parallel.choose_device()))
    rows: list[dict[str, Any]] = []
    for settings in given.settings:
        options = f"--init none --epochs 150 {given.common} {settings}"
        config = tyro.cli(TrainConfig, args=shlex.split(options))
        task = replace(SUPERVISED, asked=shape)
        about = f"{dataset.fingerprint} {defaults.choose(config, facts, task=task).to_json()}"
        out = Path(given.out) / hashlib.blake2b(about.encode(), digest_size=4).hexdigest()
        config = replace(config, out=str(out))
        rows.append(row(settings, training.train(given.data, config, dataset=dataset, shape=shape)))
        files.write_json(Path(given.out) / "rows.json", rows)
        table(rows)


if __name__ == "__main__":
    main()
