"""A classifier: a model with its preprocessing, class names and calibration, read from one place.

`load` takes any CKPT: a sealed file, a run folder, or weights of Google, timm, Hugging Face or torchvision.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous import checkpoint, console, layouts, parallel
from vitreous.config import Preprocessing
from vitreous.data.augment import EvaluationTransform, normalize
from vitreous.data.decode import decode
from vitreous.errors import CheckpointError, DataError, ModelError
from vitreous.layouts import containers
from vitreous.models import adapt
from vitreous.models.architecture import ViTConfig
from vitreous.models.weights import Model, Weights, build

Picture = str | Path | bytes | Image.Image | np.ndarray
BATCH = 32


@dataclass(frozen=True)
class Prediction:
    """What the classifier says of one picture: the likeliest label, and the runners-up."""

    label: str | None
    """None where the classifier abstains: its best probability is below the threshold."""
    probability: float
    top: list[tuple[str, float]]
    file: str | None = None
    labels: list[str] | None = None
    """Of a model with several labels a picture: all that reach their thresholds, the likeliest first."""

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


@dataclass
class Classifier:
    """A model, the preprocessing that it was trained with, and the names of its classes."""

    model: Model
    preprocess: EvaluationTransform
    labels: list[str]
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.model.parameters()).device

    def predict(self, pictures: Iterable[Picture] | Picture, *, top: int = 5) -> list[Prediction]:
        """Return a prediction for each picture: a path, encoded bytes, a Pillow image or a uint8 array."""
        if not self.labels:
            raise ModelError("this model has no classes: load it with num_classes and train its head")
        several = [pictures] if isinstance(pictures, Picture) else list(pictures)
        found: list[Prediction] = []
        for start in range(0, len(several), BATCH):
            some = several[start : start + BATCH]
            probabilities = self.probabilities(torch.stack([self.read(picture) for picture in some]))
            files = [str(picture) if isinstance(picture, str | Path) else None for picture in some]
            found += self.name(probabilities, files, top=top)
        return found

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
    def multilabel(self) -> bool:
        """Whether a picture may have several labels: each is then a yes or no of its own."""
        return self.about.get("multilabel") is True

    @property
    def thresholds(self) -> list[float]:
        """The probability from which each label is given, of a model with several labels a picture."""
        value = self.about.get("thresholds") or [0.5] * len(self.labels)
        if not isinstance(value, list) or len(value) != len(self.labels) or not all(map(_number, value)):
            raise CheckpointError("the thresholds are not one number a label: calibrate again")
        return value

    @torch.inference_mode()
    def probabilities(self, images: torch.Tensor) -> torch.Tensor:
        """Return calibrated class probabilities (B, K) of preprocessed images (B, C, H, W), on the CPU."""
        logits = self.model(images.to(self.device)).float() / self.temperature
        return (logits.sigmoid() if self.multilabel else logits.softmax(-1)).cpu()

    def probabilities_of(self, pixels: np.ndarray) -> torch.Tensor:
        """Return the same of uint8 pixels (B, H, W, C) as `preprocess.pixels` gives them."""
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(self.device)
        return self.probabilities(normalize(images, self.preprocess.preprocessing))

    def decide(self, row: Sequence[float], best: int) -> tuple[str | None, list[str] | None]:
        """Return the label of an image with these probabilities, if one is given; and all, if it may be
        several."""
        if not self.multilabel:
            return (self.labels[best] if row[best] >= self.abstain else None), None
        limits = self.thresholds
        given = [each for each in range(len(row)) if row[each] >= max(limits[each], self.abstain)]
        several = [self.labels[each] for each in sorted(given, key=row.__getitem__, reverse=True)]
        return (several[0] if several else None), several

    def read(self, picture: Picture) -> torch.Tensor:
        """Decode and preprocess one picture: (C, H, W)."""
        if isinstance(picture, str | Path | bytes):
            picture = decode(picture, self.preprocess.preprocessing.channels)
        if not isinstance(picture, Image.Image | np.ndarray):
            raise DataError(
                f"a {type(picture).__name__} is no picture: give a path, bytes, Pillow image or array"
            )
        return self.preprocess(picture)

    def save(self, path: str | Path, layout: str = "vitreous") -> Path:
        """Write the classifier: `vitreous` (one sealed file), `timm`, `hf`, `google` or `torchvision`."""
        path = Path(path)
        if layout != "vitreous":
            return layouts.write(self.weights(), path, layout)
        path = path if path.suffix == ".safetensors" else path / "model.safetensors"
        checkpoint.write(self.weights(), path)
        return path

    def weights(self) -> Weights:
        """Return the classifier at rest."""
        return Weights(
            config=self.model.config,
            tensors=dict(self.model.state_dict()),
            preprocessing=self.preprocess.preprocessing,
            labels=self.labels or None,
            about=self.about,
        )

    def name(
        self, probabilities: torch.Tensor, files: Sequence[str | None], *, top: int = 5
    ) -> list[Prediction]:
        """Turn probabilities (B, K) into predictions: the best classes by name, or an abstention."""
        best = probabilities.topk(min(top, len(self.labels))).indices.tolist()
        found = []
        for file, order, row in zip(files, best, probabilities.tolist(), strict=True):
            label, several = self.decide(row, order[0])
            ranked = [(self.labels[each], row[each]) for each in order]
            found.append(Prediction(label, row[order[0]], ranked, file, several))
        return found


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
) -> Classifier:
    """Load a classifier from any CKPT, and fit it to another task where asked.

    Args:
        source: A file, a folder or `hf://owner/name[@revision]`; the layout is recognised from the weights.
        num_classes: Give it a fresh, zero head of so many classes.
        labels: Names of the classes; rows of the head whose names the source knows too are kept.
        image_size: Resample the position embeddings in 2D to images of this height and width.
        patch_size: Resize the patch embedding.
        in_channels: Adapt the first filters: summed for gray, repeated and scaled for more.
        heads: Attention heads, for bare weights of a shape that nobody published.
        device: Where to put the model; `auto` takes a GPU where there is one.
        verify: Compare a sealed file's tensors with their checksums.
    """
    place = parallel.choose_device(str(device))
    weights, origin = _read(source, heads=heads, image_size=image_size, verify=verify)
    model = build(weights).float()
    names = weights.labels or _names(weights, origin)
    said = list(weights.notes)
    if labels is not None:
        num_classes = len(labels) if num_classes is None else num_classes
        if num_classes != len(labels):
            raise ModelError(f"{len(labels)} labels for {num_classes} classes: give one name a class")
    wanted = list(labels) if labels is not None else None
    if num_classes is not None and (num_classes != model.config.num_classes or wanted not in (None, names)):
        said += adapt.set_classes(model, num_classes, names, wanted)
        names = wanted or [str(row) for row in range(num_classes)]
    if in_channels is not None:
        said += adapt.set_channels(model, in_channels)
    if image_size == model.config.image_size:
        image_size = None
    said += adapt.set_sizes(model, image_size, patch_size)
    _say(f"{source}: {origin} layout", said)
    return Classifier(
        model=model.to(place),
        preprocess=_transform(weights.preprocessing, model),
        labels=names,
        about=weights.about,
    )


def _read(
    source: str | Path, *, heads: int | None, image_size: int | tuple[int, int] | None, verify: bool
) -> tuple[Weights, str]:
    text = str(source)
    path = containers.fetch(text) if text.startswith("hf://") else Path(source)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist: give a file, a folder or hf://owner/name")
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


def _names(weights: Weights, origin: str) -> list[str]:
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
    return EvaluationTransform(fitted, config.step if isinstance(config, ViTConfig) else (32, 32))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _say(what: str, notes: list[str]) -> None:
    """Print what was assumed, changed or left out, as a short table."""
    if notes:
        pairs = [note.partition(": ")[::2] for note in notes]
        width = max(len(name) for name, _ in pairs)
        console.note(what)
        for name, text in pairs:
            console.note(f"  {name:<{width}}  {text}")
