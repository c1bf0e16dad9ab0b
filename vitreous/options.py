"""Options by keyword: config dataclasses from what a Python caller gave, and back to a command line.

Names and values are checked here, so that a Python call refuses what the command line refuses. No torch.
"""

import ast
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from itertools import pairwise
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitreous.errors import OptionError, nearest

Config = TypeVar("Config")
Function = TypeVar("Function", bound=Callable[..., Any])

AUTO = "auto"
"""What people write for an option that is to be chosen for them; the dataclasses hold None."""


def from_keywords(kind: type[Config], given: Mapping[str, Any], verb: str) -> Config:
    """Return the options of a verb as its config dataclass; refuse unknown names and unfitting values."""
    hints = get_type_hints(kind)
    automatic = {each.name for each in fields(kind) if is_auto(each)}  # type: ignore[arg-type]
    values = {}
    for name, value in given.items():
        if name not in hints:
            near = nearest(name, hints, count=1) or f": the options are {', '.join(hints)}"
            raise OptionError(f"{verb} has no option {name!r}{near}")
        if isinstance(value, str) and value == AUTO and name in automatic:
            value = None
        try:
            values[name] = fit(value, hints[name])
        except ValueError:
            allowed = expected(hints[name], AUTO if name in automatic else "None")
            raise OptionError(f"{name}={value!r} is not allowed: expected {allowed}") from None
    return kind(**values)


def fit(value: Any, annotation: Any) -> Any:
    """Return the value in the type of the annotation: a number for a tuple, a path for text; else raise."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        for part in parts:
            try:
                return fit(value, part)
            except ValueError:
                continue
    elif origin is Literal:
        if any(value == part and type(value) is type(part) for part in parts):
            return value
    elif origin is tuple:
        return _fit_tuple(value, parts)
    elif annotation is NoneType:
        if value is None:
            return None
    elif annotation is str:
        if isinstance(value, str | os.PathLike):
            return os.fspath(value)
    elif annotation is bool:
        if isinstance(value, bool):
            return value
    elif isinstance(value, bool):
        raise ValueError
    elif annotation is int and isinstance(value, Integral):
        return int(value)
    elif annotation is float and isinstance(value, Real):
        return float(value)
    raise ValueError


def _fit_tuple(value: Any, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    if parts[-1] is Ellipsis:
        return tuple(fit(item, parts[0]) for item in items)
    return tuple(fit(item, part) for item, part in zip(items, parts, strict=True))


def expected(annotation: Any, none: str) -> str:
    """Return what a value may be, in words; `none` is the word for None."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(expected(part, none) for part in parts)
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin is tuple:
        several = "one or more" if parts[-1] is Ellipsis else str(len(parts))
        return f"{several} of: {expected(parts[0], none)}"
    words = {NoneType: none, str: "text", bool: "True or False", int: "a whole number", float: "a number"}
    return words[annotation]


def command(verb: str, arguments: Sequence[str], config: Any) -> str:
    """Return the command line that does the same: only options that differ from their defaults."""
    words = ["vitreous", verb, *arguments]
    for each in fields(config):
        value, flag = getattr(config, each.name), flag_name(each)
        if value == each.default:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)


def is_auto(field: "Field[Any]") -> bool:
    """Return whether the field's None means that its value is chosen for the user."""
    return field.default is None and field.metadata.get("auto", True)


def flag_name(field: "Field[Any]") -> str:
    """Return a field's name on the command line, without its dashes."""
    return field.metadata.get("flag", field.name.replace("_", "-"))


def refuse_unused(options: Any, names: Iterable[str], why: str) -> None:
    """Refuse options, given by field name, that would change nothing; `why` names the reason: "with …"."""
    known = {each.name: each for each in fields(options)}
    for name in names:
        if getattr(options, name) != known[name].default:
            raise OptionError(f"--{flag_name(known[name])} has no effect {why}: leave it out")


def refuse_foreign(options: Any) -> None:
    """Refuse the options that a verb inherited and has no use for."""
    for each in fields(options):
        if (why := unused(each)) is not None:
            refuse_unused(options, (each.name,), why)


def refuse_foreign_flags(kind: type[Any], arguments: Iterable[str]) -> None:
    """Refuse flags of the options that a verb inherited and has no use for: its parser doesn't know them."""
    given = {argument.partition("=")[0] for argument in arguments}
    for each in fields(kind):
        if (why := unused(each)) is not None and f"--{flag_name(each)}" in given:
            raise OptionError(f"--{flag_name(each)} has no effect {why}: leave it out")


def unused(field: "Field[Any]") -> str | None:
    """Return why a verb has no use for an option that it inherited: it is neither shown nor taken."""
    return field.metadata.get("unused")


def takes(kind: type[Any]) -> Callable[[Function], Function]:
    """Show a function's `**options` as the fields of a dataclass, in its signature and its docstring."""

    def decorate(function: Function) -> Function:
        own = inspect.signature(function)
        kept = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        about, hints = descriptions(kind), get_type_hints(kind)
        lines = []
        for each in fields(kind):
            if unused(each) is not None:
                continue
            default = inspect.Parameter.empty if each.default is MISSING else each.default
            kept.append(
                inspect.Parameter(
                    each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[each.name]
                )
            )
            lines.append(f"        {each.name}: {about.get(each.name, '')}")
        function.__signature__ = own.replace(parameters=kept)  # type: ignore[attr-defined]
        function.config = kind  # type: ignore[attr-defined]
        function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    Options:\n" + "\n".join(lines) + "\n"
        return function

    return decorate


def descriptions(kind: type[Any]) -> dict[str, str]:
    """Return what the docstring below each field of a dataclass says, those of its bases too."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        found |= _documented(each.__module__).get(each.__name__, {})
    return found


@cache
def _documented(module: str) -> dict[str, dict[str, str]]:
    """Return the field docstrings of every class of a module; Python itself keeps none."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):  # no source: built in, or shipped as byte code
        return {}
    found: dict[str, dict[str, str]] = {}
    for each in tree.body:
        if not isinstance(each, ast.ClassDef):
            continue
        for field, text in pairwise(each.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    found.setdefault(each.name, {})[name] = " ".join(said.split())
    return found
