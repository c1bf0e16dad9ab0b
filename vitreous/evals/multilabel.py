"""How good a model of several labels per image is: average precision, and the threshold of each label.

Letters: N images, K labels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit
from torch import Tensor

from vitreous import parallel
from vitreous.data import Batch
from vitreous.errors import DataError
from vitreous.evals import calibration, metrics


@dataclass(frozen=True)
class Scores:
    """The logits and labels of every image, in the order of the split."""

    indices: np.ndarray  # (N,)
    logits: np.ndarray  # (N, K)
    targets: np.ndarray  # (N, K) bool

    def __len__(self) -> int:
        return len(self.targets)

    def right(self, limits: Sequence[float] | None = None) -> np.ndarray:
        """Return whether each image was given all of its labels and no other, (N,) bool."""
        return ((expit(self.logits) >= _limits(limits, self.targets.shape[1])) == self.targets).all(1)


def collect(batches: Iterable[tuple[Batch, Tensor]], world: parallel.World | None = None) -> Scores:
    """Return the scores of all batches, of all ranks, sorted by the images' numbers."""
    own = [
        (batch.indices.numpy(), logits.cpu().numpy(), (batch.targets > 0).cpu().numpy())
        for batch, logits in batches
    ]
    parts = own if world is None else [part for rank in parallel.gather(own, world) for part in rank]
    if not sum(len(part[0]) for part in parts):
        raise DataError("none of the images could be read: see `vitreous check`")
    indices, logits, targets = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(indices, kind="stable")
    return Scores(indices[order], logits[order], targets[order])


def headline(scores: Scores, limits: Sequence[float] | None = None) -> dict[str, float]:
    """Return the figures that a run follows: loss, mAP, accuracy (all labels right), top5, count.

    The loss is the mean over images and labels of the binary cross entropy.
    """
    logits, targets = scores.logits, scores.targets
    top = [_any_in_top(row, truth, 5) for row, truth in zip(logits, targets, strict=True)]
    with np.errstate(invalid="ignore"):  # of scores that are not finite the loss is none either
        losses = np.logaddexp(0, logits) - targets * logits
    return {
        "loss": float(np.mean(losses)),
        "mean_average_precision": metrics.mean_average_precision(logits, targets),
        "accuracy": float(scores.right(limits).mean()),
        "top5": float(np.mean(top)),
        "count": float(len(targets)),
    }


def document(scores: Scores, labels: Sequence[str], limits: Sequence[float] | None = None) -> dict[str, Any]:
    """Return those figures, and precision, recall and F1 of each label at its threshold."""
    from sklearn.metrics import average_precision_score

    probabilities, targets = expit(scores.logits), scores.targets
    chosen = _limits(limits, len(labels))
    rows = []
    for k, label in enumerate(labels):
        truth, guess = targets[:, k], probabilities[:, k] >= chosen[k]
        right = int((truth & guess).sum())
        rows.append(
            {
                "label": label,
                "count": int(truth.sum()),
                "average_precision": float(average_precision_score(truth, scores.logits[:, k]))
                if truth.any()
                else None,
                "threshold": float(chosen[k]),
                "precision": right / max(int(guess.sum()), 1),
                "recall": right / max(int(truth.sum()), 1),
                "f1": 2 * right / max(int(truth.sum() + guess.sum()), 1),
            }
        )
    seen = [row for row in rows if row["count"]]
    return {
        **headline(scores, limits),
        "count": len(targets),
        "ece": calibration.expected_calibration_error(probabilities.ravel(), targets.ravel()),
        "f1": float(np.mean([row["f1"] for row in seen])) if seen else 0.0,
        "per_class": rows,
        "confusion": _confusion(targets, probabilities >= chosen).tolist(),
    }


def _confusion(targets: np.ndarray, guesses: np.ndarray) -> np.ndarray:  # (N, K) bool → (K, 2, 2)
    """Return for each label how many images lack it (row 0) or have it, and were given it (column 1)."""
    cells = [[(targets == truth) & (guesses == guess) for guess in (False, True)] for truth in (False, True)]
    return np.array(cells).sum(2).transpose(2, 0, 1)


def thresholds(logits: np.ndarray, targets: np.ndarray) -> list[float]:
    """Return for each label the threshold with the best F1; 0.5 for a label that does not occur."""
    from sklearn.metrics import precision_recall_curve

    scores, found = expit(logits), []
    for k in range(targets.shape[1]):
        if not targets[:, k].any():
            found.append(0.5)
            continue
        precision, recall, limits = precision_recall_curve(targets[:, k], scores[:, k])
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
        found.append(float(limits[f1[:-1].argmax()]))
    return found


def _limits(limits: Sequence[float] | None, labels: int) -> np.ndarray:
    return np.array([0.5] * labels if limits is None else limits)


def _any_in_top(scores: np.ndarray, truth: np.ndarray, count: int) -> bool:
    return bool(truth[np.argsort(-scores, kind="stable")[:count]].any())
