"""The values of options as words of a command: sizes as people write them, and one line for what can't be."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import takewhile
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vitreous.errors import UsageError, nearest
from vitreous.options import AUTO, expected, fit, flag_name, is_auto, unused


def split_sizes(arguments: Iterable[str]) -> list[str]:
    """Return the words of a command with sizes such as 224x320 as two numbers, as options take them."""
    words: list[str] = []
    for word in arguments:
        after_size = bool(words) and words[-1] in ("--image-size", "--patch-size")
        size = re.fullmatch(r"(\d+)[x×](\d+)", word) if after_size else None
        words += size.groups() if size else [word]
    return words


def refuse_wrong_values(kind: type[Any], arguments: Sequence[str]) -> None:
    """Refuse values that an option can't have, each in one line; what is missing the parser tells."""
    hints = get_type_hints(kind)
    flags = {f"--{flag_name(each)}": each for each in fields(kind) if unused(each) is None}
    for place, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        given = [value] if equals else list(takewhile(_is_value, arguments[place + 1 :]))
        if (field := flags.get(flag)) is None or not given or hints[field.name] is bool:
            continue
        several = _several(hints[field.name])
        values = given if several else given[:1]
        nothing = AUTO if is_auto(field) else "None"
        read = [_read(each) for each in values]
        if values[0] == nothing or any(_fits(each, several, hints[field.name]) for each in (read, values)):
            continue  # a name may be made of digits
        if several and not isinstance(read[0], str) and any(isinstance(each, str) for each in read[1:]):
            continue  # what follows its numbers belongs to the command
        words, allowed = _words(hints[field.name]), expected(hints[field.name], nothing)
        near = nearest(values[0], words, count=1) if words else ""
        raise UsageError(f"{flag} {' '.join(values)} is not allowed: expected {allowed}{near}")


def _fits(values: Sequence[int | float | str], several: bool, annotation: Any) -> bool:
    try:
        fit(tuple(values) if several else values[0], annotation)
    except ValueError:
        return False
    return True


def _is_value(word: str) -> bool:
    return not word.startswith("--")


def _several(annotation: Any) -> bool:
    """Tell whether an option takes more than one word."""
    parts = get_args(annotation)
    return get_origin(annotation) is tuple or any(get_origin(part) is tuple for part in parts)


def _words(annotation: Any) -> list[str]:
    """Return the words that an option may be."""
    if get_origin(annotation) is Literal:
        return [str(part) for part in get_args(annotation)]
    return [word for part in get_args(annotation) if get_origin(part) for word in _words(part)]


def _read(word: str) -> int | float | str:
    """Return a word of the command line as the number that it is, if it is one."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
