"""How good a model of several labels an image is: average precision, and the threshold of each label.

Letters: N images, K labels.
"""

from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.metrics import average_precision_score, multilabel_confusion_matrix, precision_recall_curve


def figures(
    logits: np.ndarray, targets: np.ndarray, labels: list[str], chosen: list[float] | None = None
) -> dict[str, Any]:
    """Return mAP over labels that occur, and precision, recall and F1 of each at its threshold."""
    scores, targets = expit(logits), targets.astype(bool)
    limits = np.array(chosen if chosen is not None else [0.5] * len(labels))
    rows = []
    for k, label in enumerate(labels):
        truth, guess = targets[:, k], scores[:, k] >= limits[k]
        right = int((truth & guess).sum())
        rows.append(
            {
                "label": label,
                "count": int(truth.sum()),
                "average_precision": float(average_precision_score(truth, scores[:, k]))
                if truth.any()
                else None,
                "threshold": float(limits[k]),
                "precision": right / max(int(guess.sum()), 1),
                "recall": right / max(int(truth.sum()), 1),
                "f1": 2 * right / max(int(truth.sum() + guess.sum()), 1),
            }
        )
    seen = [row for row in rows if row["count"]]
    exact = (scores >= limits) == targets
    return {
        "count": len(targets),
        "mean_average_precision": float(np.mean([row["average_precision"] for row in seen])) if seen else 0.0,
        "accuracy": float(exact.all(1).mean()),
        "top5": float(np.mean([_any_in_top(s, t, 5) for s, t in zip(scores, targets, strict=True)])),
        "loss": float(np.mean(np.logaddexp(0, logits) - targets * logits)),
        "ece": _calibration_error(scores, targets),
        "f1": float(np.mean([row["f1"] for row in seen])) if seen else 0.0,
        "per_class": rows,
        "confusion": multilabel_confusion_matrix(targets, scores >= limits).tolist(),
    }


def thresholds(logits: np.ndarray, targets: np.ndarray) -> list[float]:
    """Return for each label the threshold with the best F1; 0.5 for a label that does not occur."""
    scores, found = expit(logits), []
    for k in range(targets.shape[1]):
        if not targets[:, k].any():
            found.append(0.5)
            continue
        precision, recall, limits = precision_recall_curve(targets[:, k], scores[:, k])
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
        found.append(float(limits[f1[:-1].argmax()]))
    return found


def _any_in_top(scores: np.ndarray, truth: np.ndarray, count: int) -> bool:
    return bool(truth[np.argsort(-scores, kind="stable")[:count]].any())


def _calibration_error(scores: np.ndarray, targets: np.ndarray, bins: int = 15) -> float:
    """Return the mean distance between score and frequency over bins, of all labels together."""
    place = np.clip(np.ceil(scores * bins).astype(int) - 1, 0, bins - 1).ravel()
    count = np.bincount(place, minlength=bins)
    gap = np.bincount(place, weights=(scores - targets).ravel(), minlength=bins)
    return float(np.abs(gap).sum() / count.sum())
