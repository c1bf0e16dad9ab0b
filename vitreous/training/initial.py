"""`vitreous train`: from scratch, from a trained model that the user names, or from the one in the package.

A Vision Transformer learns little from few pictures; features learned elsewhere make up for that.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import console, objectives, parallel
from vitreous.config import FinetuneConfig, TrainConfig
from vitreous.data import Dataset, InMemory, Split, open_data
from vitreous.errors import DataError, OptionError
from vitreous.training import folder, run, setup
from vitreous.training.caller import Caller
from vitreous.training.finetune import finetune
from vitreous.training.plan import SUPERVISED
from vitreous.training.results import Result

OWN = "tiny"
EXPECTED = "of 3,000 dogs of ten breeds it recognised 82 % after four minutes, a ResNet-18 from scratch 46 %"
"""What to expect, as it was measured: README.md."""
FEW = 20_000
"""Training images below which a trained model is the better start."""
SMALLEST = 48
"""Side of the smallest images that count as photographs."""
COLOURFUL = 8.0
"""How far apart (of 255) the channels of pictures are, in the median, that count as colour photographs."""
LOOKED_AT = 32
"""Pictures that are looked at to tell photographs from scans and drawings in gray."""


def train(
    data: str | InMemory,
    options: TrainConfig,
    *,
    make_objective: objectives.Build | None = None,
    dataset: Dataset | None = None,
    shape: Mapping[str, Any] | None = None,
    caller: Caller | None = None,
) -> Result:
    """Train a classifier on the data, or go on with a run that was stopped; return its folder and figures.

    A custom task (`make_objective`) is learned from scratch, and so is a model whose `shape` is given (fields
    of its configuration, beyond the options). The other parameters are those of `run.train`.
    """
    caller = caller or Caller()
    setup.check_options(options)
    if make_objective is not None:
        return run.train(data, options, make_objective=make_objective, dataset=dataset, caller=caller)
    if dataset is None:
        dataset = open_data(data, data_root=options.data_root, seed=setup.seed(options))
    if shape:
        task = replace(SUPERVISED, asked=dict(shape))
        return run.train(data, options, dataset=dataset, task=task, caller=caller)
    source, reason = starting_point(options, dataset)
    if source is None or (options.init is None and began_from_scratch(str(data), options, dataset)):
        return run.train(data, options, dataset=dataset, caller=caller)
    if parallel.is_main():
        console.note(f"init: {source} ({reason})")
    return finetune(source, data, transferring(options), dataset, by_train=True, caller=caller)


def starting_point(options: TrainConfig, dataset: Dataset) -> tuple[str | None, str]:
    """Return the model to start from, and why; None: from scratch."""
    shaped = [
        f"--{name}" for name in ("model", "recipe", "initialization", "reconstruct") if getattr(options, name)
    ]
    if options.init == "none":
        return None, ""
    if options.init is not None:
        if shaped:
            raise OptionError(
                f"{shaped[0]} is for training from scratch: leave it out, or --init {options.init}"
            )
        return options.init, "as asked"
    train = dataset.splits.get("train")
    if shaped or options.patch_size or train is None or not 0 < len(train) < FEW:
        return None, ""
    if not photographs(train):
        return None, ""
    few = f"{len(train):,} colour photographs are few to learn from scratch, which --init none does"
    return OWN, f"{few}; {EXPECTED}"


def began_from_scratch(data: str, options: TrainConfig, dataset: Dataset) -> bool:
    """Tell whether the same command began a run from scratch, before there was a model to start from."""
    now = setup.identity(data, dataset, options)
    named = takewhile(Path.exists, folder.names(data)) if options.out is None else [Path(options.out)]
    stored = [each for each in named if (each / "config.json").is_file()]
    return any(not folder.changes(folder.read_config(each), now) for each in stored)


def photographs(split: Split) -> bool:
    """Tell whether pictures look like photographs: in colour, and not very small."""
    apart: list[float] = []
    for index in split.sample(LOOKED_AT):
        try:
            picture = split.read(int(index))
        except DataError:
            continue  # one bad file changes nothing here; the loader will name it
        if picture.mode not in ("RGB", "RGBA", "P", "CMYK", "YCbCr") or min(picture.size) < SMALLEST:
            return False
        small = np.asarray(picture.convert("RGB").resize((32, 32)), dtype=np.float32)
        apart.append(float((small.max(2) - small.min(2)).mean()))
    return bool(apart) and float(np.median(apart)) >= COLOURFUL


def transferring(options: TrainConfig) -> FinetuneConfig:
    """Return the same options for a trained model."""
    given = {each.name: getattr(options, each.name) for each in fields(TrainConfig)}
    return FinetuneConfig(**{**given, "init": None, "recipe": "auto"})
