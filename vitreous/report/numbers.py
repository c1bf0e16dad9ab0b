"""What the figures of an inspection show, as one JSON document: enough to draw them again."""

from typing import Any

import numpy as np

from vitreous.inspection import distance
from vitreous.models import architecture
from vitreous.models.zoo import get_config
from vitreous.plot.inside import shown
from vitreous.predict import Prediction
from vitreous.report.map_scores import MapScores
from vitreous.report.observe import CNN, Findings, ImageFindings

HEADS_OF = 4
"""Images whose heads are shown one by one."""


def numbers(found: Findings, other: str = "") -> dict[str, Any]:
    """Return what the figures show; `other` names the checkpoint that was compared."""
    document: dict[str, Any] = {
        "architecture": architecture.to_dict(found.model.config),
        "count": found.count,
        "start": found.start,
        "images": [_image(each, heads=number < HEADS_OF) for number, each in enumerate(found.images)],
        "notes": found.notes,
        **_weights(found),
    }
    if found.distance is not None and found.cnn is not None:
        document["attention_distance"] = _distance(found, found.cnn)
    document["attention_entropy"] = _plain(found.entropy)
    document["token_similarity"] = _plain(found.similarity)
    if found.norms is not None:
        quantiles = np.quantile(found.norms, (0.05, 0.5, 0.95, 1.0), axis=1)
        document["token_norms"] = {
            **dict(zip(("p5", "median", "p95", "longest"), _plain(quantiles), strict=True)),
            "prefix": {name: _plain(values) for name, values in found.prefix_norms.items()},
        }
    document["cka"] = _plain(found.cka)
    if found.compared is not None:
        document["compare"] = {"checkpoint": other, "cka": _plain(found.compared)}
    if found.map_scores is not None:
        document["deletion"] = _deletion(found.map_scores)
    return document


def _weights(found: Findings) -> dict[str, Any]:
    """Return what the weights show without any image."""
    document: dict[str, Any] = {}
    if found.filters is not None:
        document["filters"] = {
            "about": found.filters.about,
            "variance": _plain(found.filters.variance),
            "tiles": _plain(found.filters.tiles),
        }
    if found.positions is not None:
        rows, columns = (shown(side) for side in found.positions.values.shape[:2])
        document["position_similarity"] = {
            "about": found.positions.about,
            "rows": rows.tolist(),
            "columns": columns.tolist(),
            "values": _plain(found.positions.values[np.ix_(rows, columns)]),
        }
    return document


def _distance(found: Findings, cnn: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    fields = distance.receptive_fields(get_config(CNN))  # type: ignore[arg-type]
    return {
        "unit": "pixels",
        "values": _plain(found.distance),
        "uniform": _plain(found.uniform_distance),
        "cnn": {
            "name": CNN,
            "depth": _plain(cnn[0]),
            "distance": _plain(cnn[1]),
            "receptive_field": [field.side for field in fields],
        },
    }


def _deletion(scores: MapScores) -> dict[str, Any]:
    return {
        "about": scores.about,
        "images": scores.images,
        "removed": _plain(scores.removed),
        "random": _plain(scores.random),
        "maps": {
            name: {
                "deletion": _plain(deletion),
                "insertion": _plain(insertion),
                "deletion_area": _plain(deletion.mean()),
                "insertion_area": _plain(insertion.mean()),
            }
            for name, (deletion, insertion) in scores.curves.items()
        },
    }


def _image(found: ImageFindings, *, heads: bool) -> dict[str, Any]:
    return {
        "file": found.name,
        **_answer(found.prediction),
        "class": found.target,
        "maps": {name: _plain(each) for name, each in found.maps.items()},
        "artefacts": found.artefacts,
        "heads": _plain(found.heads) if heads else None,
    }


def _answer(prediction: Prediction | None) -> dict[str, Any]:
    """Return what `vitreous predict --json` says about an image, except its file."""
    if prediction is None:
        return {"label": None, "top": []}
    return {name: value for name, value in prediction.to_dict().items() if name != "file"}


def _plain(values: Any) -> Any:
    """Return an array as nested lists of numbers with four digits: enough to draw the figure again."""
    if values is None:
        return None
    array = np.asarray(values, np.float64)
    digits = np.vectorize(lambda value: float(f"{value:.4g}"), otypes=[float])(array) if array.size else array
    return digits.tolist()
