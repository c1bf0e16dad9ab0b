"""A classifier: a model with its preprocessing, class names and calibration, read from one place.

Every probability that a user sees, wherever it is shown, comes from `Classifier.calibrated`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous import checkpoint, files, parallel
from vitreous.data.augment import EvaluationTransform, normalize
from vitreous.data.decode import decode
from vitreous.data.sources.arrays import levels
from vitreous.errors import CheckpointError, DataError, ModelError, OptionError
from vitreous.models.weights import Model, Weights, require_fit

if TYPE_CHECKING:
    from vitreous.predict.engines import Engine

Picture = str | Path | bytes | bytearray | Image.Image | np.ndarray | Tensor


class Prepared(NamedTuple):
    """One picture, scaled and cropped or padded to the model's size."""

    pixels: np.ndarray  # uint8 (H, W, C)
    mask: np.ndarray | None  # bool (N,), False for patches that are padding; None: nothing is padded


class Batch(NamedTuple):
    """What the model takes, on its device."""

    images: Tensor  # float32 (B, C, H, W), normalised
    mask: Tensor | None  # bool (B, N)


@dataclass(frozen=True)
class Prediction:
    """What the classifier says of one picture: the likeliest label, and the runners-up."""

    label: str | None
    """None where the classifier abstains: its best probability is below the threshold."""
    probability: float
    top: list[tuple[str, float]]
    file: str | None = None
    labels: list[str] | None = None
    """For a model with several labels per picture: all that reach their thresholds, the likeliest first."""

    @property
    def error(self) -> None:
        """None: the picture was read."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of `vitreous predict --json`."""
        top = [{"label": label, "probability": probability} for label, probability in self.top]
        several = {} if self.labels is None else {"labels": self.labels}
        return {
            "file": self.file,
            "label": self.label,
            "probability": self.probability,
            "top": top,
            **several,
        }


@dataclass(frozen=True)
class Failure:
    """A picture that could not be read, and why."""

    file: str | None
    error: str

    @property
    def label(self) -> None:
        """None: there is nothing to label."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in the JSON document of `vitreous predict --json`."""
        return {"file": self.file, "error": self.error}


