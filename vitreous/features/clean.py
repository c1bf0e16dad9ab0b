"""`vitreous clean`: copies, pictures that don't belong, labels that are likely wrong; nothing is changed."""

from typing import Any

import numpy as np

from vitreous import console
from vitreous.config import CleanConfig
from vitreous.data import Dataset, InMemory
from vitreous.errors import OptionError
from vitreous.evals import mislabelled, neighbours, outliers
from vitreous.features import copies
from vitreous.features.copies import Pair
from vitreous.features.gather import Pictures, gather, load_model

FEWEST = 20
"""Pictures below which nothing can be said to be far from the others."""
COLUMNS = ("finding", "file", "split", "label", "suggested", "score", "beside")
"""Columns of the list as CSV."""


def clean(source: str, data: str | InMemory, dataset: Dataset, options: CleanConfig) -> dict[str, Any]:
    """Return the JSON document of `vitreous clean`; `dataset` is the open DATA."""
    if options.top < 1:
        raise OptionError(f"--top {options.top} is out of range: use 1 or more")
    pictures = gather(load_model(source, options), dataset, options)
    pairs = copies.find(pictures)
    groups = copies.groups(len(pictures), pairs)
    limit, far = _outliers(pictures, groups)
    wrong, why_not = _wrong_labels(pictures, groups, options.seed)
    if why_not is not None:
        console.note(f"labels: not judged, {why_not}")
    return {
        "checkpoint": str(source),
        "data": str(data),
        "count": len(pictures),
        "near_copies": _copies(pictures, pairs, groups),
        "outliers": far,
        "outlier_limit": limit,
        "wrong_labels": wrong,
        "labels_not_judged": why_not,
        "bad_files": pictures.bad,
    }


def _picture(pictures: Pictures, row: int) -> dict[str, Any]:
    label = pictures.labels[row] or None
    return {"file": pictures.files[row], "split": pictures.splits[row], "label": label}


def _copies(pictures: Pictures, pairs: list[Pair], groups: np.ndarray) -> list[dict[str, Any]]:
    """Return the groups of copies: first those with different labels, then those across splits."""
    likeness: dict[int, float] = {}
    for pair in pairs:
        number = int(groups[pair.first])
        likeness[number] = min(pair.likeness, likeness.get(number, 1.0))
    found = []
    for number in sorted(likeness):
        rows = np.flatnonzero(groups == number).tolist()
        digests = pictures.whole.digests[pictures.rows[rows]]
        found.append(
            {
                "files": [_picture(pictures, row) for row in rows],
                "likeness": likeness[number],
                "exact": bool((digests == digests[0]).all()),
                "across_splits": len({pictures.splits[row] for row in rows}) > 1,
                "labels_differ": len({pictures.labels[row] for row in rows}) > 1,
            }
        )
    return sorted(found, key=lambda group: (not group["labels_differ"], not group["across_splits"]))


def _outliers(pictures: Pictures, groups: np.ndarray) -> tuple[float | None, list[dict[str, Any]]]:
    """Return the distance from which a picture is far, and those that are, the farthest first."""
    if len(pictures) < FEWEST:
        return None, []
    sizes = None
    if pictures.labelled and not pictures.dataset.multilabel:
        sizes = np.bincount(pictures.targets, minlength=len(pictures.dataset.labels))[pictures.targets]
    count = outliers.neighbours(len(pictures), sizes)
    similarity, place = neighbours.among(pictures.features, groups, int(np.max(count)))
    scores = outliers.distances(similarity, count)
    limit = outliers.limit(scores)
    rows = [row for row in np.argsort(-scores, kind="stable").tolist() if scores[row] > limit]
    return limit, [
        {
            **_picture(pictures, row),
            "distance": float(scores[row]),
            "nearest": pictures.files[int(place[row, 0])],
        }
        for row in rows
    ]


def _wrong_labels(
    pictures: Pictures, groups: np.ndarray, seed: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the labels that are likely wrong, the clearest first; or why they can't be judged."""
    labels = pictures.dataset.labels
    if not pictures.labelled:
        return [], "the pictures have none"
    if pictures.dataset.multilabel:
        return [], "a picture has several"
    originals = np.bincount(pictures.targets[np.unique(groups)], minlength=2)  # copies teach nothing new
    if np.sort(originals)[-2] < mislabelled.FEWEST:
        return [], f"two classes of {mislabelled.FEWEST} different pictures or more are needed"
    found = mislabelled.judge(pictures.features, pictures.targets, len(labels), groups, seed)
    return [
        {
            **_picture(pictures, row),
            "probability": float(found.probability[row]),
            "suggested": labels[int(found.suggested[row])],
            "suggested_probability": float(found.other[row]),
        }
        for row in found.ranked.tolist()
    ], None


def table(document: dict[str, Any], most: int | None = None) -> list[list[Any]]:
    """Return the findings as rows of `COLUMNS`, as they are written as CSV; at most `most` of each kind."""
    rows: list[list[Any]] = []
    for each in document["wrong_labels"][:most]:
        score, suggested = f"{each['suggested_probability']:.3f}", each["suggested"]
        rows.append(["wrong label", each["file"], each["split"], each["label"], suggested, score, ""])
    for group in document["near_copies"][:most]:
        first, *others = group["files"]
        kind = "exact copy" if group["exact"] else "near copy"
        for each in others:
            score, beside = f"{group['likeness']:.3f}", first["file"]
            rows.append([kind, each["file"], each["split"], each["label"] or "", "", score, beside])
    for each in document["outliers"][:most]:
        score, label = f"{each['distance']:.3f}", each["label"] or ""
        rows.append(["outlier", each["file"], each["split"], label, "", score, each["nearest"]])
    return rows


def summary(document: dict[str, Any]) -> list[list[Any]]:
    """Return the rows of the table of counts."""
    groups = document["near_copies"]
    extra = sum(len(group["files"]) - 1 for group in groups)
    across = sum(group["across_splits"] for group in groups)
    differ = sum(group["labels_differ"] for group in groups)
    unjudged = document["labels_not_judged"]
    rows = [
        ["pictures", document["count"], ""],
        ["likely wrong labels", len(document["wrong_labels"]), f"not judged: {unjudged}" if unjudged else ""],
        ["copies", extra, f"groups with different labels: {differ}; across splits: {across}"],
        ["outliers", len(document["outliers"]), ""],
    ]
    if document["outlier_limit"] is None:
        rows[-1][2] = f"not looked for: fewer than {FEWEST} pictures"
    if document["bad_files"]:
        rows.append(["unreadable files", len(document["bad_files"]), next(iter(document["bad_files"]))])
    return rows
