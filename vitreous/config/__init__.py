"""What people can set, as frozen dataclasses; a field's docstring is its `--help`. No torch, no work done.

An option that is None is chosen for the user and written `auto`, unless its metadata is `NOT_GIVEN`.
"""

from vitreous.config.choices import (
    NOT_GIVEN,
    Balance,
    Compile,
    Fit,
    Inference,
    Initialization,
    Interpolation,
    Layout,
    Loss,
    Optimizer,
    Precision,
    ReproduceScale,
    Resize,
    Runtime,
    Schedule,
)
from vitreous.config.groups import GROUPS
from vitreous.config.images import (
    LEAST_SPREAD,
    MOST_PIXELS,
    MOST_SIDE,
    MOST_SPREAD,
    Augment,
    Preprocessing,
    is_number,
)
from vitreous.config.training import DistillConfig, FinetuneConfig, PretrainConfig, TrainConfig
from vitreous.config.verbs import (
    BenchConfig,
    ConvertConfig,
    EvaluateConfig,
    ExportConfig,
    InspectConfig,
    PredictConfig,
    ProbeConfig,
    ReproduceConfig,
)

__all__ = [
    "Augment",
    "Balance",
    "BenchConfig",
    "Compile",
    "ConvertConfig",
    "DistillConfig",
    "EvaluateConfig",
    "ExportConfig",
    "FinetuneConfig",
    "Fit",
    "GROUPS",
    "Inference",
    "Initialization",
    "InspectConfig",
    "Interpolation",
    "LEAST_SPREAD",
    "Layout",
    "Loss",
    "MOST_PIXELS",
    "MOST_SIDE",
    "MOST_SPREAD",
    "NOT_GIVEN",
    "Optimizer",
    "Precision",
    "PredictConfig",
    "Preprocessing",
    "PretrainConfig",
    "ProbeConfig",
    "ReproduceConfig",
    "ReproduceScale",
    "Resize",
    "Runtime",
    "Schedule",
    "TrainConfig",
    "is_number",
]
