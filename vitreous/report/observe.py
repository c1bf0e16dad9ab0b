"""What can be found out about a classifier and some images, as arrays; nothing is drawn or written.

Only what is shown is kept: layers are streamed, and of images beyond the shown ones only means remain.
Letters: L layers, H heads, (h, w) grid.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitreous import inspection
from vitreous.data.augment import EvaluationTransform, normalize
from vitreous.errors import ModelError, nearest
from vitreous.inspection import distance, embeddings, faithfulness, gradients, relevance, study, tokens
from vitreous.models import adapt
from vitreous.models.architecture import ViTConfig
from vitreous.models.vit import VisionTransformer
from vitreous.models.zoo import get_config
from vitreous.predict import Classifier

SHOWN = 16
"""Images that are drawn; the means are over all."""
JUDGED = 4
"""Images whose maps are judged by deletion and insertion."""
TOKENS = 1024
"""Tokens of a batch: bounds the memory, whatever the image size."""
SAMPLES = 1024
"""Places, over all images, that CKA compares."""
CNN = "BiT-R50x1"


class Picked(NamedTuple):
    """An image to look at."""

    name: str
    image: Image.Image


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """How to look."""

    fusion: relevance.Fusion = "mean"
    discard: float = 0.0
    patch: relevance.Patch | None = None
    class_name: str | None = None
    own_aspect: bool = False


@dataclass
class Looked:
    """One image, and what the model makes of it."""

    name: str
    pixels: np.ndarray
    """What the model saw, uint8 (H, W, C)."""
    heads: np.ndarray | None
    """(L, H, h, w)"""
    top: list[tuple[str, float]] = field(default_factory=list)
    target: str | None = None
    """The class that the gradients are asked about."""
    maps: dict[str, np.ndarray] = field(default_factory=dict)
    artefacts: list[list[int]] = field(default_factory=list)
    """Rows and columns of patches that are far longer than the others."""


@dataclass
class Judged:
    """Deletion and insertion, means over images."""

    removed: np.ndarray
    curves: dict[str, tuple[np.ndarray, np.ndarray]]
    random: np.ndarray
    about: str
    images: int


@dataclass
class Findings:
    """What there is to show; any part may be absent."""

    model: nn.Module
    start: str = ""
    filters: embeddings.Filters | None = None
    positions: embeddings.Similarity | None = None
    looked: list[Looked] = field(default_factory=list)
    count: int = 0
    distance: np.ndarray | None = None
    entropy: np.ndarray | None = None
    norms: np.ndarray | None = None
    """(L, images x patches)"""
    prefix_norms: dict[str, np.ndarray] = field(default_factory=dict)
    similarity: np.ndarray | None = None
    cka: np.ndarray | None = None
    compared: np.ndarray | None = None
    judged: Judged | None = None
    cnn: tuple[np.ndarray, np.ndarray] | None = None
    notes: list[str] = field(default_factory=list)


def findings(
    classifier: Classifier,
    picked: Sequence[Picked],
    options: InspectOptions | None = None,
    other: Classifier | None = None,
) -> Findings:
    """Look at a classifier through some images, and beside another one where given."""
    options = options or InspectOptions()
    model = classifier.model
    found = Findings(
        model, filters=embeddings.filters(model), positions=embeddings.position_similarity(model)
    )
    target = _target(classifier, options)
    if not isinstance(model, VisionTransformer):
        found.notes.append("attention, rollout and positions: a CNN has none")
    else:
        found.start = relevance.describe_start(model, options.patch)
        if found.positions is None:
            found.notes.append("position similarity: this model has no positions")
        found.cnn = distance.cnn_line(model.config.image_size, get_config(CNN))  # type: ignore[arg-type]
    if not classifier.labels and picked:
        found.notes.append("Grad-CAM and gradient rollout: this model has no classes")
    if picked:
        _watch(found, classifier, picked, options, target, other)
    return found


def _watch(
    found: Findings,
    classifier: Classifier,
    picked: Sequence[Picked],
    options: InspectOptions,
    target: int | None,
    other: Classifier | None,
) -> None:
    cells = _cells(classifier, other)
    kept, watched = max(4, SAMPLES // (cells[0] * cells[1])), []
    ours: list[list[np.ndarray]] = []
    theirs: list[list[np.ndarray]] = []
    for batch in batches(classifier, picked, options.own_aspect):
        seen = study.watch(
            batch.model,
            batch.images,
            cells=cells,
            fusion=options.fusion,
            discard=options.discard,
            patch=options.patch,
        )
        if len(found.looked) < SHOWN:
            looked = [_look(classifier, *each) for each in zip(batch.names, batch.pixels, seen, strict=True)]
            if classifier.labels:
                _explain(batch, looked, seen, classifier.labels, target, options)
            if isinstance(batch.model, VisionTransformer):
                found.judged = _judge(batch, looked, classifier.labels, found.judged)
            found.looked += looked
        if len(ours) < kept:
            ours += [each.features for each in seen]
            if other is not None:
                theirs += _features(other, batch.originals, cells, options.own_aspect)
        for each in seen:
            each.features, each.heads = [], None  # what is shown was taken; of the rest, means remain
        watched += seen
    found.looked, found.count = found.looked[:SHOWN], len(watched)
    _average(found, watched)
    found.cka = inspection.cka(_stacked(ours[:kept])).numpy()
    if theirs:
        found.compared = inspection.cka(_stacked(ours[:kept]), _stacked(theirs[:kept])).numpy()


def _average(found: Findings, watched: list[study.Watched]) -> None:
    model = found.model
    if not isinstance(model, VisionTransformer):
        return
    prefix = model.config.prefix
    found.distance = np.mean([each.distance for each in watched if each.distance is not None], axis=0)
    found.entropy = np.mean([each.entropy for each in watched if each.entropy is not None], axis=0)
    found.similarity = np.mean([each.similarity for each in watched if each.similarity is not None], axis=0)
    norms = [each.norms for each in watched if each.norms is not None]
    found.norms = np.concatenate([each[:, prefix:] for each in norms], axis=1)
    names = ["class token"] * model.config.class_token + ["distillation token"] * model.config.distilled
    lengths = np.mean([each[:, :prefix] for each in norms], axis=0)
    for i, name in enumerate(names):
        found.prefix_norms[name] = lengths[:, i]
    if model.config.registers:
        found.prefix_norms["registers (mean)"] = lengths[:, len(names) :].mean(1)


@dataclass
class Batch:
    """Some images of one size, and the model for that size."""

    model: nn.Module
    names: list[str]
    originals: list[Image.Image]
    pixels: list[np.ndarray]
    images: Tensor


def batches(classifier: Classifier, picked: Sequence[Picked], own_aspect: bool) -> Iterator[Batch]:
    """Yield the images in their order, preprocessed, few enough at a time."""
    config = classifier.model.config
    own_aspect = own_aspect and isinstance(config, ViTConfig)

    def size(each: Picked) -> tuple[int, int]:
        if own_aspect and isinstance(config, ViTConfig):
            return study.own_aspect(config, *each.image.size)
        return config.image_size

    for image_size, group in groupby(picked, key=size):
        model, transform = classifier.model, classifier.preprocess
        if image_size != config.image_size:
            model, transform = study.at_size(model, image_size), _fitting(transform, image_size)  # type: ignore[assignment]
        several = list(group)
        most = max(1, TOKENS // config.tokens) if isinstance(config, ViTConfig) else 4
        for start in range(0, len(several), most):
            some = several[start : start + most]
            pixels = [transform.pixels(each.image) for each in some]
            arrays = [torch.from_numpy(each.copy()).permute(2, 0, 1) for each in pixels]
            images = normalize(torch.stack(arrays), transform.preprocessing).to(classifier.device)
            yield Batch(model, [each.name for each in some], [each.image for each in some], pixels, images)


def _fitting(transform: EvaluationTransform, image_size: tuple[int, int]) -> EvaluationTransform:
    """Return the transform for another size: the image's own aspect, so that next to nothing is cropped."""
    old = transform.preprocessing
    fitted = adapt.refit(replace(old, resize="cover", resize_size=None), image_size, old.channels)
    return EvaluationTransform(fitted, transform.patch_size)


