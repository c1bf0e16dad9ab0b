"""Out of PyTorch: ONNX, `torch.export` and OpenVINO files that are proven from image file to label.

A file that disagrees with its source is not left behind.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from vitreous import files
from vitreous.errors import ModelError, VitreousError
from vitreous.export import formats, proof
from vitreous.export.graph import Precision, Source, describe, graph

__all__ = ["Export", "Precision", "Source", "export", "require", "write"]

MAX_IMAGES = 1000


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was written, and how it compares with PyTorch on real images."""

    path: Path
    format: str
    precision: str
    input: str
    bytes: int
    images: int
    largest_difference: float
    label_agreement: float
    compared_with: str


def export(
    source: Source,
    destination: Path,
    *,
    precision: Precision = "fp32",
    pixels: bool = False,
    images: Sequence[Path] = (),
    tolerance: float | None = None,
) -> Export:
    """Write the model as `.onnx`, `.pt2` or `.xml` (OpenVINO), prove it, and only then give it its name.

    Args:
        source: A classifier.
        destination: The file to write; its ending chooses the format.
        precision: fp32; for ONNX and OpenVINO also fp16 and int8 (weights, dynamic activations), for OpenVINO
            also bf16.
        pixels: Take uint8 pixels (B, H, W, C) of the model's size: normalising is part of the file.
        images: Image files to prove it with; without them, bundled ones.
        tolerance: The largest difference in probability that is allowed (bf16, int8: in label agreement).
    """
    form = formats.choose(destination, precision)
    _require_possible(destination, form, tolerance)
    require(source)
    pictures = [proof.read(path) for path in images[:MAX_IMAGES]]
    pictures = pictures or proof.bundled(source, proof.COUNTS[precision])
    draft = destination.parent / f".draft-{os.getpid()}-{destination.name}"
    draft.mkdir(parents=True)
    try:
        path = draft / destination.name
        facts = write(source, path, form, precision=precision, pixels=pixels)
        opened = form.open(path)
        found = proof.compare(source, opened, pictures)
        proof.check(found, precision, tolerance, destination)
        runtime = found.runtime + _unasked(source, opened, pictures)
        size = _publish(draft, form.written(destination))
    finally:
        rmtree(draft, ignore_errors=True)
    return Export(
        path=destination,
        format=form.name,
        precision=precision,
        input=facts["input"]["name"],
        bytes=size,
        images=len(pictures),
        largest_difference=found.difference,
        label_agreement=found.agreement,
        compared_with=runtime,
    )


def _require_possible(destination: Path, form: formats.Format, tolerance: float | None) -> None:
    files.require_utf8(destination)
    files.refuse_existing(*form.written(destination))
    if tolerance is not None and not 0 <= tolerance <= 1:
        raise VitreousError(f"--tolerance {tolerance} is out of range: use 0 to 1")


def write(
    source: Source, path: Path, form: formats.Format, *, precision: Precision, pixels: bool = False
) -> dict[str, Any]:
    """Write the file, without a proof; return what it records about itself."""
    facts = describe(source, pixels=pixels, precision=precision)
    half = form.half_graph and precision == "fp16"
    form.write(graph(source, pixels=pixels, half=half), path, facts, precision)
    return facts


def _unasked(source: Source, opened: formats.Opened, pictures: Sequence[bytes]) -> str:
    """Return how far away the runtime's default is, in words, if that is not what was proven."""
    if opened.unasked is None:
        return ""
    found = proof.compare(source, opened.unasked, pictures)
    how = ", ".join(f"{name}={value}" for name, value in opened.facts["compile"].items())
    return (
        f"; by default it takes {found.runtime} here, {found.difference:.1e} away with "
        f"{found.agreement:.1%} of the labels: compile with {how}"
    )


def require(source: Source) -> None:
    """Refuse what can't be exported, or whose labels would prove nothing."""
    config = source.model.config
    if not source.labels:
        raise ModelError("this model has no classes, so no label can be proven: load it with a trained head")
    if config.frames is not None:
        raise ModelError("a model of video clips can't be exported: no image file holds a clip")
    if source.model.merge:
        raise ModelError("a model that merges tokens can't be exported: export the one that merges none")
    if source.preprocess.preprocessing.resize == "pad" and not config.has_attention:
        raise ModelError("a ResNet can't leave out padding (resize pad): use resize cover or exact, or a ViT")
    heads = [each for name, each in source.model.named_parameters() if name.startswith("head")]
    if not any(each.any() for each in heads):
        raise ModelError("the head is all zeros, and zeros agree with anything: train the model first")


def _publish(draft: Path, written: Sequence[Path]) -> int:
    """Move the files out of the draft folder, the one that people name last; return their size."""
    made = {path: draft / path.name for path in reversed(written) if (draft / path.name).exists()}
    assert set(made.values()) == set(draft.iterdir())  # the format has told of all of its files
    size = sum(file.stat().st_size for file in made.values())
    for path, file in made.items():
        files.publish(file, path)
    return size
