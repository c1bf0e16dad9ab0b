"""Checks of a configuration's fields; each error names the value and what is allowed. No torch."""

from reprlib import repr as shown  # what a file says may be long
from typing import Any

from vitreous.config import MOST_SIDE, is_number
from vitreous.errors import ModelError

MOST = 2**31 - 1


def pair(value: Any, name: str) -> tuple[int, int]:
    """Read one number as a square, two as height and width."""
    given = tuple(value) if isinstance(value, list | tuple) else (value,)
    numbers = given * 2 if len(given) == 1 else given
    if len(numbers) != 2 or not all(type(n) is int and n > 0 for n in numbers):
        told = " ".join(map(shown, given))
        raise ModelError(f"{name} {told} is not a size: give one positive number, or height and width")
    if max(numbers) > MOST_SIDE:
        raise ModelError(f"{name} {shown(value)} is too large: a side is at most {MOST_SIDE:,}")
    return numbers


def at_least(config: object, least: int, *names: str) -> None:
    """Refuse fields that are not whole numbers of at least `least`."""
    for name in names:
        value = getattr(config, name)
        if type(value) is not int:
            raise ModelError(f"{name} {shown(value)} is not a whole number: give one of at least {least}")
        if value < least:
            raise ModelError(f"{name} {shown(value)} is too small: give a whole number of at least {least}")
        if value > MOST:
            raise ModelError(f"{name} {shown(value)} is too large: give a whole number of at most {MOST:,}")


def not_negative(config: object, *names: str) -> None:
    """Refuse fields that are not finite numbers of at least 0."""
    for name in names:
        value = getattr(config, name)
        if not is_number(value) or value < 0:
            raise ModelError(f"{name} {shown(value)} can't be used: give a number of at least 0")


def switches(config: object, *names: str) -> None:
    """Refuse fields that are neither true nor false."""
    for name in names:
        if type(getattr(config, name)) is not bool:
            raise ModelError(f"{name} {shown(getattr(config, name))} is neither true nor false")


def one_of(config: object, name: str, allowed: tuple[str, ...]) -> None:
    """Refuse a field whose value is not one of the allowed words."""
    value = getattr(config, name)
    if value not in allowed:
        raise ModelError(f"unknown {name} {shown(value)}: expected one of {', '.join(allowed)}")
