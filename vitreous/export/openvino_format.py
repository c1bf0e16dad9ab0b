"""OpenVINO: how its files are written, in which arithmetic they are to be computed, and how they are run.

A file records the options that it was proven with (`compile`): by default OpenVINO takes bf16 on processors
that have it. The runtime itself reads the ONNX file that is converted: `openvino.convert_model` would report
its use to its makers.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous import parallel
from vitreous.errors import ModelError
from vitreous.export.graph import Graph, Inputs, Precision
from vitreous.export.onnx_format import write_onnx
from vitreous.export.opened import OUTPUTS, Answers, Opened, input_names

HINT = "INFERENCE_PRECISION_HINT"
GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
GROUP_SIZE = 64
"""Numbers of a token that share a scale, for int8."""
NAMES = {"float": "f32", "f32": "f32", "bf16": "bf16", "bfloat16": "bf16"}


def has_bf16() -> bool:
    """Tell whether this processor multiplies bf16 natively: if not, OpenVINO silently ignores the request."""
    return parallel.has_bf16(torch.device("cpu"))


def compile_options(precision: Precision) -> dict[str, str | int]:
    """Return how OpenVINO has to be asked for this precision.

    int8 is for dense layers: what lies between them is computed in bf16 where the processor has it, 1.2 times
    as fast as float32 there."""
    if precision == "int8":
        return {HINT: "bf16" if has_bf16() else "f32", GROUP: GROUP_SIZE}
    return {HINT: "bf16" if precision == "bf16" else "f32"}


def write_openvino(
    made: tuple[Graph, Inputs], path: Path, facts: dict[str, Any], precision: Precision
) -> None:
    """Write OpenVINO's NAME.xml and NAME.bin, by way of ONNX; fp16 is how weights are stored."""
    if precision == "bf16" and not has_bf16():
        raise ModelError(
            "this processor has no bf16, so it can't be proven here: use --precision fp32 or int8"
        )
    import openvino  # pyright: ignore[reportMissingImports]

    between = path.with_suffix(".onnx")
    write_onnx(made, between, facts, "fp32")
    model = openvino.Core().read_model(str(between))
    if precision == "int8":
        _compress(model)
    model.set_rt_info(json.dumps(facts | {"compile": compile_options(precision)}), ["vitreous"])
    openvino.save_model(model, str(path), compress_to_fp16=precision == "fp16")
    for leftover in path.parent.glob(f"{between.name}*"):
        leftover.unlink()


def open_openvino(path: Path, threads: int | None = None) -> Opened:
    """Run OpenVINO's files on the CPU with the options they record; without `threads` also by its default.

    With one thread, each caller has its own: as many callers as there are cores compute at once."""
    import openvino  # pyright: ignore[reportMissingImports]

    core = openvino.Core()
    model = core.read_model(str(path))
    facts = json.loads(model.get_rt_info(["vitreous"]).astype(str))
    name, options = f"openvino {openvino.__version__.partition('-')[0]}", facts["compile"]
    if threads is not None:
        return Opened(name, facts, _Run(core.compile_model(model, "CPU", options | _on(threads)), facts))
    asked, usual = core.compile_model(model, "CPU", options), core.compile_model(model, "CPU")
    ways = [NAMES.get(each.get_property(HINT).to_string(), "another") for each in (asked, usual)]
    if ways[0] == ways[1] and GROUP not in options:
        return Opened(name, facts, _Run(asked, facts))
    unasked = Opened(ways[1], facts, _Run(usual, facts))
    return Opened(
        f"{name} in {facts['precision'] if GROUP in options else ways[0]}", facts, _Run(asked, facts), unasked
    )


def _on(threads: int) -> dict[str, Any]:
    """Return the options for this many threads, which the system may move from core to core."""
    streams = (os.cpu_count() or 1) if threads == 1 else 1
    return {"INFERENCE_NUM_THREADS": threads * streams, "NUM_STREAMS": streams, "ENABLE_CPU_PINNING": False}


class _Run:
    """A compiled model; each thread that calls it has a request of its own, as OpenVINO wants it."""

    def __init__(self, compiled: Any, facts: dict[str, Any]) -> None:
        self.compiled, self.names, self.own = compiled, input_names(facts), threading.local()

    def __call__(self, batch: Inputs) -> Answers:
        if not hasattr(self.own, "request"):
            self.own.request = self.compiled.create_infer_request()
        found = self.own.request.infer(dict(zip(self.names, batch.given(), strict=True)))
        return Answers(*(np.array(found[name]) for name in OUTPUTS))  # the next call would overwrite them


def _compress(model: Any) -> None:
    """Give every dense layer int8 weights with a scale for each output, which the runtime multiplies with
    activations that it rounds to int8 as they come, a scale for each group of a token."""
    from openvino import opset13 as ops  # pyright: ignore[reportMissingImports]

    for node in model.get_ops():
        if node.get_type_name() != "MatMul" or node.input_value(1).get_node().get_type_name() != "Constant":
            continue
        weights = node.input_value(1).get_node().get_data().astype(np.float32)
        transposed = node.get_attributes()["transpose_b"]
        scale = np.maximum(np.abs(weights).max(1 if transposed else 0, keepdims=True) / 127, 1e-12)
        whole = ops.constant(np.clip(np.rint(weights / scale), -127, 127).astype(np.int8))
        scaled = ops.multiply(ops.convert(whole, "f32"), ops.constant(scale.astype(np.float32)))
        node.input(1).replace_source_output(scaled.output(0))
