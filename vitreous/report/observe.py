"""What can be found out about a classifier and some images, as arrays; nothing is drawn or written.

Only what is shown is kept: layers are streamed, and images beyond the shown ones only enter the means.
Letters: L layers, H heads, (h, w) grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vitreous import inspection
from vitreous.errors import ModelError, nearest
from vitreous.inspection import distance, embeddings, gradients, relevance, study, tokens
from vitreous.inspection.attention import unwrap
from vitreous.models.weights import Model
from vitreous.models.zoo import get_config
from vitreous.predict import Classifier, Prediction
from vitreous.report.batches import ImageBatch, NamedImage, batches
from vitreous.report.map_scores import MapScores, combine, score

SHOWN = 16
"""Images that are drawn; the means are over all."""
SCORED = 4
"""Images whose maps are scored by deletion and insertion."""
SAMPLES = 1024
"""Places, over all images, that CKA compares."""
CNN = "BiT-R50x1"


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """How to inspect."""

    fusion: relevance.Fusion = "mean"
    discard: float = 0.0
    patch: relevance.Patch | None = None
    class_name: str | None = None
    own_aspect: bool = False


@dataclass
class ImageFindings:
    """One image, and what the model makes of it."""

    name: str
    pixels: np.ndarray
    """What the model saw, uint8 (H, W, C)."""
    heads: np.ndarray | None
    """(L, H, h, w)"""
    prediction: Prediction | None = None
    """As `vitreous predict` gives it; None for a model without classes."""
    target: str | None = None
    """The class that the gradients explain."""
    maps: dict[str, np.ndarray] = field(default_factory=dict)
    artefacts: list[list[int]] = field(default_factory=list)
    """Rows and columns of patches that are far longer than the others."""


@dataclass
class Findings:
    """What there is to show; any part may be absent."""

    model: Model
    start: str = ""
    filters: embeddings.Filters | None = None
    positions: embeddings.Similarity | None = None
    positions_given: bool = False
    """Whether training began with the positions of a grid: they were not found."""
    images: list[ImageFindings] = field(default_factory=list)
    """Those that are shown."""
    count: int = 0
    """How many were used, shown or not."""
    distance: np.ndarray | None = None
    uniform_distance: float = 0.0
    """The distance of uniform attention."""
    entropy: np.ndarray | None = None
    norms: np.ndarray | None = None
    """(L, images x patches)"""
    prefix_norms: dict[str, np.ndarray] = field(default_factory=dict)
    similarity: np.ndarray | None = None
    cka: np.ndarray | None = None
    compared: np.ndarray | None = None
    map_scores: MapScores | None = None
    cnn: tuple[np.ndarray, np.ndarray] | None = None
    notes: list[str] = field(default_factory=list)


def findings(
    classifier: Classifier,
    images: Sequence[NamedImage],
    options: InspectOptions | None = None,
    other: Classifier | None = None,
) -> Findings:
    """Inspect a classifier with some images, and compare it with another one if given."""
    options = options or InspectOptions()
    model = classifier.model
    _require_numbers(model)
    recipe = classifier.about.get("recipe") or {}
    found = Findings(
        model,
        filters=embeddings.filters(model),
        positions=embeddings.position_similarity(model),
        positions_given=recipe.get("initialization") == "mimetic",
    )
    target = _target(classifier, options)
    if not model.config.has_attention:
        found.notes.append("attention, rollout and positions: a CNN has none")
    else:
        vit = unwrap(model)
        found.start = relevance.describe_start(vit, options.patch)
        found.uniform_distance = distance.uniform_distance(vit.config)
        if found.positions is None:
            found.notes.append("position similarity: this model has no positions")
        found.cnn = distance.cnn_line(model.config.image_size, get_config(CNN))  # type: ignore[arg-type]
    if not classifier.labels and images:
        found.notes.append("Grad-CAM and gradient rollout: this model has no classes")
    if images:
        _observe(found, classifier, images, options, target, other)
    return found


def _require_numbers(model: Model) -> None:
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise ModelError(f"the weights hold inf or NaN (the first in {name}): load others")


def _observe(
    found: Findings,
    classifier: Classifier,
    images: Sequence[NamedImage],
    options: InspectOptions,
    target: int | None,
    other: Classifier | None,
) -> None:
    cells = _cells(classifier, other)
    kept = max(4, SAMPLES // (cells[0] * cells[1]))
    all_observed: list[study.Observation] = []
    ours: list[list[np.ndarray]] = []
    theirs: list[list[np.ndarray]] = []
    for batch in batches(classifier, images, options.own_aspect):
        observed = study.observe(
            batch.classifier.model,
            batch.images,
            batch.mask,
            cells=cells,
            fusion=options.fusion,
            discard=options.discard,
            patch=options.patch,
        )
        if len(found.images) < SHOWN:
            found.images += _show(found, batch, observed, target, options)
        if len(ours) < kept:
            ours += [each.features for each in observed]
            if other is not None:
                theirs += _features(other, batch.sources, cells, options.own_aspect)
        for each in observed:
            each.features, each.heads = [], None  # what is shown was taken; only means remain
        all_observed += observed
    found.images, found.count = found.images[:SHOWN], len(all_observed)
    _average(found, all_observed)
    found.cka = inspection.cka(_stacked(ours[:kept])).numpy()
    if theirs:
        found.compared = inspection.cka(_stacked(ours[:kept]), _stacked(theirs[:kept])).numpy()


def _show(
    found: Findings,
    batch: ImageBatch,
    observed: list[study.Observation],
    target: int | None,
    options: InspectOptions,
) -> list[ImageFindings]:
    """Return what is shown of each image of a batch, and score the maps of the first ones."""
    classifier = batch.classifier
    shown = [
        ImageFindings(source.name, pixels, each.heads)
        for source, pixels, each in zip(batch.sources, batch.pixels, observed, strict=True)
    ]
    for image, each in zip(shown, observed, strict=True):
        if each.rollout is not None and each.artefacts is not None:
            image.maps["rollout"] = each.rollout
            image.artefacts = np.argwhere(each.artefacts).tolist()
    classes = None
    if classifier.labels:
        logits = torch.from_numpy(np.stack([each.output for each in observed]))
        predictions = classifier.name(classifier.calibrated(logits), [each.name for each in shown])
        classes = [int(each.output.argmax()) if target is None else target for each in observed]
        for image, prediction, number in zip(shown, predictions, classes, strict=True):
            image.prediction, image.target = prediction, classifier.labels[number]
        _explain(batch, shown, classes, options)
    done = found.map_scores.images if found.map_scores else 0
    if done < SCORED and classifier.model.config.has_attention:
        some = [image.maps for image in shown[: SCORED - done]]
        scores = score(batch, some, None if classes is None else classes[: len(some)])
        found.map_scores = scores if found.map_scores is None else combine(found.map_scores, scores)
    return shown


def _explain(
    batch: ImageBatch, shown: list[ImageFindings], classes: list[int], options: InspectOptions
) -> None:
    """Add the maps of the chosen class to each image."""
    explained = gradients.explain(
        batch.classifier.model, batch.images, torch.tensor(classes), batch.mask, patch=options.patch
    )
    for i, each in enumerate(shown):
        if explained.rollout is not None:
            each.maps["gradient rollout"] = explained.rollout[i].cpu().numpy()
        each.maps["Grad-CAM"] = explained.cam[i].cpu().numpy()


def _average(found: Findings, observed: list[study.Observation]) -> None:
    if not found.model.config.has_attention:
        return
    config = unwrap(found.model).config
    prefix = config.prefix
    found.distance = np.mean([each.distance for each in observed if each.distance is not None], axis=0)
    found.entropy = np.mean([each.entropy for each in observed if each.entropy is not None], axis=0)
    found.similarity = np.mean([each.similarity for each in observed if each.similarity is not None], axis=0)
    norms = [each.norms for each in observed if each.norms is not None]
    found.norms = np.concatenate([each[:, prefix:] for each in norms], axis=1)
    names = ["class token"] * config.class_token + ["distillation token"] * config.distilled
    lengths = np.mean([each[:, :prefix] for each in norms], axis=0)
    for i, name in enumerate(names):
        found.prefix_norms[name] = lengths[:, i]
    if config.registers:
        found.prefix_norms["registers (mean)"] = lengths[:, len(names) :].mean(1)


def _features(
    other: Classifier, sources: Sequence[NamedImage], cells: tuple[int, int], own_aspect: bool
) -> list[list[np.ndarray]]:
    """Return another model's layers for the same images, each as it prepares them itself."""
    found: list[list[np.ndarray]] = []
    for batch in batches(other, sources, own_aspect):
        layers = tokens.layer_features(batch.classifier.model, batch.images, cells, batch.mask)
        found += [[layer[i].float().cpu().numpy() for layer in layers] for i in range(len(batch.images))]
    return found


def _stacked(images: list[list[np.ndarray]]) -> list[Tensor]:
    """Return each layer's places of all images, (S, D)."""
    return [torch.from_numpy(np.concatenate(layer)) for layer in zip(*images, strict=True)]


def _cells(classifier: Classifier, other: Classifier | None) -> tuple[int, int]:
    """Return a grid at most as fine as either model's, of 8 by 8 cells at most."""
    grids = [(8, 8), *(each.model.config.grid for each in (classifier, other) if each is not None)]
    height, width = (min(sides) for sides in zip(*grids, strict=True))
    return (height, width) if height * width >= 4 else (2, 2)


def _target(classifier: Classifier, options: InspectOptions) -> int | None:
    if options.class_name is None:
        return None
    if not classifier.labels:
        raise ModelError("this model has no classes to choose from: leave out --class")
    if options.class_name in classifier.labels:
        return classifier.labels.index(options.class_name)
    count = len(classifier.labels)
    known = ", ".join(classifier.labels) if count <= 20 else f"{count:,} classes: see the model card"
    raise ModelError(
        f"unknown class {options.class_name!r}{nearest(options.class_name, classifier.labels)}"
        f" (the model knows {known})"
    )
