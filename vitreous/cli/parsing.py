"""From the words of a command to a call: tyro decides what is taken; what it refuses is told in one line."""

import inspect
import io
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr
from functools import partial, wraps
from typing import Any, get_type_hints

import tyro

from vitreous import api
from vitreous.cli.values import (
    Flag,
    flags_of,
    flags_of_verb,
    given,
    refuse_swallowed,
    refuse_wrong_values,
)
from vitreous.errors import UsageError, nearest
from vitreous.options import refuse_foreign_flags

Verb = Callable[..., Any]
HELP = ("-h", "--help")
BOX = re.compile(r"[\u2500-\u257f]+")
"""What tyro draws around its own messages."""


class _RefusedError(Exception):
    """The parser's own message."""


def parse(name: str, verb: Verb, about: str, words: Sequence[str]) -> Callable[[], Any]:
    """Return the call that a command stands for; its help ends the program, a wrong command is refused."""
    try:
        return _call(name, verb, words, about)[0]
    except _RefusedError as refused:
        own = str(refused)
    config = getattr(getattr(api, name, None), "config", None)
    if config is not None:
        refuse_foreign_flags(config, words)
    flags = flags_of_verb(verb) | (flags_of(config) if config is not None else {})
    see = f"(see vitreous {name} --help)"
    _refuse_unknown_flags(name, flags, words, see)
    refuse_wrong_values(flags, words)
    _refuse_empty_flags(flags, words, see)
    refuse_swallowed(flags, words)
    _refuse_misplaced(name, verb, flags, words, see)
    raise UsageError(f"{' '.join(BOX.sub(' ', own).split())} {see}")


def usage(name: str, verb: Verb) -> str:
    """Return a verb's command with what it needs."""
    needed = [f"{flag} …" for flag, takes in flags_of_verb(verb).items() if takes.needed]
    return " ".join(["vitreous", name, *_places(verb), *needed, "[OPTIONS]"])


def _call(
    name: str, verb: Verb, words: Sequence[str], about: str = "", *, spare: bool = False
) -> tuple[Callable[[], Any], list[str]]:
    """Return the call, and with `spare` the words that nothing takes, which are refused otherwise."""
    calls = []

    @wraps(verb)
    def keep(*arguments: Any, **options: Any) -> None:
        calls.append(partial(verb, *arguments, **options))

    said = io.StringIO()
    settings: dict[str, Any] = {"prog": f"vitreous {name}", "description": about, "args": words}
    settings["config"] = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
    try:
        with redirect_stderr(said):
            left: Any = tyro.cli(keep, return_unknown_args=spare, **settings)
    except SystemExit as stop:
        if not stop.code:  # help was asked for, and given
            raise
        raise _RefusedError(said.getvalue()) from None
    return calls[0], left[1] if spare else []


def _refuse_unknown_flags(name: str, flags: dict[str, Flag], words: Sequence[str], see: str) -> None:
    names = [flag.lstrip("-") for flag in flags]
    for flag, _ in given(words):
        if flag not in flags and flag not in HELP:
            near = nearest(flag.lstrip("-"), names, count=1, before="--")
            raise UsageError(f"{name} has no option {flag}{near} {see}")


def _refuse_empty_flags(flags: dict[str, Flag], words: Sequence[str], see: str) -> None:
    for name, values in given(words):
        if name in flags and not values and not flags[name].is_switch:
            raise UsageError(f"{name} has no value: expected {flags[name].expected} {see}")


def _refuse_misplaced(name: str, verb: Verb, flags: dict[str, Flag], words: Sequence[str], see: str) -> None:
    """Refuse a command of too few words, or of too many: found by parsing it with others in front."""
    given_flags = dict(given(words))
    absent = [flag for flag, takes in flags.items() if takes.needed and flag not in given_flags]
    filled = [*(part for flag in absent for part in (flag, flags[flag].example)), *words]
    required = [place for place in _places(verb) if place.isalpha()]
    for count in range(len(required) + 1):
        try:
            left = _call(name, verb, [*required[:count], *filled], spare=True)[1]
        except _RefusedError:
            continue
        if missing := [*required[len(required) - count :], *absent]:
            are = "is" if len(missing) == 1 else "are"
            raise UsageError(f"{_joined(missing)} {are} missing: {usage(name, verb)} {see}")
        if left:
            raise UsageError(f"{_joined(map(repr, left))} can't be placed: {usage(name, verb)} {see}")
        return


def _places(verb: Verb) -> list[str]:
    """Return the words that a verb takes, as its help writes them: CKPT, [DATA], PATH…"""
    hints = get_type_hints(verb, include_extras=True)
    found = []
    for each in inspect.signature(verb).parameters.values():
        if each.kind is not each.KEYWORD_ONLY:
            marks = getattr(hints.get(each.name), "__metadata__", ())
            shown = [mark.metavar for mark in marks if getattr(mark, "metavar", None)]
            found.append(shown[0] if shown else each.name.upper())
    return found


def _joined(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
