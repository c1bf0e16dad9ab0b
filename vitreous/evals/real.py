"""ImageNet's reassessed labels (ReaL, arXiv 2006.07159): all labels that are right for a validation image."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.errors import DataError


def read(path: Path) -> list[list[int]]:
    """Read `real.json`: 50,000 lists of class numbers, in the order of the validation images."""
    try:
        labels = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} could not be read as ReaL labels: {error}") from None
    if not isinstance(labels, list) or not all(isinstance(row, list) for row in labels):
        raise DataError(f"{path} is not a list of lists: expected real.json of ImageNet's reassessed labels")
    return labels


def figures(guess: np.ndarray, files: list[str], labels: list[list[int]]) -> dict[str, Any]:
    """Return the accuracy against ReaL; images without an accepted label don't count."""
    right = []
    for each, file in zip(guess.tolist(), files, strict=True):
        match = re.search(r"ILSVRC2012_val_(\d{8})", Path(file).name)
        if match is None or not 1 <= int(match[1]) <= len(labels):
            raise DataError(
                f"{file} is no ImageNet validation image: ReaL needs names ILSVRC2012_val_NNNNNNNN"
            )
        accepted = labels[int(match[1]) - 1]
        if accepted:
            right.append(each in accepted)
    if not right:
        raise DataError("none of the images has a ReaL label")
    return {"real_accuracy": float(np.mean(right)), "real_count": len(right)}
