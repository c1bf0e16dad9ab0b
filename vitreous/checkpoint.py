"""The sealed file: one `.safetensors` that holds everything a prediction needs, and proves that it is whole.

The header's metadata has one entry, `vitreous`: a JSON document with the architecture, preprocessing, class
names, what is recorded about the model, a SHA-256 of every tensor, and the seal: a SHA-256 of all of these.
Nothing it names is ever called.
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from reprlib import repr as shown  # what a file says may be long
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitreous import files
from vitreous.config import Preprocessing, is_number
from vitreous.errors import CheckpointError
from vitreous.models import architecture
from vitreous.models.weights import MOST_TENSORS, Weights

FORMAT = 1
"""Incremented when a reader of the older format would misread the file; older formats stay readable."""
KEY = "vitreous"
ENTRIES = {"format", "architecture", "preprocessing", "labels", "about", "checksums"}
TEMPERATURES = (1e-3, 1e3)
UNSEALED = (
    "seal: made before descriptions were sealed: checksums cover its tensors, not preprocessing, labels and "
    "calibration; save it again to cover these"
)


def write(weights: Weights, path: Path) -> None:
    """Write a sealed file: it gets its name, or replaces an older file, only once it is whole and durable."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.tensors.items()}
    document = {
        "format": FORMAT,
        "architecture": architecture.to_dict(weights.config),
        "preprocessing": asdict(weights.preprocessing) if weights.preprocessing else None,
        "labels": weights.labels,
        "about": weights.about,
        "checksums": checksums(tensors),
    }
    document = json.loads(json.dumps(document))  # as it will be read: keys are text, tuples are lists
    document["seal"] = seal(document)
    try:
        _weights(document, tensors)
    except ValueError as error:
        raise CheckpointError(f"{path} is not written, for it could not be read again: {error}") from None
    with files.atomic(path) as temporary:
        save_file(tensors, temporary, metadata={KEY: json.dumps(document)})


def seal(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of everything in a document but its seal, however it is spaced or ordered."""
    covered = {name: value for name, value in document.items() if name != "seal"}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def is_sealed(path: Path) -> bool:
    """Tell whether a file is one of ours, from its header alone, even if the key of our entry is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError):
        return False
    return KEY in metadata or any(
        '"architecture"' in value and '"checksums"' in value for value in metadata.values()
    )


def read(path: Path, *, verify: bool = True) -> Weights:
    """Read a sealed file; `verify` compares every tensor with its checksum and names those that differ.

    The document is always compared with its seal, and its values are checked.
    """
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
        return _weights(document, tensors)
    except ValueError as error:
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
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            if len(names) > MOST_TENSORS:
                raise CheckpointError(f"{path} has {len(names):,} tensors: at most {MOST_TENSORS:,} are read")
            return document, {name: file.get_tensor(name) for name in names}
    except CheckpointError:
        raise
    except Exception as error:  # of a type that torch does not have
        raise CheckpointError(f"{path} has tensors that can't be read: {error}") from None


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
    except KeyError:
        raise CheckpointError(f"{path} is not a sealed vitreous file: it has no {KEY!r} metadata") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} has metadata that can't be read: {error}") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} has metadata that can't be read: it is not an object")
    version = document.get("format")
    if type(version) is not int or not 1 <= version <= FORMAT:
        raise CheckpointError(
            f"{path} has format {shown(version)}: this vitreous reads 1 to {FORMAT}; install a newer one"
        )
    missing = ENTRIES - document.keys()
    if missing or not isinstance(document["checksums"], dict):
        raise CheckpointError(f"{path} has metadata that lacks {', '.join(sorted(missing)) or 'checksums'}")
    _check_seal(path, document)
    return document


def _check_seal(path: Path, document: Mapping[str, Any]) -> None:
    """Refuse a document that differs from its seal; without a seal it is an earlier version's, or damaged."""
    if "seal" not in document:
        if unknown := sorted(document.keys() - ENTRIES):
            raise CheckpointError(
                f"{path} is damaged: its seal is missing, and {unknown[0][:40]} is unknown; use another copy"
            )
    elif document["seal"] != seal(document):
        raise CheckpointError(
            f"{path} is damaged: its description (architecture, preprocessing, labels, calibration) differs "
            "from its checksum; use another copy of the file"
        )


def _object(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(document[name], dict):
        raise ValueError(f"{name} is not an object")
    return document[name]


def _weights(document: Mapping[str, Any], tensors: dict[str, Tensor]) -> Weights:
    """Return what a document and its tensors say, or raise ValueError for what can't be used."""
    config = architecture.from_dict(_object(document, "architecture"))
    return Weights(
        config=config,
        tensors=tensors,
        preprocessing=_preprocessing(document),
        labels=_labels(document["labels"], config.num_classes),
        about=_about(_object(document, "about"), config.num_classes),
        notes=[] if "seal" in document else [UNSEALED],
    )


def _preprocessing(document: Mapping[str, Any]) -> Preprocessing | None:
    if document["preprocessing"] is None:
        return None
    values = _object(document, "preprocessing")
    unknown = values.keys() - {field.name for field in fields(Preprocessing)}
    if unknown:
        raise ValueError(f"preprocessing has unknown entries {', '.join(sorted(unknown))[:200]}")
    known: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Preprocessing(**known)


def _labels(values: Any, classes: int) -> list[str] | None:
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise ValueError("labels is not a list of names")
    if len(values) != classes:
        raise ValueError(f"{len(values)} labels for {classes} classes")
    return values


def _about(about: dict[str, Any], classes: int) -> dict[str, Any]:
    """Return what is recorded about a model, with the parts that probabilities depend on checked."""
    calibration = about.get("calibration")
    if isinstance(calibration, dict) and "temperature" in calibration:
        temperature, (least, most) = calibration["temperature"], TEMPERATURES
        if not is_number(temperature) or not least <= temperature <= most:
            raise ValueError(f"temperature {shown(temperature)} is not a number from {least:g} to {most:g}")
    if not _probability(about.get("abstain") or 0.0):
        raise ValueError(f"abstain {shown(about['abstain'])} is not a probability")
    thresholds = about.get("thresholds") or []
    if not isinstance(thresholds, list) or not all(map(_probability, thresholds)):
        raise ValueError("thresholds is not a list of probabilities")
    if thresholds and len(thresholds) != classes:
        raise ValueError(f"thresholds is not one probability for each of {classes} labels")
    return about


def _probability(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1
