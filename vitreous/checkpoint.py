"""The sealed file: one `.safetensors` that holds everything a prediction needs, and proves that it is whole.

The header's metadata has one entry, `vitreous`: a JSON document with the architecture, preprocessing, class
names, what is recorded about the model, and a SHA-256 of every tensor. Nothing it names is ever called.
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitreous import files
from vitreous.config import Preprocessing
from vitreous.errors import CheckpointError, ModelError
from vitreous.models import architecture
from vitreous.models.weights import Weights

FORMAT = 1
"""Raised when a reader of the older format would misread the file; older formats stay readable."""
KEY = "vitreous"


def write(weights: Weights, path: Path) -> None:
    """Write a sealed file: under its name when whole and durable, never over an older one before that."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.tensors.items()}
    document = {
        "format": FORMAT,
        "architecture": architecture.to_dict(weights.config),
        "preprocessing": asdict(weights.preprocessing) if weights.preprocessing else None,
        "labels": weights.labels,
        "about": weights.about,
        "checksums": checksums(tensors),
    }
    with files.atomic(path) as temporary:
        save_file(tensors, temporary, metadata={KEY: json.dumps(document, ensure_ascii=False)})


def is_sealed(path: Path) -> bool:
    """Say whether a file is one of ours, from its header alone."""
    try:
        with safe_open(path, framework="pt") as file:
            return KEY in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def read(path: Path, *, verify: bool = True) -> Weights:
    """Read a sealed file; `verify` compares every tensor with its checksum and names one that differs."""
    document, tensors = _open(path)
    if verify:
        wrong = [
            name for name, digest in checksums(tensors).items() if document["checksums"].get(name) != digest
        ]
        if wrong or tensors.keys() != document["checksums"].keys():
            named = ", ".join(wrong[:3]) or "the list of tensors"
            raise CheckpointError(
                f"{path} is damaged: {named} differs from its checksum; use another copy of the file"
            )
    try:
        return Weights(
            config=architecture.from_dict(document["architecture"]),
            tensors=tensors,
            preprocessing=_preprocessing(document["preprocessing"]),
            labels=_labels(document["labels"]),
            about=dict(document["about"]),
        )
    except (ModelError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} has metadata that can't be used: {error}") from None


def describe(path: Path) -> dict[str, Any]:
    """Return the metadata document of a sealed file without reading its tensors."""
    return _document(path, _metadata(path))


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the SHA-256 of each tensor's type, shape and bytes."""
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        return dict(zip(tensors, pool.map(_checksum, tensors.values()), strict=True))


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return one short hash of all tensors and their names."""
    return hashlib.sha256(json.dumps(checksums(tensors), sort_keys=True).encode()).hexdigest()[:16]


def _checksum(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
    digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]
    return digest.hexdigest()


def _open(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    document = _document(path, _metadata(path))
    with safe_open(path, framework="pt") as file:
        return document, {name: file.get_tensor(name) for name in file.keys()}


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from None


def _document(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        document = json.loads(metadata[KEY])
        version = document["format"]
    except KeyError:
        raise CheckpointError(f"{path} is not a sealed vitreous file: it has no {KEY!r} metadata") from None
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} has metadata that can't be read: {error}") from None
    if not isinstance(version, int) or not 1 <= version <= FORMAT:
        raise CheckpointError(
            f"{path} has format {version}: this vitreous reads 1 to {FORMAT}; install a newer one"
        )
    missing = {"architecture", "preprocessing", "labels", "about", "checksums"} - document.keys()
    if missing or not isinstance(document["checksums"], dict):
        raise CheckpointError(f"{path} has metadata that lacks {', '.join(sorted(missing)) or 'checksums'}")
    return document


def _preprocessing(values: dict[str, Any] | None) -> Preprocessing | None:
    if values is None:
        return None
    unknown = values.keys() - {field.name for field in fields(Preprocessing)}
    if unknown:
        raise ValueError(f"preprocessing has unknown entries {', '.join(sorted(unknown))}")
    known: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Preprocessing(**known)


def _labels(values: Any) -> list[str] | None:
    if values is not None and not (
        isinstance(values, list) and all(isinstance(each, str) for each in values)
    ):
        raise ValueError("labels is not a list of names")
    return values