def _look(classifier: Classifier, name: str, pixels: np.ndarray, seen: study.Watched) -> Looked:
    looked = Looked(name, pixels, seen.heads)
    if classifier.labels:
        scores = np.exp(seen.output - seen.output.max())
        scores /= scores.sum()
        order = np.argsort(-scores, kind="stable")[:5]
        looked.top = [(classifier.labels[i], float(scores[i])) for i in order]
    if seen.rollout is not None and seen.norms is not None and seen.artefacts is not None:
        looked.maps["rollout"] = seen.rollout
        looked.artefacts = np.argwhere(seen.artefacts).tolist()
    return looked


def _explain(
    batch: Batch,
    looked: list[Looked],
    seen: list[study.Watched],
    labels: list[str],
    target: int | None,
    options: InspectOptions,
) -> None:
    classes = torch.tensor([int(each.output.argmax()) if target is None else target for each in seen])
    explained = gradients.explain(batch.model, batch.images, classes, patch=options.patch)
    for i, each in enumerate(looked):
        each.target = labels[int(classes[i])]
        if explained.rollout is not None:
            each.maps["gradient rollout"] = explained.rollout[i].cpu().numpy()
        each.maps["Grad-CAM"] = explained.cam[i].cpu().numpy()


def _judge(batch: Batch, looked: list[Looked], labels: list[str], before: Judged | None) -> Judged:
    """Judge the maps of the first images by what the model says without the patches that they name."""
    done = before.images if before else 0
    some = looked[: max(0, JUDGED - done)]
    if before and not some:
        return before
    images = batch.images[: len(some)]
    classes = torch.tensor([labels.index(each.target) for each in some if each.target]) if labels else None
    names = list(some[0].maps)
    maps = [torch.from_numpy(np.stack([each.maps[name] for each in some])) for name in names]
    orders = [order for each in maps for order in (faithfulness.order_of(each), faithfulness.order_of(-each))]
    orders.append(faithfulness.random_order(batch.model, len(some)))
    means = [
        each.mean(0).cpu().numpy()
        for each in faithfulness.removal_curves(batch.model, images, orders, classes)
    ]
    now = Judged(
        faithfulness.removed_shares(batch.model).numpy(),
        {name: (means[2 * i], means[2 * i + 1]) for i, name in enumerate(names)},
        means[-1],
        faithfulness.meaning(classes),
        len(some),
    )
    return now if before is None else _together(before, now)


