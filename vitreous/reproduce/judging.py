"""What rows show together: means over seeds, differences and their noise. Every rule is built from these."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance
from typing import Any

from vitreous.reproduce.experiment import Finding, Row


@dataclass(frozen=True)
class Gap:
    """How much more accurate some runs are than others, and two standard errors of that."""

    difference: float
    noise: float

    @property
    def held(self) -> bool | None:
        """Whether it is more than noise (True), less (False), or neither (None)."""
        return None if abs(self.difference) <= self.noise else self.difference > 0

    def __str__(self) -> str:
        return f"{100 * self.difference:+.1f} ± {100 * self.noise:.1f} points"


def where(rows: Sequence[Row], **columns: Any) -> list[Row]:
    """Return the rows that have these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in columns.items())]


def mean(rows: Sequence[Row], figure: str = "accuracy") -> float:
    """Return the mean of a figure over rows, such as one point's seeds."""
    return fmean(row[figure] for row in rows)


def gap(better: Sequence[Row], worse: Sequence[Row]) -> Gap:
    """Return the difference of two points' accuracy.

    A point's variance is that of a share of its test images, which every seed shares, and with several seeds
    also that of their mean. Both points have the same test images, but pairing is not used, so the noise is
    rather too large than too small.
    """
    return Gap(mean(better) - mean(worse), 2 * sqrt(_variance(better) + _variance(worse)))


def exceeds(rows: Sequence[Row], better: dict[str, Any], worse: dict[str, Any], text: str) -> Finding:
    """Return the finding that the rows with some values are more accurate than those with others."""
    found = gap(where(rows, **better), where(rows, **worse))
    return Finding(f"{text}: {found}", found.held)


def by(rows: Sequence[Row], column: str) -> dict[Any, list[Row]]:
    """Return the rows by the value of a column, in order."""
    return {value: where(rows, **{column: value}) for value in dict.fromkeys(row[column] for row in rows)}


def accuracies(rows: Sequence[Row], column: str) -> dict[Any, list[float]]:
    """Return what is drawn as dots: each row's accuracy, by the value of a column."""
    return {value: [row["accuracy"] for row in found] for value, found in by(rows, column).items()}


def _variance(rows: Sequence[Row]) -> float:
    share, images = mean(rows), min(row["test_images"] for row in rows)
    of_images = max(share * (1 - share), 1 / images) / images
    of_seeds = variance([row["accuracy"] for row in rows]) / len(rows) if len(rows) > 1 else 0.0
    return of_images + of_seeds
