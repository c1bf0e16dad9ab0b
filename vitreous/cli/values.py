"""The values of options as words of a command: sizes as people write them, and one line for what can't be."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from vitreous.errors import UsageError, nearest
from vitreous.options import AUTO, expected, fit, flag_name, is_auto, unused


class Flag(NamedTuple):
    """What a flag takes."""

    annotation: Any
    nothing: str = "None"
    """The word for None."""
    needed: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether it has no value."""
        return self.annotation is bool

    @property
    def expected(self) -> str:
        """What its value may be, in words."""
        return expected(self.annotation, self.nothing)

    @property
    def example(self) -> str:
        """A value that it takes."""
        return next(iter(_words(self.annotation)), "1")


def split_sizes(arguments: Iterable[str]) -> list[str]:
    """Return the words of a command with sizes such as 224x320 as two numbers, as options take them."""
    words: list[str] = []
    for word in arguments:
        after_size = bool(words) and words[-1] in ("--image-size", "--patch-size")
        size = re.fullmatch(r"(\d+)[x×](\d+)", word) if after_size else None
        words += size.groups() if size else [word]
    return words


def flags_of(kind: type[Any]) -> dict[str, Flag]:
    """Return the flags of a config by their names."""
    hints = get_type_hints(kind)
    return {
        f"--{flag_name(each)}": Flag(
            hints[each.name], AUTO if is_auto(each) else "None", needed=each.default is MISSING
        )
        for each in fields(kind)
        if unused(each) is None
    }


def flags_of_verb(verb: Callable[..., Any]) -> dict[str, Flag]:
    """Return the flags that stand in a verb's own signature by their names."""
    hints = get_type_hints(verb)
    found = {}
    for each in inspect.signature(verb).parameters.values():
        hint = hints.get(each.name)
        if each.kind is each.KEYWORD_ONLY and each.name != "options":
            as_text = str if hint is Path else str | None if Path in get_args(hint) else hint
            needed = each.default is each.empty
            found[f"--{each.name.replace('_', '-')}"] = Flag(as_text, needed=needed)
    return found


def given(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the flags among the words of a command with the words that may be their values."""
    found = []
    for place, word in enumerate(arguments):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if is_flag(name):
            name = name[:2] + name[2:].replace("_", "-")
            found.append((name, [value] if equals else list(takewhile(_is_value, arguments[place + 1 :]))))
    return found


def is_flag(word: str) -> bool:
    """Tell whether a word looks like a flag: dashes and a letter, and no number such as -inf."""
    return word.startswith("-") and word.lstrip("-")[:1].isalpha() and isinstance(_read(word), str)


def refuse_wrong_values(takes: type[Any] | Mapping[str, Flag], arguments: Sequence[str]) -> None:
    """Refuse values that an option can't have, each in one line; what is missing `parsing` tells."""
    flags = flags_of(takes) if isinstance(takes, type) else takes
    for name, words in given(arguments):
        if (flag := flags.get(name)) is None or not words or flag.is_switch:
            continue
        several = _several(flag.annotation)
        values = words if several else words[:1]
        read = [_read(each) for each in values]
        if values[0] == flag.nothing or any(_fits(each, several, flag.annotation) for each in (read, values)):
            continue  # a name may be made of digits
        if several and not isinstance(read[0], str) and any(isinstance(each, str) for each in read[1:]):
            continue  # what follows its numbers belongs to the command
        choices = _words(flag.annotation)
        near = nearest(values[0], choices, count=1) if choices else ""
        raise UsageError(f"{name} {' '.join(values)} is not allowed: expected {flag.expected}{near}")


def refuse_swallowed(flags: Mapping[str, Flag], arguments: Sequence[str]) -> None:
    """Refuse words after the numbers of an option that takes all numbers that follow."""
    for name, words in given(arguments):
        texts = [word for word in words if isinstance(_read(word), str)]
        if texts and name in flags and _several(flags[name].annotation) and _number(flags[name].annotation):
            raise UsageError(f"{name} takes the words that follow: put {texts[0]!r} in front of the options")


def _fits(values: Sequence[int | float | str], several: bool, annotation: Any) -> bool:
    try:
        fit(tuple(values) if several else values[0], annotation)
    except ValueError:
        return False
    return True


def _is_value(word: str) -> bool:
    return word != "--" and not is_flag(word)


def _several(annotation: Any) -> bool:
    """Tell whether an option takes more than one word."""
    parts = get_args(annotation)
    return get_origin(annotation) is tuple or any(get_origin(part) is tuple for part in parts)


def _number(annotation: Any) -> bool:
    """Tell whether an option takes numbers."""
    return annotation in (int, float) or any(_number(part) for part in get_args(annotation))


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
