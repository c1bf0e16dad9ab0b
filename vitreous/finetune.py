"""`vitreous finetune`: a trained model on another task, through the same loop as training.

The paper's procedure (section 3.2): the head is removed for a D x K layer of zeros, everything else is kept,
often at a higher resolution with positions interpolated in 2D.
"""

from dataclasses import fields, replace
from typing import Any

from vitreous import console, tuning
from vitreous.config import FinetuneConfig, TrainConfig
from vitreous.data import open_data
from vitreous.models import adapt
from vitreous.models.architecture import pair
from vitreous.outcome import Result
from vitreous.predict import load
from vitreous.train import train
from vitreous.tuning import Beginning

FEW = 20_000

RECIPES: dict[str, dict[str, Any]] = {
    # Section B.1.1 and table 4 of the paper; the learning rate is its middle one, for a batch of 512.
    "paper": {
        "optimizer": "sgd",
        "schedule": "cosine",
        "weight_decay": 0.0,
        "clip": 1.0,
        "lr": 0.01,
        "ema": 0.0,
    },
    # BEiT's and DeiT III's way to fine-tune: layers near the image move less.
    "modern": {
        "optimizer": "adamw",
        "schedule": "cosine",
        "weight_decay": 0.05,
        "layer_decay": 0.75,
        "lr": 5e-4,
    },
}
PARTS = {
    # A fresh head, or factors from zero, on frozen features: small, so they move fast.
    "head": {"lr": 3e-3, "weight_decay": 0.0, "layer_decay": 1.0},
    "lora": {"lr": 1e-3, "weight_decay": 0.0, "layer_decay": 1.0},
}


def finetune(source: str, data: str, options: FinetuneConfig) -> Result:
    """Fit the model at `source` to the data, or go on with a run that was stopped."""
    tuning.parse(options.tune)  # before anything is read or written
    dataset = open_data(data, data_root=options.data_root, seed=options.seed)
    images = len(dataset.splits["train"]) if "train" in dataset.splits else 0
    options = with_recipe(options, images)
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
    )
    return train(data, replace(options, model=None), beginning=beginning)


def with_recipe(options: FinetuneConfig, images: int) -> FinetuneConfig:
    """Return the options with the recipe's values wherever the user left the default; say which and why."""
    name = options.recipe
    if name == "auto":
        name = "modern" if images < FEW or options.tune != "full" else "paper"
        why = f"{images:,} images" if options.tune == "full" else f"only {options.tune} learns"
        console.note(f"recipe: {name} ({why})")
    if name == "none":
        return options
    values = RECIPES[name] | PARTS.get(options.tune.split(":")[0], {})
    untouched = {field.name: field.default for field in fields(TrainConfig)}
    given = {key for key in values if getattr(options, key) != untouched[key]}
    return replace(options, **{key: value for key, value in values.items() if key not in given})
