"""The words that options can be, and how a field says that it need not be given."""

from dataclasses import field
from typing import Any, Literal

Resize = Literal["cover", "exact", "pad", "none"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Optimizer = Literal["adamw", "adam", "sgd", "muon"]
Schedule = Literal["cosine", "linear", "rsqrt", "constant"]
Precision = Literal["bf16", "float32"]
Runtime = Literal["auto", "torch", "onnxruntime", "openvino"]
Inference = Literal["auto", "float32", "bf16", "int8"]
Balance = Literal["none", "loss", "sampler"]
Fit = Literal["cover", "pad", "stretch"]
Compile = Literal["none", "blocks", "whole"]
Loss = Literal["softmax", "sigmoid"]
Initialization = Literal["paper", "mimetic", "torch"]
Layout = Literal["vitreous", "timm", "hf", "google", "torchvision"]
ReproduceScale = Literal["quick", "gpu", "paper"]

NOT_GIVEN: dict[str, Any] = {"auto": False}
"""Metadata of a field whose None means that there is no such thing, rather than one that is chosen."""


def unused(why: str, *, default: Any = None) -> Any:
    """Return a field for an inherited option that a verb has no use for: it is not shown, and is refused."""
    return field(default=default, metadata={"unused": why})
