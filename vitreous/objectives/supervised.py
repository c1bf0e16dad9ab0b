"""Learning from labels: softmax cross entropy, or a sigmoid for each class; never how images are varied.

Letters: B batch, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config import Balance, Loss, Preprocessing
from vitreous.data import Batch, Dataset, Loader, class_weights
from vitreous.errors import OptionError
from vitreous.evals import accuracy, answers, multilabel
from vitreous.evals.answers import Answers
from vitreous.evals.multilabel import Scores
from vitreous.evals.outputs import Inference
from vitreous.models.vit import VisionTransformer
from vitreous.models.weights import Model
from vitreous.objectives import Evaluation, Objective, listed, patches
from vitreous.objectives.painting import Painter


class Settings(Protocol):
    """What this task needs of a plan."""

    @property
    def loss(self) -> Loss: ...
    @property
    def label_smoothing(self) -> float: ...
    @property
    def balance(self) -> Balance: ...
    @property
    def binary_targets(self) -> bool: ...
    @property
    def reconstruct(self) -> float: ...


def build(model: Model, plan: Settings, dataset: Dataset) -> "Supervised":
    """Return the task of `vitreous train` and `vitreous finetune`."""
    split = dataset.splits["train"]
    weights = class_weights(split.targets, split.classes).tolist() if plan.balance == "loss" else None
    return Supervised(
        model,
        loss=plan.loss,
        label_smoothing=plan.label_smoothing,
        class_weights=weights,
        positive_above=0.0 if plan.binary_targets else None,
        labels=dataset.labels,
        multilabel=dataset.multilabel,
        reconstruct=plan.reconstruct,
    )


@dataclass(frozen=True)
class Classified:
    """An evaluation of a classifier: the figures that a run follows, and on request all the others."""

    answers: Answers | Scores
    labels: Sequence[str]

    @property
    def figures(self) -> dict[str, float]:
        """Loss, accuracy, top5, count; mean per-class accuracy, or mean average precision."""
        if isinstance(self.answers, Scores):
            return multilabel.headline(self.answers)
        return accuracy.headline(self.answers)

    def document(self) -> dict[str, Any]:
        """Return what `vitreous evaluate` measures."""
        if isinstance(self.answers, Scores):
            return multilabel.document(self.answers, self.labels)
        return accuracy.document(self.answers, self.labels)


class Supervised(Objective):
    """Tell the class, or with `sigmoid` the classes, of an image.

    `softmax`: one label per image, or a distribution over labels (Mixup, CutMix). `sigmoid`: a yes or no for
    each class, summed over classes; for images with several labels, and the alternative that the paper took
    for pre-training and DeiT III (arXiv 2204.07118) for ImageNet. `positive_above` 0.0 is DeiT III's reading
    of mixed labels: every class that is mixed in counts as fully there.
    """

    def __init__(
        self,
        model: Model,
        *,
        loss: Loss = "softmax",
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        positive_above: float | None = None,
        labels: Sequence[str] = (),
        multilabel: bool = False,
        reconstruct: float = 0.0,
    ) -> None:
        """`reconstruct`: the weight of painting the patches that the model is trained without; 0: none."""
        super().__init__()
        if positive_above is not None and loss != "sigmoid":
            raise OptionError("binary targets are for --loss sigmoid: softmax needs shares that add up to 1")
        if loss not in ("softmax", "sigmoid"):
            raise OptionError(f"unknown loss {loss!r}: expected softmax or sigmoid")
        if not 0.0 <= label_smoothing < 1.0:
            raise OptionError(
                f"label smoothing {label_smoothing} is out of range: give 0 up to, not including, 1"
            )
        self.model = model
        self.loss: Loss = loss
        self.label_smoothing = label_smoothing
        self.positive_above = positive_above
        self.labels, self.multilabel = list(labels), multilabel
        self.headline = "mean_average_precision" if multilabel else "accuracy"
        self.class_weights: Tensor | None
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.register_buffer("class_weights", weights, persistent=False)
        self.reconstruct, self.painter = reconstruct, None
        if reconstruct:
            self.painter = Painter(patches.require_plain(model.config))
            self.whole_passes = False

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if self.painter is None:
            logits, off = self.model(batch.images, batch.mask), None
        else:
            assert isinstance(self.model, VisionTransformer)
            logits, off = self.painter(self.model, batch)
        losses = self.losses(logits.float(), batch.targets)  # (B,)
        images = max(1, len(losses))  # a rank may have none of a small batch
        # With several labels this is not the accuracy of evaluations, which asks for all of them.
        name = "accuracy" if self.loss == "softmax" or batch.targets.ndim == 1 else "best_label_right"
        metrics = {name: correct(logits, batch.targets).sum() / images}
        if off is not None:
            metrics |= {
                "label_loss": losses.detach().sum() / images,
                "painting_loss": off.detach().sum() / images,
            }
            losses = losses + self.reconstruct * off
        return losses.sum() / images, metrics

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:  # (B, K), (B,) or (B, K) → (B,)
        """Return each image's loss; class weights multiply it, and the mean does not divide by them."""
        if self.loss == "softmax":
            return F.cross_entropy(
                logits, targets, self.class_weights, reduction="none", label_smoothing=self.label_smoothing
            )
        if targets.ndim == 1:
            targets = F.one_hot(targets, logits.shape[1]).to(logits.dtype)
        if self.positive_above is not None:
            targets = (targets > self.positive_above).to(logits.dtype)
        if self.label_smoothing:
            smooth = self.label_smoothing
            targets = targets * (1.0 - smooth) + smooth / logits.shape[1]
        losses = F.binary_cross_entropy_with_logits(logits, targets, self.class_weights, reduction="none")
        return losses.sum(dim=1)

    def evaluate(self, loader: Loader, inference: Inference) -> Evaluation:
        """Evaluate the model by plain cross entropy: without smoothing, weights or mixing."""
        self.model.eval()
        batches = inference.batches(loader, self.model)
        collect = multilabel.collect if self.multilabel else answers.collect
        return Classified(collect(batches, inference.world), self.labels)

    def score(self, figures: Mapping[str, float]) -> list[float]:
        """Return accuracy, or with several labels mean average precision; then the loss, lower is better."""
        return [figures[self.headline], -figures["loss"]]

    def sealed(self) -> dict[str, Any]:
        """Return that images may have several labels, if they may."""
        return {"multilabel": True} if self.multilabel else {}

    def card(self, dataset: Dataset, preprocessing: Preprocessing) -> tuple[str, str]:
        """Return which classes it tells apart, and what it can't do."""
        height, width = preprocessing.image_size
        channels = "1 channel" if preprocessing.channels == 1 else f"{preprocessing.channels} channels"
        answer = "scores each of them" if self.multilabel else "answers with one of them"
        return (
            f"An image classifier, which holds its preprocessing.\n"
            f"Input: {channels} of {height}x{width} pixels.\n"
            f"Its {len(self.labels):,} classes: {listed(self.labels)}.",
            f"It knows these classes only, and {answer} for any picture. How it does on images that differ\n"
            f"from its training images (other cameras, other light, other people) was not measured.",
        )


def correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Tell for each image if its best class is right: its label, the largest of a mix, or one of several."""
    best = logits.detach().argmax(dim=1)
    if targets.ndim == 1:
        return best == targets
    right = targets.gather(1, best[:, None])[:, 0]
    return (right > 0) & (right == targets.amax(dim=1))
