"""Position similarities of a run's model, rounded for its row, and how local they are."""

from pathlib import Path

import numpy as np

from vitreous.inspection import position_similarity
from vitreous.predict import load
from vitreous.reproduce.experiment import Row

DIGITS = 3
"""Decimals of what a row keeps."""


def similarity(run: Path) -> Row:
    """Return the similarities (h, w, h, w) of the last model of a run, and how they fall with distance."""
    found = position_similarity(load(run / "last.safetensors").model)
    if found is None:
        return {"locality": None, "map": None}
    return {"locality": locality(found.values), "map": found.values.round(DIGITS).tolist()}


def locality(values: np.ndarray) -> float:
    """Return the correlation of similarity with nearness over all pairs of places: 1 if similarity falls
    linearly with distance, 0 if it does not depend on it."""
    grid = values.shape[:2]
    places = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1).reshape(-1, 2)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    other = apart > 0  # a place is like itself whatever was learned
    cosines = values.reshape(apart.shape)[other]
    if cosines.std() < 1e-9:
        return 0.0
    return round(float(-np.corrcoef(cosines, apart[other])[0, 1]), DIGITS)
