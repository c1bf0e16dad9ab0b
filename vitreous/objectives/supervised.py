"""Learning from labels: softmax cross entropy, or a sigmoid for each class; nothing of how images are varied.

Letters: B batch, K classes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import Loss
from vitreous.data import Batch
from vitreous.errors import OptionError
from vitreous.objectives import Objective


class Supervised(Objective):
    """Tell the class, or with `sigmoid` the classes, of an image.

    `softmax`: one label an image, or a distribution over labels (Mixup, CutMix). `sigmoid`: a yes or no for
    each class, summed over classes; for images with several labels, and the alternative that the paper took
    for pre-training and DeiT III (arXiv 2204.07118) for ImageNet. `positive_above` 0.0 is DeiT III's reading
    of mixed labels: every class that is mixed in is fully there.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Loss = "softmax",
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        positive_above: float | None = None,
    ) -> None:
        super().__init__()
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
        self.class_weights: Tensor | None
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = self.model(batch.images) if batch.mask is None else self.model(batch.images, batch.mask)
        losses = self.losses(logits.float(), batch.targets)  # (B,)
        images = max(1, len(losses))  # a rank may have none of a small batch
        # With several labels this is no accuracy as evaluations mean it, which asks for all of them.
        name = "accuracy" if self.loss == "softmax" or batch.targets.ndim == 1 else "best_label_right"
        return losses.sum() / images, {name: correct(logits, batch.targets).sum() / images}

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


def correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Tell for each image whether its highest score is right: its label, its largest, or one of several."""
    best = logits.detach().argmax(dim=1)
    if targets.ndim == 1:
        return best == targets
    right = targets.gather(1, best[:, None])[:, 0]
    return (right > 0) & (right == targets.amax(dim=1))
