"""The formats: how each is written, and how the written file is run again by its own runtime."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import MissingDependencyError, VitreousError
from vitreous.export.graph import Graph, Inputs, Precision
from vitreous.export.onnx_format import dynamic_batch, open_onnx, write_onnx
from vitreous.export.opened import Answers, Opened
from vitreous.export.openvino_format import open_openvino, write_openvino


@dataclass(frozen=True)
class Format:
    """A kind of file."""

    name: str
    suffix: str
    precisions: tuple[Precision, ...]
    packages: tuple[str, ...]
    write: Callable[[tuple[Graph, Inputs], Path, dict[str, Any], Precision], None]
    open: Callable[..., Opened]
    """From a path, and the number of threads that may compute, to what runs it."""
    half_graph: bool = True
    """Whether fp16 means that the graph computes in half precision; else only weights are stored so."""
    beside: str | None = None
    """The name of the file that holds the weights, if they are not in the file itself: `{name}` is that of
    the file, `{stem}` the same without its ending."""

    def written(self, destination: Path) -> list[Path]:
        """Return the files that writing may make, the one that people name first."""
        if self.beside is None:
            return [destination]
        return [
            destination,
            destination.with_name(self.beside.format(name=destination.name, stem=destination.stem)),
        ]


def choose(destination: Path, precision: Precision) -> Format:
    """Return the format for a file's ending; refuse what is wrong or missing."""
    form = FORMATS.get(destination.suffix.lower())
    if form is None:
        known = ", ".join(f"{suffix} ({each.name})" for suffix, each in FORMATS.items())
        raise VitreousError(f"{destination.name} names no format: end it with {known}")
    if precision not in form.precisions:
        raise VitreousError(
            f"{form.name} has no {precision} here: use {', '.join(form.precisions)}, or a .onnx file"
        )
    for package in form.packages:
        if find_spec(package) is None:
            extra = "'vitreous[openvino]'" if package == "openvino" else "'vitreous[export]'"
            raise MissingDependencyError(f"{form.name} needs the package {package}: pip install {extra}")
    return form


def write_program(
    made: tuple[Graph, Inputs], path: Path, facts: dict[str, Any], precision: Precision
) -> None:
    """Write a `torch.export` program with a dynamic batch."""
    graph, example = made
    with torch.no_grad():
        program = torch.export.export(graph, example.given(), dynamic_shapes=dynamic_batch(example))
    torch.export.save(program, str(path), extra_files={"vitreous.json": json.dumps(facts)})


def open_program(path: Path, threads: int | None = None) -> Opened:
    """Run a `torch.export` program that we have just written; those of strangers are not opened.

    It runs on torch's threads."""
    extra = {"vitreous.json": ""}
    module = torch.export.load(str(path), extra_files=extra).module()

    def run(batch: Inputs) -> Answers:
        with torch.inference_mode():
            return Answers(*(each.numpy() for each in module(*map(torch.from_numpy, batch.given()))))

    return Opened(f"torch.export, torch {torch.__version__}", json.loads(extra["vitreous.json"]), run)


FORMATS = {
    ".onnx": Format(
        "ONNX",
        ".onnx",
        ("fp32", "fp16", "int8"),
        ("onnx", "onnxscript", "onnxruntime"),
        write_onnx,
        open_onnx,
        beside="{name}.data",
    ),
    ".pt2": Format("torch.export", ".pt2", ("fp32",), (), write_program, open_program),
    ".xml": Format(
        "OpenVINO",
        ".xml",
        ("fp32", "fp16", "bf16", "int8"),
        ("onnx", "onnxscript", "openvino"),
        write_openvino,
        open_openvino,
        half_graph=False,
        beside="{stem}.bin",
    ),
}
