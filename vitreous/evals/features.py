"""Frozen features of every image of a split, extracted once and kept: what probes learn from.

Letters: N images, D width.
"""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from vitreous import config, files, parallel
from vitreous.config import FeatureConfig, Preprocessing
from vitreous.data import Split
from vitreous.errors import ModelError
from vitreous.evals import outputs
from vitreous.models.architecture import to_dict
from vitreous.models.protocol import FeaturePooling
from vitreous.models.weights import Model

Part = tuple[np.ndarray, np.ndarray]
"""Features (N, D) and targets: (N,), or (N, K) bool where an image has several labels."""


def extract(
    model: Model,
    split: Split,
    preprocessing: Preprocessing,
    *,
    layer: int = -1,
    pooling: FeaturePooling = "model",
    cache: Path | None = None,
    precision: config.Precision = "float32",
    **options: Any,
) -> outputs.Outputs:
    """Return one vector per image: the model's own pooling, or another, of the features after a layer."""

    def compute(images: Tensor, mask: Tensor | None) -> Tensor:
        return model.encode(images, mask, layer=layer, pooling=pooling)

    path = None
    if cache is not None:
        known = identity(model, preprocessing, layer=layer, pooling=pooling)
        path = cache / f"{_key(split, known, precision)}.npz"
    if path is not None and path.is_file() and (kept := _read(path)) is not None:
        return _finite(kept)
    found = _finite(outputs.run(model, split, preprocessing, compute, precision=precision, **options))
    if path is not None and not found.bad:
        with files.atomic(path) as temporary, temporary.open("wb") as file:
            np.savez(file, values=found.values, targets=found.targets, indices=found.indices)
    return found


def _finite(found: outputs.Outputs) -> outputs.Outputs:
    """Return features that are numbers; refuse others, from which nothing can be learned."""
    wrong, count = ~np.isfinite(found.values).all(1), len(found.values)
    if wrong.any():
        raise ModelError(
            f"the features of {wrong.sum():,} of {count:,} images are not numbers: the model's weights are "
            "damaged, or overflow in this --precision"
        )
    return found


def take(model: Model, split: Split, preprocessing: Preprocessing, options: FeatureConfig) -> outputs.Outputs:
    """Return one vector per image as a command's options say, from the cache if it has them."""
    return extract(
        model,
        split,
        preprocessing,
        layer=options.layer,
        pooling=options.pooling,
        cache=Path(options.cache) if options.cache else files.cache_root() / "features",
        precision=parallel.precision(options.precision, next(model.parameters()).device),
        batch_size=options.batch_size,
        workers=options.workers,
    )


def identity(
    model: Model, preprocessing: Preprocessing, *, layer: int = -1, pooling: FeaturePooling = "model"
) -> str:
    """Return a checksum of all that an image's features depend on, besides the image.

    These are the weights, preprocessing and where features are taken; not head, class names or calibration.
    """
    digest = hashlib.sha256()
    shape = {name: value for name, value in to_dict(model.config).items() if name != "num_classes"}
    digest.update(json.dumps([shape, asdict(preprocessing), layer, pooling], sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not name.startswith("head"):
            digest.update(name.encode())
            digest.update(memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()[:32]


def _key(split: Split, model: str, precision: config.Precision) -> str:
    """Name the features of a split by the model's identity, the precision, and what the images hold."""
    digest = hashlib.sha256(model.encode())
    if precision != "float32":
        digest.update(precision.encode())
    digest.update(split.digests.tobytes() + split.targets.tobytes())
    return digest.hexdigest()[:32]


def _read(path: Path) -> outputs.Outputs | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            os.utime(path)
            return outputs.Outputs(kept["values"], kept["targets"], kept["indices"], {})
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None  # half a file of an older run: compute it again
