"""Config dataclasses as flags: flat for Python, in groups and with readable placeholders for `--help`."""

import inspect
from dataclasses import MISSING, Field, fields, make_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from vitreous.config import GROUPS
from vitreous.options import AUTO, descriptions, flag_name, is_auto, unused

OTHERS = "other"
"""The group of a field that the table of groups does not name."""
SMALL = 10
"""A config of no more fields than this needs no groups."""

PLACEHOLDERS = {
    "job": "JOB…",
    "against": "PEER…",
    "model": "NAME",
    "init": "CKPT",
    "compare": "CKPT",
    "checkpoint": "CKPT",
    "tune": "PART",
    "recipe": "RECIPE",
    "out": "DIR",
    "data": "DATA",
    "data_root": "DIR",
    "cache": "DIR",
    "real_labels": "FILE",
    "time_budget": "TIME",
    "extend": "N|TIME",
    "image_size": "H [W]",
    "patch_size": "H [W]",
    "patch": "ROW COLUMN",
    "device": "DEVICE",
    "precision": "PRECISION…",
    "runtime": "RUNTIME…",
    "class_name": "NAME",
    "split": "SPLIT",
    "images": "PATH…",
}
LETTERS = {int: "N", float: "X", str: "TEXT"}


def of(kind: type[Any]) -> Any:
    """Return the marker of a verb's `options`: tyro parses the config's fields, and gives a dict of them."""

    def gather(**parsed: Any) -> dict[str, Any]:
        return {name: value for group in parsed.values() for name, value in vars(group).items()}

    parameters = [
        inspect.Parameter(
            f"group_{number}",
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[_group(kind, names), tyro.conf.arg(name=title)],
        )
        for number, (title, names) in enumerate(grouped(kind).items())
    ]
    gather.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    gather.__annotations__ = {each.name: each.annotation for each in parameters}
    return tyro.conf.arg(name="", constructor=gather)


def grouped(kind: type[Any]) -> dict[str, list[str]]:
    """Return the fields of a config by group, both in the order of the table of groups."""
    known = [each.name for each in fields(kind) if unused(each) is None]
    if len(known) <= SMALL:
        return {"": known}
    found = {title: [name for name in names if name in known] for title, names in GROUPS.items()}
    placed = {name for names in found.values() for name in names}
    found[OTHERS] = [name for name in known if name not in placed]
    return {title: names for title, names in found.items() if names}


def _group(kind: type[Any], names: list[str]) -> type[Any]:
    hints, about = get_type_hints(kind), descriptions(kind)
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}
    return make_dataclass(
        "Group",
        [_flag(known[name], hints[name], about.get(name, "")) for name in names],
        kw_only=True,
        frozen=True,
    )


def _flag(field: "Field[Any]", annotation: Any, about: str) -> tuple[str, Any, Any]:
    """Return a field as tyro takes it: an option that can be chosen for the user also takes the word auto."""
    default = field.default
    if is_auto(field):
        kinds = [each for each in get_args(annotation) if each is not type(None)]
        annotation, default = Union[Literal[AUTO], *kinds], AUTO
    hint = "" if default is None or default is False or default == () else None  # None: (default: ...)
    config = tyro.conf.arg(
        name=flag_name(field),
        help=about,
        metavar=field.metadata.get("placeholder") or placeholder(field.name, annotation),
        help_behavior_hint=hint,
    )
    return field.name, Annotated[annotation, config], MISSING if default is MISSING else default


def placeholder(name: str, annotation: Any) -> str | None:
    """Return what stands for a flag's value in the help; None for a switch, which has no value."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    choices = [str(value) for each in kinds if get_origin(each) is Literal for value in get_args(each)]
    others = [each for each in kinds if get_origin(each) is not Literal and each is not type(None)]
    if bool in others:
        return None
    if not others:
        return f"{{{','.join(choices)}}}"
    if name in PLACEHOLDERS:
        return PLACEHOLDERS[name]
    kind = others[0]
    if get_origin(kind) is not tuple:
        return LETTERS[kind]
    parts = [get_args(each)[0] if get_origin(each) is UnionType else each for each in get_args(kind)]
    return f"{LETTERS[parts[0]]}…" if parts[-1] is Ellipsis else " ".join(LETTERS[each] for each in parts)
