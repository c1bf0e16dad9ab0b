"""Learning from a teacher: from its answers (DeiT, arXiv 2012.12877; a patient teacher, arXiv 2106.05237), or
from its features, without labels.

Letters: B batch, K classes, N patches, (h, w) the student's grid, T the teacher's width.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import checkpoint
from vitreous.config import Preprocessing
from vitreous.data import Batch, Dataset
from vitreous.errors import CheckpointError, OptionError
from vitreous.models.vit import VisionTransformer
from vitreous.models.weights import Model
from vitreous.objectives import Objective, supervised
from vitreous.objectives.supervised import Supervised, correct
from vitreous.predict import Classifier, load

Distance = Literal["cosine", "smooth_l1"]


class Settings(supervised.Settings, Protocol):
    """What this task needs of a plan."""

    @property
    def preprocessing(self) -> Preprocessing: ...
    @property
    def settings(self) -> dict[str, Any]: ...


def build(model: Model, plan: Settings, dataset: Dataset) -> Objective:
    """Return the task of `vitreous distill`, with the teacher that the plan names."""
    given = plan.settings
    classifier = load(given["teacher"])
    if checkpoint.fingerprint(classifier.model.state_dict()) != given["teacher_checksum"]:
        raise CheckpointError(
            f"the teacher {given['teacher']} is not the one that the run began with: put that one back"
        )
    teacher = Teacher(classifier, plan.preprocessing)
    if given["match"] == "features":
        return Features(model, teacher, distance=given["distance"])
    return Answers(
        supervised.build(model, plan, dataset),
        teacher,
        columns=class_columns(classifier.labels, dataset.labels),
        hard=given["hard"],
        temperature=given["temperature"],
        share=given["share"],
    )


def class_columns(known: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return the place of each of the data's classes among the teacher's, by name."""
    places = {name: place for place, name in enumerate(known)}
    missing = [name for name in wanted if name not in places]
    if missing:
        raise OptionError(
            f"the teacher does not know {len(missing)} of the data's {len(wanted)} classes, such as "
            f"{missing[0]!r}: fine-tune it on them first, or use --match features"
        )
    return [places[name] for name in wanted]


