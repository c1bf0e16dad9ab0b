"""The formats: how each is written, and how the written file is run again by its own runtime."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.errors import MissingDependencyError, VitreousError
from vitreous.export.graph import Graph, Inputs, Precision

SINGLE_FILE = 2_000_000_000
"""A protobuf message ends at 2 GiB; a larger model keeps its weights in a second file, NAME.data."""
OUTPUTS = ["logits", "probabilities"]
COMPILE = {"INFERENCE_PRECISION_HINT": "f32"}
"""How OpenVINO has to be asked for what is proven: by itself it takes bf16 on processors that have it."""
Run = Callable[[Inputs], np.ndarray]


@dataclass(frozen=True)
class Opened:
    """An exported file in the hands of its runtime."""

    runtime: str
    facts: dict[str, Any]
    """What the file records about itself."""
    run: Run
    """From a batch of inputs, as arrays, to probabilities (B, K)."""
    unasked: "Opened | None" = None
    """The same as the runtime opens it when it is asked for nothing, where that is another computation."""


@dataclass(frozen=True)
class Format:
    """A kind of file."""

    name: str
    suffix: str
    precisions: tuple[Precision, ...]
    packages: tuple[str, ...]
    write: Callable[[tuple[Graph, Inputs], Path, dict[str, Any], Precision], None]
    open: Callable[[Path], Opened]
    half_graph: bool = True
    """Whether fp16 is computed in half precision, or is how the weights are stored."""


def choose(destination: Path, precision: Precision) -> Format:
    """Return the format of a file's ending, or say what is wrong or missing."""
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
            extra = "openvino" if package == "openvino" else "'vitreous[export]'"
            raise MissingDependencyError(f"{form.name} needs the package {package}: pip install {extra}")
    return form


def write_onnx(made: tuple[Graph, Inputs], path: Path, facts: dict[str, Any], precision: Precision) -> None:
    """Write ONNX with a dynamic batch and the labels in its metadata."""
    import onnx

    graph, example = made
    with _quiet():
        program = torch.onnx.export(
            graph,
            example.given(),
            dynamo=True,
            verbose=False,
            input_names=input_names(facts),
            output_names=OUTPUTS,
            dynamic_shapes=_dynamic_batch(example),
        )
        assert program is not None
        model = program.model_proto
        _forget_where_it_was_made(model)
        if precision == "int8":
            model = _quantize(model)
    onnx.helper.set_model_props(
        model, {"vitreous": json.dumps(facts), "labels": json.dumps(facts["labels"], ensure_ascii=False)}
    )
    model.producer_name, model.producer_version = "vitreous", facts["vitreous"]
    large = sum(each.numel() * each.element_size() for each in graph.parameters()) >= SINGLE_FILE
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=large,
        **({"location": f"{path.name}.data", "all_tensors_to_one_file": True} if large else {}),
    )
    onnx.checker.check_model(str(path))


def open_onnx(path: Path) -> Opened:
    """Run an ONNX file with onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["vitreous"])

    def run(batch: Inputs) -> np.ndarray:
        feed = dict(zip(input_names(facts), batch.given(), strict=True))
        return np.asarray(session.run(["probabilities"], feed)[0])

    return Opened(f"onnxruntime {onnxruntime.__version__}", facts, run)


def write_program(
    made: tuple[Graph, Inputs], path: Path, facts: dict[str, Any], precision: Precision
) -> None:
    """Write a `torch.export` program with a dynamic batch."""
    graph, example = made
    with torch.no_grad():
        program = torch.export.export(graph, example.given(), dynamic_shapes=_dynamic_batch(example))
    torch.export.save(program, str(path), extra_files={"vitreous.json": json.dumps(facts)})


def open_program(path: Path) -> Opened:
    """Run a `torch.export` program that we have just written; those of strangers are not opened."""
    extra = {"vitreous.json": ""}
    module = torch.export.load(str(path), extra_files=extra).module()

    def run(batch: Inputs) -> np.ndarray:
        with torch.inference_mode():
            return module(*map(torch.from_numpy, batch.given()))[1].numpy()

    return Opened(f"torch.export, torch {torch.__version__}", json.loads(extra["vitreous.json"]), run)


def write_openvino(
    made: tuple[Graph, Inputs], path: Path, facts: dict[str, Any], precision: Precision
) -> None:
    """Write OpenVINO's NAME.xml and NAME.bin, by way of ONNX; fp16 is how weights are stored."""
    import openvino  # pyright: ignore[reportMissingImports]

    between = path.with_suffix(".onnx")
    write_onnx(made, between, facts, "fp32")
    model = openvino.convert_model(str(between))
    model.set_rt_info(json.dumps(facts | {"compile": COMPILE}), ["vitreous"])
    openvino.save_model(model, str(path), compress_to_fp16=precision == "fp16")
    for leftover in path.parent.glob(f"{between.name}*"):
        leftover.unlink()


