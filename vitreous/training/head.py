"""A head to start fine-tuning with: what logistic regression on the frozen features finds, instead of zeros.

Features that already fit are then not distorted by the gradients of an untrained head (arXiv 2202.10054), and
where time is short the model is good from the first step.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from vitreous import console, parallel
from vitreous.config import Precision, Preprocessing
from vitreous.data import Dataset, Split
from vitreous.errors import OptionError
from vitreous.evals import linear, outputs
from vitreous.evals.features import Part
from vitreous.models.weights import Model

MOST = 50_000
"""Training images that the regression is fitted to, at most: one rank does it, and others wait."""
STRENGTH = 1e-2
"""λ of the regression if there are no held-out images to choose it by."""


def fit(
    model: Model,
    dataset: Dataset,
    preprocessing: Preprocessing,
    world: parallel.World,
    precision: Precision = "float32",
) -> None:
    """Give the model's heads the regression's weights, the same ones on every rank, and say so."""
    found: list[dict[str, Tensor]] = []

    def regress() -> None:
        found.append({})
        for path in model.config.classifiers:
            layer = model.get_submodule(path)
            if not isinstance(layer, nn.Linear):
                raise OptionError(
                    f"--fit-head needs a dense head, and this model's is {type(layer).__name__}"
                )
            seen = partial(_seen, model, layer, preprocessing=preprocessing, precision=precision)
            weight, bias = _regression(seen, dataset)
            found[0] |= {f"{path}.weight": weight, f"{path}.bias": bias}
        count = min(MOST, len(dataset.splits["train"]))
        console.note(f"head: fitted to the features of {count:,} images")

    parallel.on_main(regress, world)
    tensors = parallel.broadcast(found[0] if found else None, world)
    assert tensors is not None
    with torch.no_grad():
        for name, value in tensors.items():
            parameter = model.get_parameter(name)
            parameter.copy_(value.to(parameter))


def _regression(seen: Callable[[Split], Part], dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Return the head's weight (K, D) and bias (K,); its strength is chosen on val."""
    classes, train = len(dataset.labels), seen(_some(dataset.splits["train"]))
    strength, held_out = STRENGTH, dataset.splits.get("val")
    if held_out is not None and len(held_out):
        metric = "mean_average_precision" if dataset.multilabel else "accuracy"
        strength, _ = linear.choose(train, seen(_some(held_out)), classes, metric)
    weight, bias, mean, deviation = linear.fit(*train, classes, strength)
    weight = weight / deviation[:, None]  # for features as they come, not standardised
    return weight.T.float(), (bias - mean @ weight).float()


def _some(split: Split) -> Split:
    return split if len(split) <= MOST else split.select(split.sample(MOST))


def _seen(
    model: Model,
    layer: nn.Linear,
    split: Split,
    *,
    preprocessing: Preprocessing,
    precision: Precision = "float32",
) -> Part:
    """Return what the head is given for each image (N, D), and the targets."""
    inputs: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))

    def compute(images: Tensor, mask: Tensor | None) -> Tensor:
        inputs.clear()
        model(images, mask)
        return inputs[0]

    try:
        with parallel.uncompiled():
            found = outputs.run(model, split, preprocessing, compute, precision=precision)
    finally:
        hook.remove()
    return np.ascontiguousarray(found.values), found.targets