def _together(first: Judged, second: Judged) -> Judged:
    """Return the means over the images of both."""
    count = first.images + second.images
    ours, theirs = first.images / count, second.images / count
    return replace(
        first,
        curves={
            name: (
                ours * fall + theirs * second.curves[name][0],
                ours * stay + theirs * second.curves[name][1],
            )
            for name, (fall, stay) in first.curves.items()
        },
        random=ours * first.random + theirs * second.random,
        images=count,
    )


def _features(
    other: Classifier, originals: list[Image.Image], cells: tuple[int, int], own_aspect: bool
) -> list[list[np.ndarray]]:
    """Return another model's layers for the same images, each as it prepares them itself."""
    picked = [Picked("", image) for image in originals]
    found: list[list[np.ndarray]] = []
    for batch in batches(other, picked, own_aspect):
        layers = tokens.layer_features(batch.model, batch.images, cells)
        found += [[layer[i].float().cpu().numpy() for layer in layers] for i in range(len(batch.images))]
    return found


def _stacked(images: list[list[np.ndarray]]) -> list[Tensor]:
    """Return each layer's places of all images, (S, D)."""
    return [torch.from_numpy(np.concatenate(layer)) for layer in zip(*images, strict=True)]


def _cells(classifier: Classifier, other: Classifier | None) -> tuple[int, int]:
    """Return a grid that no layer of either model is coarser than, of 8 by 8 cells at most."""
    height = width = 8
    for each in (classifier, other):
        if each is None:
            continue
        config = each.model.config
        if isinstance(config, ViTConfig):
            grid = config.grid
        else:
            grid = (
                max(1, config.image_size[0] // config.stride),
                max(1, config.image_size[1] // config.stride),
            )
        height, width = min(height, grid[0]), min(width, grid[1])
    return (height, width) if height * width >= 4 else (2, 2)


def _target(classifier: Classifier, options: InspectOptions) -> int | None:
    if options.class_name is None:
        return None
    if not classifier.labels:
        raise ModelError("this model has no classes to choose from: leave out --class")
    if options.class_name in classifier.labels:
        return classifier.labels.index(options.class_name)
    raise ModelError(
        f"unknown class {options.class_name!r}{nearest(options.class_name, classifier.labels)}"
        f" (the model has {len(classifier.labels):,})"
    )
