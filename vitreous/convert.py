"""From one layout to another, with proof: the target's own library must give the same logits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from torch import Tensor

from vitreous import files, layouts
from vitreous.errors import LayoutError
from vitreous.layouts import timm as timm_layout
from vitreous.models.architecture import Architecture
from vitreous.models.weights import Model
from vitreous.predict import Classifier, load, losses

TOLERANCE = 1e-4

Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What was written, and how far its logits are from the source's on random images."""

    path: Path
    layout: str
    tensors: int
    largest_difference: float
    compared_with: str
    lost: list[str]
    """What the source has and the layout can't carry, in words."""


def convert(source: str, destination: Path, layout: str, **options: Any) -> Conversion:
    """Convert, reload with the target's library where it is installed, compare; keep the result if it agrees.

    `options` are `load`'s: another head, size, patch or number of channels on the way.
    """
    files.refuse_existing(destination)
    files.require_utf8(destination)
    classifier = load(source, **options)
    draft = destination.with_name(f".draft-{destination.name}")
    _remove(draft)
    try:
        with _random_head_if_zero(classifier.model):
            _write(classifier, draft, layout)
            name, difference = _compare(classifier.model, draft, layout)
        if not difference <= TOLERANCE:
            raise LayoutError(
                f"the converted model is {difference:.1e} away from its source (by {name}), more than "
                f"{TOLERANCE:.0e}: nothing was written to {destination}"
            )
        _remove(draft)
        lost = _write(classifier, draft, layout)
        draft.rename(destination)
        files.sync_folder(destination.parent)
    finally:
        _remove(draft)
    losses.warn(layout, lost)
    return Conversion(
        path=destination,
        layout=layout,
        tensors=len(classifier.model.state_dict()),
        largest_difference=difference,
        compared_with=name,
        lost=lost,
    )


def _write(classifier: Classifier, path: Path, layout: str) -> list[str]:
    """Write the classifier; return what it loses."""
    if layout == "vitreous":
        classifier.save(path)
        return []
    return losses.write(classifier.weights(), path, layout)[1]


def _compare(model: Model, path: Path, layout: str) -> tuple[str, float]:
    """Return the library that was compared, and its largest difference from our logits on random images."""
    name, forward = _reload(path, layout, model.config)
    images = _images(model.config)
    with torch.inference_mode():
        return name, (model(images) - forward(images)).abs().max().item()


@contextmanager
def _random_head_if_zero(model: Model) -> Iterator[None]:
    """Fill a head of zeros for the comparison: zero logits agree with anything, and would prove nothing."""
    parameters = [each for name, each in model.named_parameters() if name.startswith("head")]
    fresh = bool(parameters) and not any(each.any() for each in parameters)
    with torch.no_grad():
        for each in parameters if fresh else []:
            each.normal_(std=each[0].numel() ** -0.5, generator=torch.Generator().manual_seed(0))
        yield
        for each in parameters if fresh else []:
            each.zero_()


def _reload(path: Path, layout: str, config: Architecture) -> tuple[str, Forward]:
    owners = {"timm": _with_timm, "hf": _with_transformers, "torchvision": _with_torchvision}
    if layout in owners:
        try:
            return owners[layout](path, config)
        except ImportError:
            pass  # not installed: our own reader is the next best proof
    return "vitreous", load(path, heads=config.heads).model


def _with_timm(path: Path, config: Architecture) -> tuple[str, Forward]:
    import timm

    if path.is_dir():
        model = timm.create_model(f"local-dir:{path}", pretrained=True)
    else:
        name, arguments = timm_layout.architecture(config)
        model = timm.create_model(name, **{"num_classes": config.num_classes, **arguments})
        model.load_state_dict(layouts.containers.read(path).tensors, strict=True)
    return f"timm {timm.__version__}", model.eval()


def _with_transformers(path: Path, config: Architecture) -> tuple[str, Forward]:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    kind = transformers.AutoModelForImageClassification if config.num_classes else transformers.AutoModel
    written = transformers.AutoConfig.from_pretrained(path).model_type
    pools = config.num_classes or getattr(config, "pre_logits", 0) or written not in ("vit", "deit")
    # Else these two add a dense layer of their own, and warn that it holds no weights.
    model = kind.from_pretrained(path, **{} if pools else {"add_pooling_layer": False}).eval()

    def forward(images: Tensor) -> Tensor:
        output = model(images)
        if config.num_classes:
            return output.logits
        if config.kind == "resnet" or config.pre_logits:
            return output.pooler_output.flatten(1)
        return output.last_hidden_state[:, 0]

    return f"transformers {transformers.__version__}", forward


def _with_torchvision(path: Path, config: Architecture) -> tuple[str, Forward]:
    import torchvision

    model = torchvision.models.VisionTransformer(**layouts.torchvision.arguments(config))
    model.load_state_dict(layouts.containers.read(path).tensors, strict=True)
    return f"torchvision {torchvision.__version__}", model.eval()


def _images(config: Architecture) -> Tensor:
    return torch.randn(2, *config.input_shape, generator=torch.Generator().manual_seed(0))


def _remove(path: Path) -> None:
    if path.is_dir():
        rmtree(path)
    else:
        path.unlink(missing_ok=True)