@dataclass
class Classifier:
    """A model, the preprocessing that it was trained with, and the names of its classes."""

    model: Model
    preprocess: EvaluationTransform
    labels: list[str]
    about: dict[str, Any] = field(default_factory=dict)
    engine: "Engine | None" = None
    """What computes the answers; None: the model itself, in float32."""

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device) -> "Classifier":
        """Move the model, as torch's modules do; `auto` takes a GPU where there is one."""
        place = parallel.choose_device(str(device))
        if self.engine is not None and place != self.device:
            raise OptionError(
                f"this classifier computes with {self.engine.name} on {self.device}: load it for {place}"
            )
        self.model.to(place)
        return self

    def merging(self, merge: int) -> "Classifier":
        """Return a classifier with the same weights that merges `merge` patches in each block; 0: itself."""
        from vitreous.models.merge import merging

        return replace(self, model=merging(self.model, merge), engine=None) if merge else self

    def predict(
        self,
        pictures: "Iterable[Picture | BinaryIO] | Picture | BinaryIO",
        *,
        top: int = 5,
        batch_size: int | None = None,
        workers: int | None = None,
    ) -> list[Prediction | Failure]:
        """Return for each picture a prediction, or why it could not be read, in the order given.

        A picture is a path, encoded bytes, an open file, a Pillow image, an array (H, W) or (H, W, C), or a
        tensor (C, H, W); a folder, a pattern or a tensor (B, C, H, W) is several. Numbers of arrays and
        tensors are pixels: uint8, or floats from 0 to 1.
        """
        from vitreous.predict import inputs, stream  # they are built on classifiers

        items = inputs.items(pictures)
        return list(stream.predict_all(self, items, top=top, batch=batch_size, workers=workers))

    __call__ = predict

    @property
    def temperature(self) -> float:
        """What the logits are divided by, so that probabilities mean what they say; 1: not fitted."""
        calibration = self.about.get("calibration") or {}
        value = calibration.get("temperature", 1.0) if isinstance(calibration, dict) else calibration
        if not _number(value) or not value > 0:
            raise CheckpointError(
                f"calibration temperature {value!r} is not a positive number: calibrate again"
            )
        return float(value)

    @property
    def abstain(self) -> float:
        """The probability below which no label is given; 0 where none was set."""
        value = self.about.get("abstain") or 0.0
        if not _number(value) or not 0 <= value <= 1:
            raise CheckpointError(f"abstain threshold {value!r} is not a probability: use 0 to 1")
        return float(value)

    @property
    def seed(self) -> int:
        """The seed by which its training held images out, if the data had no splits of its own."""
        recipe = self.about.get("recipe")
        value = recipe.get("seed") if isinstance(recipe, dict) else None
        return value if type(value) is int and value >= 0 else 0

    @property
    def multilabel(self) -> bool:
        """Whether a picture may have several labels: each is then a yes or no of its own."""
        return self.about.get("multilabel") is True

    @property
    def thresholds(self) -> list[float]:
        """The probability from which each label is given, for a model with several labels per picture."""
        value = self.about.get("thresholds") or [0.5] * len(self.labels)
        if not isinstance(value, list) or len(value) != len(self.labels) or not all(map(_number, value)):
            raise CheckpointError("the thresholds are not one number per label: calibrate again")
        return value

    def prepare(self, picture: Picture) -> Prepared:
        """Decode one picture and fit it to the model's size."""
        if isinstance(picture, str | Path | bytes | bytearray):
            picture = bytes(picture) if isinstance(picture, bytearray) else picture
            picture = decode(picture, self.preprocess.preprocessing.channels)
        elif isinstance(picture, np.ndarray | Tensor):
            picture = pixels(picture)
        if 0 in (picture.size if isinstance(picture, Image.Image) else picture.shape):
            raise DataError("a picture without pixels: one of its sides is 0")
        return self.pad(self.preprocess.fitted(picture))

    def pad(self, fitted: np.ndarray) -> Prepared:
        """Pad pixels that were fitted to the model's size, if that is its rule, and tell which patches have
        any of them."""
        pads = self.preprocess.preprocessing.resize == "pad"
        mask = self.preprocess.mask(*fitted.shape[:2]) if pads else None
        return Prepared(self.preprocess.padded(fitted), mask)

    def collate(self, pictures: Sequence[Prepared]) -> Batch:
        """Put prepared pictures together, on the model's device, and normalise them there."""
        pixels = torch.from_numpy(np.stack([each.pixels for each in pictures])).to(self.device)
        images = normalize(pixels.permute(0, 3, 1, 2), self.preprocess.preprocessing)
        masks = [each.mask for each in pictures if each.mask is not None]
        return Batch(images, torch.from_numpy(np.stack(masks)).to(self.device) if masks else None)

    def calibrated(self, logits: Tensor) -> Tensor:
        """Return the probabilities of logits (…, K): of the classes, or of each label by itself."""
        scaled = logits.float() / self.temperature
        return scaled.sigmoid() if self.multilabel else scaled.softmax(-1)

    @torch.inference_mode()
    def probabilities(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return calibrated probabilities (B, K) of a batch, on the CPU; `mask` is False for padding."""
        mask = None if mask is None else mask.to(self.device)
        compute = self.model if self.engine is None else self.engine.logits
        found = self.calibrated(compute(images.to(self.device), mask)).cpu()
        if not found.isfinite().all():
            raise ModelError(
                "the model's answer is not a number: its weights hold inf or NaN, or overflow; load others"
            )
        return found

    def name(self, probabilities: Tensor, files: Sequence[str | None], *, top: int = 5) -> list[Prediction]:
        """Turn probabilities (B, K) into predictions: the best classes by name, or an abstention."""
        self._require_labels(probabilities.shape[1])
        best = probabilities.topk(min(top, len(self.labels))).indices.tolist()
        rows = zip(probabilities.tolist(), best, files, strict=True)
        return [self.prediction(row, order, file) for row, order, file in rows]

    def prediction(self, row: Sequence[float], order: Sequence[int], file: str | None) -> Prediction:
        """Return what these probabilities (K,) mean, given the best classes in their order."""
        ranked = [(self.labels[each], row[each]) for each in order]
        best = order[0]
        if not self.multilabel:
            label = self.labels[best] if row[best] >= self.abstain else None
            return Prediction(label, row[best], ranked, file)
        given = [each for each, limit in enumerate(self.limits) if row[each] >= limit]
        given.sort(key=row.__getitem__, reverse=True)
        several = [self.labels[each] for each in given]
        first = given[0] if given else best
        return Prediction(several[0] if several else None, row[first], ranked, file, several)

    @property
    def limits(self) -> list[float]:
        """The probability from which each label is given: its threshold, and no less than `abstain`."""
        return [max(each, self.abstain) for each in self.thresholds]

    def save(self, path: str | Path, layout: str = "vitreous") -> Path:
        """Write the classifier: `vitreous` (one sealed file), `timm`, `hf`, `google` or `torchvision`.

        What such a layout has no place for is said in a warning: padding, class names, a temperature.
        """
        path = Path(path)
        files.require_utf8(path)
        if layout != "vitreous":
            from vitreous.predict import losses

            written, lost = losses.write(self.weights(), path, layout)
            losses.warn(layout, lost)
            return written
        path = path if path.suffix == ".safetensors" else path / "model.safetensors"
        checkpoint.write(self.weights(), path)
        return path

    def push_to_hub(
        self,
        repository: str,
        *,
        layout: str = "vitreous",
        private: bool = False,
        token: str | None = None,
        card: str | None = None,
    ) -> str:
        """Upload the classifier and a model card to `owner/name` on the Hugging Face hub; return its address.

        `layout` is `vitreous`, `timm` or `hf`; `card`: Markdown in place of the one that is written.
        """
        from vitreous.predict import hub

        return hub.push(self, repository, layout=layout, private=private, token=token, card=card)

    def _require_labels(self, classes: int) -> None:
        if self.labels and len(self.labels) != classes:
            raise ModelError(
                f"the model has {classes} classes and the classifier {len(self.labels)} labels: "
                f"set classifier.labels to {classes} names"
            )

    def weights(self) -> Weights:
        """Return the classifier at rest; a head that was swapped by hand is taken as it is, if it fits."""
        tensors, config = dict(self.model.state_dict()), self.model.config
        head = tensors.get(f"{config.classifiers[0]}.weight")
        if head is not None and head.ndim > 1 and len(head) != config.num_classes:
            config = replace(config, num_classes=len(head))
        require_fit(config, tensors)
        self._require_labels(config.num_classes)
        return Weights(
            config=config,
            tensors=tensors,
            preprocessing=self.preprocess.preprocessing,
            labels=self.labels or None,
            about=self.about,
        )


def pixels(numbers: np.ndarray | Tensor) -> np.ndarray:
    """Return the uint8 pixels (H, W) or (H, W, C) of an array, or of a tensor (C, H, W).

    Floats are taken as torchvision's `to_tensor` gives them, from 0 to 1. What is already normalised is
    refused: taken for pixels, it would silently give another answer.
    """
    if isinstance(numbers, Tensor):
        if numbers.ndim not in (2, 3):
            raise DataError(f"a tensor of shape {tuple(numbers.shape)} is no picture: give (C, H, W)")
        numbers = numbers.detach().cpu()
        numbers = numbers.float() if numbers.dtype == torch.bfloat16 else numbers
        numbers = (numbers.permute(1, 2, 0) if numbers.ndim == 3 else numbers).numpy()
    try:
        return levels(numbers, "image")
    except DataError as error:
        raise DataError(f"{error}; what is normalised goes to Classifier.probabilities") from None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
