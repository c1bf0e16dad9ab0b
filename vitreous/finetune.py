"""`vitreous finetune`: a trained model on another task, through the same loop as training.

The paper's procedure (section 3.2): the head is removed for a D x K layer of zeros, everything else is kept,
often at a higher resolution with positions interpolated in 2D.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

from vitreous import console, files, parallel, tuning
from vitreous.config import FinetuneConfig
from vitreous.data import Dataset, limit_training, open_data
from vitreous.evals import suite as suites
from vitreous.models import adapt
from vitreous.models.architecture import pair
from vitreous.outcome import Result
from vitreous.predict import load
from vitreous.train import train
from vitreous.tuning import Beginning

FEW = 20_000
VIEWS = 200_000
"""Images that a fine-tuning sees where nobody says how long it should be."""

RECIPES: dict[str, dict[str, Any]] = {
    # Section B.1.1 and table 4 of the paper; the learning rate is the middle of its range.
    "paper": {
        "batch_size": 512,
        "optimizer": "sgd",
        "schedule": "cosine",
        "weight_decay": 0.0,
        "clip": 1.0,
        "layer_decay": 1.0,
        "lr": 0.01,
        "ema": 0.0,
    },
    # BEiT's and DeiT III's way to fine-tune: layers near the image move less.
    "modern": {
        "optimizer": "adamw",
        "schedule": "cosine",
        "weight_decay": 0.05,
        "clip": 1.0,
        "layer_decay": 0.75,
    },
}
RATES = {"full": 1e-3, "last": 1e-3, "lora": 2e-3, "head": 6e-3}
"""Learning rates of the modern recipe at batch 256: a fresh head, or factors from zero, move fast."""


def finetune(source: str, data: str, options: FinetuneConfig, dataset: Dataset | None = None) -> Result:
    """Fit the model at `source` to the data, or go on with a run that was stopped."""
    tuning.parse(options.tune)  # before anything is read or written
    if dataset is None:
        dataset = open_data(data, data_root=options.data_root, seed=options.seed)
        if options.train_limit is not None:
            dataset = limit_training(dataset, options.train_limit, options.seed)
    images = len(dataset.splits["train"]) if "train" in dataset.splits else 0
    size = pair(options.image_size, "--image-size") if options.image_size else None
    patch = pair(options.patch_size, "--patch-size") if options.patch_size else None
    classifier = load(source, image_size=size, patch_size=patch, heads=options.heads)
    known = classifier.labels if options.keep_head else None
    for line in adapt.set_classes(classifier.model, len(dataset.labels), known, dataset.labels):
        console.note(f"  {line}")
    beginning = Beginning(
        classifier.model.config,
        classifier.preprocess.preprocessing,
        dict(classifier.model.state_dict()),
        options.tune,
        recipe(options, images),
    )
    return train(data, replace(options, model=None), dataset=dataset, beginning=beginning)


def suite(source: str, data: str, options: FinetuneConfig, after: Callable[[Result], None]) -> dict[str, Any]:
    """Fine-tune on every data set of a suite, each in a run folder of its own; return rows, and group means.

    The same command again goes on with the first run that has not ended. `after` is called with each result.
    """
    tasks = suites.read(data)
    folder = Path(options.out or Path("runs") / Path(data).stem)
    limit = options.train_limit or suites.IMAGES

    def measure(task: suites.Task) -> dict[str, float]:
        dataset = suites.open_task(task, limit, options.data_root, options.seed)
        console.note(f"{task.name}: {task.data}")
        own = replace(options, out=str(folder / task.name), train_limit=limit)
        result = finetune(source, task.data, own, dataset)
        after(result)
        metric = task.metric or ("mean_average_precision" if dataset.multilabel else "accuracy")
        return {metric: result.figures["test"][metric]}

    found = {**suites.run(tasks, measure), "train_images": limit}
    files.write_text(folder / "suite.json", json.dumps(found, ensure_ascii=False, indent=2) + "\n")
    return found


def recipe(options: FinetuneConfig, images: int) -> dict[str, Any]:
    """Return the options of the recipe, which hold where the user gave none; say which recipe, and why."""
    name = options.recipe
    if name == "auto":
        name = "modern" if images < FEW or options.tune != "full" else "paper"
        why = f"{images:,} images" if options.tune == "full" else f"only {options.tune} learns"
        console.note(f"recipe: {name} ({why})")
    if name == "none":
        return {}
    values = dict(RECIPES[name])
    kind, _ = tuning.parse(options.tune)
    if name == "modern":
        batch = options.batch_size or _batch_size(images, options.device)
        values |= {"batch_size": batch, "lr": RATES[kind] * sqrt(batch / 256)}
    if kind in ("head", "lora"):
        values |= {"weight_decay": 0.0, "layer_decay": 1.0}
    if options.time_budget is None and options.epochs is None:
        values["epochs"] = min(100, max(5, round(VIEWS / max(1, images))))
        console.note(f"epochs: {values['epochs']} ({images:,} images, {VIEWS:,} to be seen, 5 to 100 epochs)")
    return values


def _batch_size(images: int, device: str) -> int:
    """Return 256 on a GPU, which smaller batches leave idle, and less where that makes few steps."""
    if parallel.choose_device(device).type == "cuda":
        return 256 if images >= 2_000 else 64
    return 64 if images < 10_000 else 128