class Teacher:
    """A frozen model that sees the student's images in its own size and normalisation.

    It is no module: nothing of it learns, is averaged or is saved with the student.
    """

    def __init__(self, classifier: Classifier, student: Preprocessing) -> None:
        """`student`: the preprocessing of the images that it will be shown."""
        self.model = classifier.model.eval().requires_grad_(False)
        own = classifier.preprocess.preprocessing
        if own.channels != student.channels:
            raise OptionError(
                f"the teacher sees {own.channels} channels and the student {student.channels}: "
                f"load a teacher with as many"
            )
        self.size, self.interpolation = own.image_size, own.interpolation
        # (x * std + mean - own mean) / own std as one product and one sum.
        mean, std, own_mean, own_std = (
            torch.tensor(values, dtype=torch.float64)[:, None, None]
            for values in (student.mean, student.std, own.mean, own.std)
        )
        self.scale, self.shift = (std / own_std).float(), ((mean - own_mean) / own_std).float()
        self.lowest, self.highest = (-own_mean / own_std).float(), ((1 - own_mean) / own_std).float()

    def see(self, images: Tensor) -> Tensor:
        """Return the student's images (B, C, H, W) as the teacher expects them."""
        if self.scale.device != images.device:
            self.model.to(images.device)
            for name in ("scale", "shift", "lowest", "highest"):
                setattr(self, name, getattr(self, name).to(images.device))
        seen = images * self.scale + self.shift
        if tuple(images.shape[2:]) == self.size:
            return seen
        mode = self.interpolation if self.interpolation in ("bilinear", "bicubic") else "bicubic"
        resized = F.interpolate(seen, size=self.size, mode=mode, antialias=True)
        return resized.clamp(self.lowest, self.highest)  # bicubic filters overshoot black and white

    def logits(self, images: Tensor) -> Tensor:
        """Return its answers (B, K), cut off from any gradient."""
        with torch.inference_mode():
            found = self.model(self.see(images))
        return found.clone()  # what is made in inference mode can't take part in a gradient

    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return one vector per image, pooled its own way (B, T), and its features by place (B, T, h, w)."""
        with torch.inference_mode():
            features = self.model.forward_features(self.see(images))
            pooled, maps = self.model.pool(features), self.model.feature_maps(features)
        return pooled.clone(), maps.clone()


class Answers(Supervised):
    """Learn the class from the labels, and from a teacher that sees the very same crop.

    A student with a distillation token learns labels by its class token and the teacher by the other;
    without one the same logits learn both.
    """

    def __init__(
        self,
        labels: Supervised,
        teacher: Teacher,
        *,
        columns: Sequence[int],
        hard: bool,
        temperature: float = 1.0,
        share: float = 0.5,
    ) -> None:
        """`share` is the teacher's part of the loss; `hard`: only its best class counts, not its scores."""
        super().__init__(
            labels.model,
            loss=labels.loss,
            label_smoothing=labels.label_smoothing,
            positive_above=labels.positive_above,
            labels=labels.labels,
        )
        self.class_weights = labels.class_weights
        self.teacher, self.hard, self.temperature, self.share = teacher, hard, temperature, share
        self.frozen = (teacher.model,)
        self.columns: Tensor
        self.register_buffer("columns", torch.tensor(columns), persistent=False)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        answers = self.teacher.logits(batch.images).float()[:, self.columns]
        own, matching = self._logits(batch.images)
        losses = self.share * self.teacher_losses(matching, answers)
        if self.share < 1.0:
            losses = losses + (1.0 - self.share) * self.losses(own, batch.targets)
        images = max(1, len(losses))
        both = (own + matching) / 2
        agree = (both.detach().argmax(1) == answers.argmax(1)).sum() / images
        metrics = {"accuracy": correct(both, batch.targets).sum() / images, "agreement": agree}
        return losses.sum() / images, metrics

    def _logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits that learn from the labels, and those that learn from the teacher; (B, K)."""
        if isinstance(self.model, VisionTransformer) and self.model.config.distilled:
            own, matching = self.model.forward_heads(self.model.forward_features(images))
            return own.float(), matching.float()
        logits = self.model(images).float()
        return logits, logits

    def teacher_losses(self, logits: Tensor, answers: Tensor) -> Tensor:  # (B, K), (B, K) → (B,)
        """Return each image's cross entropy with the teacher's class, or the divergence from its scores."""
        if self.hard:
            return F.cross_entropy(logits, answers.argmax(1), reduction="none")
        ours, theirs = (F.log_softmax(each / self.temperature, dim=1) for each in (logits, answers))
        return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(1) * self.temperature**2


class Features(Objective):
    """Reproduce the teacher's features, of the whole image and at every place; no labels take part.

    The two layers from the student's widths to the teacher's are thrown away with the task.
    """

    sealed_figures = ("count",)

    def __init__(self, model: Model, teacher: Teacher, *, distance: Distance = "cosine") -> None:
        super().__init__()
        if isinstance(model, VisionTransformer) and model.config.patch_drop:
            raise OptionError("--match features compares every patch: leave --patch-drop out")
        self.model, self.teacher, self.distance = model, teacher, distance
        self.frozen = (teacher.model,)
        widths = zip(_widths(model), _widths(teacher.model), strict=True)
        self.to_vector, self.to_places = (nn.Linear(ours, theirs) for ours, theirs in widths)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        vector, maps = self.teacher.features(batch.images)
        features = self.model.forward_features(batch.images)
        ours = self.model.feature_maps(features)
        theirs = F.interpolate(maps.float(), size=ours.shape[2:], mode="bilinear", antialias=True)
        image = self.apart(self.to_vector(self.model.pool(features)), vector)  # (B,)
        places = self.apart(self.to_places(ours.permute(0, 2, 3, 1)), theirs.permute(0, 2, 3, 1))
        images = max(1, len(image))
        parts = {"image": image.sum() / images, "places": places.flatten(1).mean(1).sum() / images}
        loss = (parts["image"] + parts["places"]) / 2
        return loss, {f"{name}_distance": value.detach() for name, value in parts.items()}

    def apart(self, ours: Tensor, theirs: Tensor) -> Tensor:  # (…, T), (…, T) → (…,)
        """Return the distance of vectors: 1 minus their cosine, or smooth L1 from the normalised target."""
        ours, theirs = ours.float(), theirs.float()
        if self.distance == "cosine":
            return 1.0 - F.cosine_similarity(ours, theirs, dim=-1)
        return F.smooth_l1_loss(ours, F.layer_norm(theirs, theirs.shape[-1:]), reduction="none").mean(-1)


def _widths(model: Model) -> tuple[int, int]:
    """Return the length of a model's pooled vector, and of its features at a place."""
    config = model.config
    with torch.no_grad():
        weight = next(model.parameters())
        image = torch.zeros(1, config.in_channels, *config.image_size, device=weight.device)
        features = model.eval().forward_features(image)
        return model.pool(features).shape[1], model.feature_maps(features).shape[1]
