"""Matching a data set's classes to a checkpoint's: by name or synset, else by number or order."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from vitreous.errors import DataError, nearest

Rule = Literal["name", "synset", "number", "order"]


@dataclass(frozen=True)
class Match:
    """For each class of the data its row in the checkpoint, and the rule that found it."""

    rows: np.ndarray
    by: Rule
    doubt: str = ""
    """What has to be true for the rows to be right, where names don't tell; in one line."""


def match(data: Sequence[str], known: Sequence[str], *, numbered: bool = False) -> Match:
    """Find each class of the data in the checkpoint; refuse classes that it does not know.

    `numbered`: the data's classes are numbers that never had names, as in arrays.
    """
    data, known = list(data), list(known)
    places = {name: row for row, name in enumerate(known)}
    if len(places) < len(known):  # ImageNet has two classes named "crane": such names can't be matched
        places = {name: row for name, row in places.items() if known.count(name) == 1}
    if (rows := _found(data, places)) is not None:
        return Match(rows, "name")
    folded = [name.strip().lower() for name in data]
    if (rows := _found(folded, _folded(places))) is not None:
        return Match(rows, "name")
    if len(known) == 1000:  # folders of ImageNet-A and -R are named by synset, those of ImageNet-V2 by number
        if (rows := _found(folded, {name: row for row, name in enumerate(synsets())})) is not None:
            return Match(rows, "synset")
        if (rows := _found(folded, {name: row for row, name in enumerate(_numbers(1000))})) is not None:
            return Match(rows, "number", _by_number(data, known, rows))
    if len(data) == len(known):
        rows = np.arange(len(known))
        if numbered and data == _numbers(len(data)):
            return Match(rows, "number", _by_number(data, known, rows))
        if known == _numbers(len(known)) and not set(data) & places.keys():
            return Match(rows, "order", _by_order(data, known))
    unknown = [name for name in data if name not in places]
    shown = ", ".join(repr(name) for name in unknown[:3])
    raise DataError(
        f"the checkpoint does not know {len(unknown)} of the data's {len(data)} classes: {shown}"
        f"{nearest(unknown[0], known) or f'; it knows {len(known)}, such as {known[0]!r}'}"
    )


def _found(names: list[str], places: dict[str, int]) -> np.ndarray | None:
    return np.array([places[name] for name in names]) if all(name in places for name in names) else None


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _by_number(data: list[str], known: list[str], rows: np.ndarray) -> str:
    return (
        f"the data's {_classes(data)} matched to the checkpoint's {len(known):,} by number, not by name "
        f"({data[0]!r} is taken for {known[rows[0]]!r}): if they are not its class numbers, the figures mean "
        "nothing: name the data's classes as the checkpoint does"
    )


def _by_order(data: list[str], known: list[str]) -> str:
    return (
        f"the checkpoint has no class names, so the data's {_classes(data)} matched to its by order "
        f"({data[0]!r} is taken for number 0): if it was trained with another order, the figures mean "
        f"nothing: name the data's classes by its numbers, 0 to {len(known) - 1}"
    )


def _classes(data: list[str]) -> str:
    return "1 class is" if len(data) == 1 else f"{len(data):,} classes are"


def _folded(places: dict[str, int]) -> dict[str, int]:
    folded: dict[str, int] = {}
    for name, row in places.items():
        key = name.strip().lower()
        if key in folded:
            return {}
        folded[key] = row
    return folded


@cache
def synsets() -> tuple[str, ...]:
    """Return ImageNet-1k's thousand synsets in the order of their class numbers."""
    return tuple((Path(__file__).parent / "imagenet_synsets.txt").read_text().split())
