"""Checks of a configuration's fields; each error names the value and what is allowed. No torch."""

from typing import Any

from vitreous.errors import ModelError


def pair(value: Any, name: str) -> tuple[int, int]:
    """Read one number as a square, two as height and width."""
    numbers = (value,) if isinstance(value, int) else tuple(value)
    if len(numbers) == 1:
        numbers *= 2
    if len(numbers) != 2 or not all(
        isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers
    ):
        raise ModelError(f"{name} {value!r} is not a size: give one positive number, or height and width")
    return numbers


def at_least(config: object, least: int, *names: str) -> None:
    """Refuse fields that are not whole numbers of at least `least`."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or value < least:
            raise ModelError(f"{name} {value!r} is too small: give a whole number of at least {least}")


def one_of(config: object, name: str, allowed: tuple[str, ...]) -> None:
    """Refuse a field whose value is not one of the allowed words."""
    value = getattr(config, name)
    if value not in allowed:
        raise ModelError(f"unknown {name} {value!r}: expected one of {', '.join(allowed)}")
