"""What a classifier answered to each image: five numbers per image, from which all its figures are made.

Logits of a large set with many classes don't fit into memory; these do, and ranks can exchange them.
Letters: N images, B batch, K classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous import parallel
from vitreous.data import Batch
from vitreous.errors import DataError


@dataclass(frozen=True)
class Answers:
    """One row per image that has one label, in the order of the split."""

    indices: np.ndarray  # (N,) the images' numbers in the split
    targets: np.ndarray  # (N,) the classes that are right
    guesses: np.ndarray  # (N,) the classes with the highest probability
    probabilities: np.ndarray  # (N,) float64, of the guesses
    losses: np.ndarray  # (N,) float64, −log of the right class's probability
    ranks: np.ndarray  # (N,) how many classes are likelier than the right one
    classes: int

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def right(self) -> np.ndarray:
        """Whether each image was classified rightly, (N,) bool."""
        return self.ranks == 0


def from_logits(logits: Tensor, targets: Tensor, indices: Tensor) -> Answers:  # (B, K), (B,), (B,)
    """Return the answers that these logits give."""
    if logits.device.type == "mps":
        logits, targets = logits.cpu(), targets.cpu()  # it has no double precision
    logs = logits.double().log_softmax(dim=1)
    best = logs.argmax(dim=1, keepdim=True)
    columns = (
        indices,
        targets,
        best[:, 0],
        logs.gather(1, best)[:, 0].exp(),
        -logs.gather(1, targets[:, None])[:, 0],
        rank_of_label(logits, targets),
    )
    return Answers(*(column.cpu().numpy() for column in columns), classes=logits.shape[1])


def rank_of_label(logits: Tensor, targets: Tensor) -> Tensor:  # (B, K), (B,) or (B, K) → (B,)
    """Return how many classes rank above an image's best right one; 0: it is right.

    Of equal scores the first class ranks higher, as in argmax. An image without labels has no right answer,
    nor has one whose scores are not numbers.
    """
    classes = torch.arange(logits.shape[1], device=logits.device)
    if targets.ndim == 1:
        targets = targets[:, None] == classes
    right = targets > 0
    best, place = logits.masked_fill(~right, float("-inf")).max(dim=1, keepdim=True)
    below = (logits < best) | ((logits == best) & (classes >= place))
    above = ~below  # also what is not a number, of which every comparison is false
    return torch.where(right.any(dim=1), above.sum(dim=1), logits.shape[1])


def collect(
    batches: Iterable[tuple[Batch, Tensor]], world: parallel.World | None = None
) -> Answers:  # batches with their logits
    """Return the answers to all batches, of all ranks, sorted by the images' numbers."""
    own = [from_logits(logits, batch.targets, batch.indices) for batch, logits in batches]
    parts = own if world is None else [part for rank in parallel.gather(own, world) for part in rank]
    if not sum(map(len, parts)):
        raise DataError("none of the images could be read: see `vitreous check`")
    names = ("indices", "targets", "guesses", "probabilities", "losses", "ranks")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    order = np.argsort(columns["indices"], kind="stable")
    return Answers(**{name: column[order] for name, column in columns.items()}, classes=parts[0].classes)
