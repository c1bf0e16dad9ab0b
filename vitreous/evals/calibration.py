"""Whether a classifier's confidence can be trusted: calibration error, temperature, and abstaining.

`confidence` (N,) is the probability of each answer, `right` (N,) whether it was true.
Letters: N images, K classes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

BINS = 15
HEADING = "## Calibration"


def reliability(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> list[dict[str, float]]:
    """Return count, mean confidence and accuracy of the images in each of `bins` equal bins of confidence."""
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)  # bins are open below
    rows = []
    for number in range(bins):
        inside = place == number
        count = int(inside.sum())
        rows.append(
            {
                "from": number / bins,
                "to": (number + 1) / bins,
                "count": count,
                "confidence": float(confidence[inside].mean()) if count else 0.0,
                "accuracy": float(right[inside].mean()) if count else 0.0,
            }
        )
    return rows


def expected_calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> float:
    """Return the mean distance between confidence and accuracy over bins, weighed by their images."""
    rows = reliability(confidence, right, bins)
    return sum(row["count"] * abs(row["confidence"] - row["accuracy"]) for row in rows) / len(right)


def temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the T for which logits / T have the smallest loss (arXiv 1706.04599)."""
    rows = np.arange(len(targets))

    def loss(log_t: float) -> float:
        return -log_softmax(logits / np.exp(log_t), axis=1)[rows, targets].mean()

    found: Any = minimize_scalar(loss, bounds=(np.log(0.05), np.log(20.0)), method="bounded")
    return float(np.exp(found.x))


def determines(logits: np.ndarray, targets: np.ndarray) -> bool:
    """Tell whether images determine a temperature: where all are answered right, the colder the better."""
    right = logits.argmax(1) == targets
    return bool(right.any() and not right.all())


def section(about: Mapping[str, Any]) -> str:
    """Return what a model card says of the calibration, from what is recorded of the model; or nothing."""
    words = told(about)
    return f"{HEADING}\n\n{words}\n\n" if words else ""


def told(about: Mapping[str, Any]) -> str:
    """Return what is recorded of the calibration in a sentence or two, with the figures before and after."""
    record = about.get("calibration") or {}
    several = about.get("multilabel") is True
    if not isinstance(record, dict) or not ("thresholds" in about if several else "temperature" in record):
        return ""
    how = "Each label has a threshold of its own"
    if not several:
        how = f"Probabilities are calibrated: logits are divided by {record['temperature']:.4g}"
    if "after" not in record:  # sealed by an earlier version
        return f"{how}."
    names = {"ece": "calibration error", "loss": "loss", "f1": "F1"}
    changes = [
        f"{name} {_shown(key, record['before'][key])} → {_shown(key, record['after'][key])}"
        for key, name in names.items()
        if key in record["after"]
    ]
    return (
        f"{how}, fitted on {record['images']:,} val images. "
        f"On {record['measured']:,} {record['split']} images, which had no part in it: {', '.join(changes)}."
    )


def _shown(name: str, value: float) -> str:
    return f"{value:.4f}" if name == "loss" else f"{100 * value:.2f} %"


def coverage_curve(confidence: np.ndarray, right: np.ndarray, points: int = 20) -> list[dict[str, float]]:
    """Return accuracy when only the most confident images are answered, and the threshold for that."""
    order = np.argsort(-confidence, kind="stable")
    running = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    rows = []
    for share in np.linspace(1 / points, 1, points):
        last = max(1, round(share * len(order))) - 1
        rows.append(
            {
                "coverage": (last + 1) / len(order),
                "accuracy": float(running[last]),
                "threshold": float(confidence[order[last]]),
            }
        )
    return rows


def figures(confidence: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """Return calibration error, reliability and coverage as one document."""
    return {
        "ece": expected_calibration_error(confidence, right),
        "reliability": reliability(confidence, right),
        "coverage": coverage_curve(confidence, right),
    }