def open_openvino(path: Path) -> Opened:
    """Run OpenVINO's files on the CPU in single precision; and by its default, where that is bf16."""
    import openvino  # pyright: ignore[reportMissingImports]

    core = openvino.Core()
    model = core.read_model(str(path))
    facts = json.loads(model.get_rt_info(["vitreous"]).astype(str))
    asked, usual = core.compile_model(model, "CPU", COMPILE), core.compile_model(model, "CPU")
    precision = usual.get_property("INFERENCE_PRECISION_HINT").to_string()

    def run(compiled: Any, batch: Inputs) -> np.ndarray:
        feed = dict(zip(input_names(facts), batch.given(), strict=True))
        return np.asarray(compiled(feed)["probabilities"])

    name = f"openvino {openvino.__version__.partition('-')[0]}"
    if precision == "f32":
        return Opened(name, facts, partial(run, usual))
    unasked = Opened(precision, facts, partial(run, usual))
    return Opened(f"{name} in f32", facts, partial(run, asked), unasked)


def input_names(facts: dict[str, Any]) -> list[str]:
    """Return the names of a file's inputs, in their order."""
    return [facts[entry]["name"] for entry in ("input", "size_input") if entry in facts]


def _dynamic_batch(example: Inputs) -> tuple[dict[int, Any], ...]:
    batch = torch.export.Dim("batch")
    return tuple({0: batch} for _ in example.given())


def _quantize(model: Any) -> Any:
    """Return the model with int8 weights in its dense layers, a scale for each channel; convolutions stay."""
    import tempfile

    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    del model.graph.value_info[:]  # the quantizer turns weights around and would trip over their old shapes
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "int8.onnx")
        quantize_dynamic(
            model,
            path,
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=["MatMul", "Gemm"],
            reduce_range=True,  # 7 bits: processors without VNNI overflow on sums of 8-bit products
        )
        return onnx.load(path)


def _forget_where_it_was_made(model: Any) -> None:
    """Remove the exporter's notes: they hold the stack, and with it the paths, of whoever exported."""
    graph = model.graph
    for part in (
        model,
        graph,
        *graph.node,
        *graph.input,
        *graph.output,
        *graph.value_info,
        *graph.initializer,
    ):
        if hasattr(part, "metadata_props"):
            del part.metadata_props[:]
        part.doc_string = ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep advice of the exporters from the user: what matters is proven, or fails."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Both inputs have the same batch, as is meant; the exporter warns that they share its name.
            warnings.filterwarnings(
                "ignore", message=".*shares the same shape constraints", category=UserWarning
            )
            yield
    finally:
        logging.disable(before)


FORMATS = {
    ".onnx": Format(
        "ONNX",
        ".onnx",
        ("fp32", "fp16", "int8"),
        ("onnx", "onnxscript", "onnxruntime"),
        write_onnx,
        open_onnx,
    ),
    ".pt2": Format("torch.export", ".pt2", ("fp32",), (), write_program, open_program),
    ".xml": Format(
        "OpenVINO",
        ".xml",
        ("fp32", "fp16"),
        ("onnx", "onnxscript", "openvino"),
        write_openvino,
        open_openvino,
        half_graph=False,
    ),
}
