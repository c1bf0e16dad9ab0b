"""Matching a data set's classes to a checkpoint's: by name, or by ImageNet's synsets or numbers."""

from functools import cache
from pathlib import Path

import numpy as np

from vitreous.errors import DataError, nearest


def rows_of(data: list[str], known: list[str]) -> np.ndarray:
    """Return, for each class of the data, its row in the checkpoint; refuse classes that it does not know."""
    places = {name: row for row, name in enumerate(known)}
    if len(places) < len(known):  # ImageNet has two classes named "crane": such names can't be matched
        places = {name: row for name, row in places.items() if known.count(name) == 1}
    for names in (places, _folded(places), _imagenet(known)):
        rows = [names.get(name if names is places else name.strip().lower()) for name in data]
        if all(row is not None for row in rows):
            return np.array(rows)
    unknown = [name for name in data if name not in places]
    if len(unknown) == len(data) and all(name.isdigit() for name in known) and len(data) == len(known):
        return np.arange(len(known))  # the checkpoint never had names: the data's order is all there is
    shown = ", ".join(repr(name) for name in unknown[:3])
    raise DataError(
        f"the checkpoint does not know {len(unknown)} of the data's {len(data)} classes: {shown}"
        f"{nearest(unknown[0], known) or f'; it knows {len(known)}, such as {known[0]!r}'}"
    )


def _folded(places: dict[str, int]) -> dict[str, int]:
    folded: dict[str, int] = {}
    for name, row in places.items():
        key = name.strip().lower()
        if key in folded:
            return {}
        folded[key] = row
    return folded


def _imagenet(known: list[str]) -> dict[str, int]:
    """Return rows by synset (folders of ImageNet-A and -R) and number (ImageNet-V2) for ImageNet models."""
    if len(known) != 1000:
        return {}
    return {name: row for row, name in enumerate(synsets())} | {str(row): row for row in range(1000)}


@cache
def synsets() -> tuple[str, ...]:
    """Return ImageNet-1k's thousand synsets in the order of their class numbers."""
    return tuple((Path(__file__).parent / "imagenet_synsets.txt").read_text().split())
