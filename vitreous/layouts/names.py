"""What the layouts share: renaming by ordered patterns, and taking the fused matrices apart and together."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import LayoutError

IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
Rules = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]


def listed(value: Any) -> Any:
    """Return a list of a JSON document as a tuple; anything else is left for its reader to refuse."""
    return tuple(value) if isinstance(value, list) else value


def rename(tensors: Mapping[str, Tensor], rules: Rules) -> dict[str, Tensor]:
    """Apply every rule in turn to every name."""
    compiled = [(re.compile(pattern), replacement) for pattern, replacement in rules]
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for pattern, replacement in compiled:
            name = pattern.sub(replacement, name)
        if name in renamed:
            raise LayoutError(f"two tensors are both {name} in this layout")
        renamed[name] = tensor
    return renamed


def drop(tensors: Mapping[str, Tensor], pattern: str) -> tuple[dict[str, Tensor], list[str]]:
    """Split off tensors that a classifier does not need; return the rest and the names of those left out."""
    left = {name: tensor for name, tensor in tensors.items() if re.match(pattern, name)}
    return {name: tensor for name, tensor in tensors.items() if name not in left}, list(left)


def fuse(tensors: dict[str, Tensor], parts: Sequence[str], whole: str) -> dict[str, Tensor]:
    """Join `….q.weight`, `….k.weight`, … along their rows into `….qkv.weight`, in every layer."""
    for name in list(tensors):
        match = re.fullmatch(rf"(|.*\.){re.escape(parts[0])}\.(weight|bias)", name)
        if match is None:
            continue
        stem, kind = match.groups()
        names = [f"{stem}{part}.{kind}" for part in parts]
        if missing := [part for part in names if part not in tensors]:
            raise LayoutError(f"the weights lack {missing[0]}, which belongs to {name}")
        tensors[f"{stem}{whole}.{kind}"] = torch.cat([tensors.pop(part) for part in names])
    return tensors


def split(tensors: dict[str, Tensor], whole: str, parts: Sequence[str]) -> dict[str, Tensor]:
    """Undo `fuse`."""
    for name in list(tensors):
        if match := re.fullmatch(rf"(|.*\.){re.escape(whole)}\.(weight|bias)", name):
            rows = tensors.pop(name).chunk(len(parts))
            tensors |= {f"{match[1]}{part}.{match[2]}": row for part, row in zip(parts, rows, strict=True)}
    return tensors


def assume(notes: list[str], reasons: Mapping[str, bool]) -> None:
    """Note what is done to images instead of what a file asks for and we don't do, where that holds."""
    if found := [reason for reason, holds in reasons.items() if holds]:
        notes.append(f"preprocessing: assumed, {', '.join(found)}")


class NoPlaceError(LayoutError):
    """A model that a layout can't express, and why."""

    def __init__(self, layout: str, reason: str) -> None:
        super().__init__(f"the {layout} layout has no place for {reason}: choose another layout")
        self.reason = reason


def refuse(layout: str, reasons: Mapping[str, bool]) -> None:
    """Refuse a model that a layout can't express, naming each reason that holds."""
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise NoPlaceError(layout, " and ".join(found))


def pooled(pooling: str) -> str:
    """Return the reason to refuse a pooling in a layout whose own code reads the class token."""
    return f"{pooling} pooling" + (" where it reads a class token" if pooling in ("gap", "map") else "")
