"""ONNX: how it is written, with int8 weights where asked, and run again by onnxruntime."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.export.graph import Graph, Inputs, Precision
from vitreous.export.opened import OUTPUTS, Answers, Opened, input_names

SINGLE_FILE = 2_000_000_000
"""A protobuf message ends at 2 GiB; a larger model keeps its weights in a second file, NAME.data."""


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
            dynamic_shapes=dynamic_batch(example),
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


def open_onnx(path: Path, threads: int | None = None) -> Opened:
    """Run an ONNX file with onnxruntime on the CPU, on this many threads; None: as many as it chooses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads or 0
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["vitreous"])

    def run(batch: Inputs) -> Answers:
        feed = dict(zip(input_names(facts), batch.given(), strict=True))
        return Answers(*map(np.asarray, session.run(OUTPUTS, feed)))

    return Opened(f"onnxruntime {onnxruntime.__version__}", facts, run)


def dynamic_batch(example: Inputs) -> tuple[dict[int, Any], ...]:
    """Return the shapes that may vary: the number of images, the same for all inputs."""
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
    """Hide the exporters' advice from the user: what matters is proven, or fails."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Both inputs have the same batch on purpose; the exporter warns that they share its name.
            warnings.filterwarnings(
                "ignore", message=".*shares the same shape constraints", category=UserWarning
            )
            yield
    finally:
        logging.disable(before)
