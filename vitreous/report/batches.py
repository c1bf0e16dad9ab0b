"""Images in small batches, prepared as the classifier prepares them, or at each image's own aspect."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.data.augment import EvaluationTransform
from vitreous.inspection import study
from vitreous.models import adapt
from vitreous.predict import Classifier

TOKENS = 1024
"""Tokens of a batch at most: bounds the memory, whatever the image size."""
WITHOUT_TOKENS = 4
"""Images of a batch of a model that has no tokens."""


class NamedImage(NamedTuple):
    """A decoded image, and the name of its file."""

    name: str
    image: Image.Image


@dataclass(frozen=True)
class ImageBatch:
    """Some images of one size, and the classifier for that size."""

    classifier: Classifier
    sources: list[NamedImage]
    pixels: list[np.ndarray]
    """What the model sees of each, uint8 (H, W, C)."""
    images: Tensor
    mask: Tensor | None


def batches(classifier: Classifier, images: Sequence[NamedImage], own_aspect: bool) -> Iterator[ImageBatch]:
    """Yield the images in their order, prepared, in batches of bounded size."""
    config = classifier.model.config
    own_aspect = own_aspect and config.has_attention

    def size(each: NamedImage) -> tuple[int, int]:
        return study.own_aspect(config, *each.image.size) if own_aspect else config.image_size

    most = max(1, TOKENS // config.tokens) if config.tokens else WITHOUT_TOKENS
    for image_size, group in groupby(images, key=size):
        fitted = classifier if image_size == config.image_size else _at_size(classifier, image_size)
        several = list(group)
        for start in range(0, len(several), most):
            sources = several[start : start + most]
            prepared = [fitted.prepare(each.image) for each in sources]
            pixels = [each.pixels for each in prepared]
            yield ImageBatch(fitted, sources, pixels, *fitted.collate(prepared))


def _at_size(classifier: Classifier, image_size: tuple[int, int]) -> Classifier:
    """Return the classifier for an image size of that aspect, so that next to nothing is cropped."""
    old = classifier.preprocess.preprocessing
    preprocessing = adapt.refit(replace(old, resize="cover", resize_size=None), image_size, old.channels)
    transform = EvaluationTransform(preprocessing, classifier.model.config.step)
    return replace(classifier, model=study.at_size(classifier.model, image_size), preprocess=transform)
