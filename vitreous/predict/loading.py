"""Loading a classifier from any CKPT: a sealed file, a run folder, or weights of another library's layout.

What was assumed, and what was changed to fit another task, is printed as one short table.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from vitreous import checkpoint, console, files, layouts, parallel
from vitreous.config import Inference, Preprocessing, Runtime
from vitreous.data.augment import EvaluationTransform
from vitreous.errors import CheckpointError, ModelError
from vitreous.layouts import containers
from vitreous.models import adapt
from vitreous.models.weights import Model, Weights, build
from vitreous.predict.choice import equip
from vitreous.predict.classifier import Classifier

BUNDLED = Path(__file__).parents[1] / "bundled"
"""Trained models that come with the package, by name."""
OF_A_HEAD = {"calibration", "abstain", "thresholds", "multilabel", "results"}
"""What is recorded about one head: it says nothing about another."""
OF_AN_INPUT = {"calibration", "results"}
"""What was measured on images of one size: another size gives other figures."""


def load(
    source: str | Path,
    *,
    num_classes: int | None = None,
    labels: Sequence[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    heads: int | None = None,
    device: str | torch.device = "cpu",
    verify: bool = True,
    runtime: Runtime = "torch",
    precision: Inference = "float32",
) -> Classifier:
    """Load a classifier from any CKPT, and fit it to another task where asked.

    Args:
        source: A file, a folder, `hf://owner/name[@revision]` or the name of a bundled model (`tiny`); the
            layout is recognised from the weights.
        num_classes: Give it a fresh, zero head with this many classes.
        labels: Names of the classes; rows of the head whose names the source knows too are kept.
        image_size: Resample the position embeddings in 2D to images of this height and width.
        patch_size: Resize the patch embedding.
        in_channels: Adapt the first filters: summed for gray, repeated and scaled for more.
        heads: Attention heads, for bare weights of a shape that nobody published.
        device: Where to put the model; `auto` takes a GPU where there is one.
        verify: Compare a sealed file's tensors with their checksums.
        runtime: What computes its answers: torch, onnxruntime or openvino (proven against torch first); auto:
            the fastest that is installed, by measurement.
        precision: float32, bf16 or int8 (not by torch); auto: bf16 where the hardware has it and is faster.
    """
    place = parallel.choose_device(str(device))
    weights, origin = _read(source, heads=heads, image_size=image_size, verify=verify)
    model = build(weights).float()
    if heads is not None and heads != (known := getattr(weights.config, "heads", 0)):
        raise ModelError(f"heads {heads} is not what {source} has: {known or 'a CNN has none'}; leave it out")
    names = weights.labels or assumed_names(weights, origin)
    changes, outdated = list(weights.notes), set[str]()
    if isinstance(labels, str):
        raise ModelError(f"labels {labels!r} is one text: give a list of names")
    if labels is not None:
        num_classes = len(labels) if num_classes is None else num_classes
        if num_classes != len(labels):
            raise ModelError(f"{len(labels)} labels for {num_classes} classes: give one name per class")
    wanted = list(labels) if labels is not None else None
    if num_classes is not None and (num_classes != model.config.num_classes or wanted not in (None, names)):
        changes += adapt.set_classes(model, num_classes, names, wanted)
        names = wanted or [str(row) for row in range(num_classes)]
        outdated |= OF_A_HEAD
    resized = [] if in_channels is None else adapt.set_channels(model, in_channels)
    resized += adapt.set_sizes(model, image_size, patch_size)
    outdated |= OF_AN_INPUT if resized else set()
    changes += resized
    if dropped := sorted(outdated & weights.about.keys()):
        changes.append(f"left out: {', '.join(dropped)} of the model as it was")
    if parallel.is_main():
        _report(f"{source}: {origin} layout", changes)
    made = Classifier(
        model=model.to(place),
        preprocess=_transform(weights.preprocessing, model),
        labels=names,
        about={name: value for name, value in weights.about.items() if name not in outdated},
    )
    return equip(made, runtime, precision)


def _read(
    source: str | Path, *, heads: int | None, image_size: int | tuple[int, int] | None, verify: bool
) -> tuple[Weights, str]:
    if not isinstance(source, str | os.PathLike):
        raise CheckpointError(f"{source!r} is no CKPT: give a file, a folder, hf://owner/name, or tiny")
    text = os.fspath(source)
    path = containers.fetch(text) if text.startswith("hf://") else Path(text)
    if not path.exists() and (own := bundled(text)) is not None:
        path = own
    if not path.exists():
        raise CheckpointError(
            f"{path} does not exist: give a file, a folder, hf://owner/name, or tiny, which is bundled"
        )
    files.require_utf8(path)
    for name in ("", "best.safetensors", "model.safetensors"):
        if (path / name).is_file() and checkpoint.is_sealed(path / name):
            return checkpoint.read(path / name, verify=verify), "vitreous"
    try:
        origin, weights = layouts.read(path, {"heads": heads})
    except CheckpointError:
        if image_size is None:
            raise
        origin, weights = layouts.read(path, {"heads": heads, "image_size": image_size})
    return weights, origin


def bundled(name: str) -> Path | None:
    """Return the file of a model that comes with the package; None: there is none of this name."""
    path = BUNDLED / f"{name}.safetensors"
    return path if name.isidentifier() and path.is_file() else None


def assumed_names(weights: Weights, origin: str) -> list[str]:
    """Name the classes of a file that has none: ImageNet's where there are a thousand, else by number."""
    count = weights.config.num_classes
    if count == 1000 and origin != "vitreous":
        from torchvision.models._meta import _IMAGENET_CATEGORIES

        weights.notes.append("labels: ImageNet's 1,000 (the file has none)")
        return list(_IMAGENET_CATEGORIES)
    return [str(row) for row in range(count)]


def _transform(preprocessing: Preprocessing | None, model: Model) -> EvaluationTransform:
    config = model.config
    fitted = adapt.refit(preprocessing or Preprocessing(), config.image_size, config.in_channels)
    return EvaluationTransform(fitted, config.step)


def _report(what: str, notes: list[str]) -> None:
    """Print what was assumed, changed or left out, as a short table."""
    if notes:
        pairs = [note.partition(": ")[::2] for note in notes]
        width = max(len(name) for name, _ in pairs)
        console.note(what)
        for name, text in pairs:
            console.note(f"  {name:<{width}}  {text}")
