"""Which options to take where the user named none: from data and hardware, each with its reason. No torch.

The measurements behind these rules are in docs/train.md.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from typing import Any, Literal, TypeVar

from vitreous.config import Loss, Optimizer, Preprocessing, Schedule, TrainConfig
from vitreous.errors import OptionError
from vitreous.models import architecture, zoo
from vitreous.models.architecture import Architecture, ViTConfig

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the choices depend on."""

    images: int
    classes: int
    multilabel: bool
    size: tuple[int, int]
    """Median height and width of the training images."""
    channels: int
    device: str
    """cpu, cuda or mps."""
    bf16: bool
    """Whether the device multiplies bf16 natively."""
    cores: int
    """Processors for each rank."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that makes a run what it is; written down at its start, and read again when it goes on."""

    architecture: Architecture
    preprocessing: Preprocessing
    epochs: int | None
    """None: as many as fit into the time budget."""
    time_budget: float | None
    """Seconds."""
    batch_size: int
    optimizer: Optimizer
    lr: float
    schedule: Schedule
    layer_decay: float
    clip: float
    weight_decay: float
    ema: float
    loss: Loss
    label_smoothing: float
    augment: str
    precision: Literal["bf16", "float32"]
    reasons: dict[str, str] = field(default_factory=dict, compare=False)
    """Why each value was chosen that the user did not give."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; `from_json` reads them back."""
        return {**asdict(self), "architecture": architecture.to_dict(self.architecture)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Plan":
        """Build the plan that `to_json` wrote."""
        tuples: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values["preprocessing"].items()
        }
        return Plan(
            **{
                **values,
                "architecture": architecture.from_dict(values["architecture"]),
                "preprocessing": Preprocessing(**tuples),
            }
        )


class _Chooser:
    """Takes the user's value where there is one, and notes the reason where there is none."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def __call__(self, name: str, given: Value | None, otherwise: Value, reason: str) -> Value:
        if given is not None:
            return given
        self.reasons[name] = reason
        return otherwise


def choose(options: TrainConfig, facts: Facts, trained: Architecture | None = None) -> Plan:
    """Fill in what the user left open; the architecture too, unless a trained model has it already."""
    pick = _Chooser()
    budget = None if options.time_budget is None else seconds(options.time_budget)
    if budget is not None and options.epochs is not None:
        raise OptionError("--epochs and --time-budget both say when to end: give one of them")
    if trained is None:
        model = _architecture(options, facts, pick)
    else:
        model = trained if options.drop_path is None else replace(trained, drop_path=options.drop_path)
    many = f"{facts.images:,} images"
    batch = pick("batch_size", options.batch_size, _batch_size(facts), f"{many}: enough steps in an epoch")
    epochs = None
    if budget is None:
        epochs = pick("epochs", options.epochs, _epochs(facts), f"{many} on a {facts.device}")
    optimizer = options.optimizer or "adamw"
    lr = _learning_rate(options, optimizer, model, batch, pick)
    small = facts.images < 50_000
    plan = Plan(
        architecture=model,
        preprocessing=Preprocessing(
            image_size=model.image_size, mean=(0.5,) * facts.channels, std=(0.5,) * facts.channels
        ),
        epochs=epochs,
        time_budget=budget,
        batch_size=batch,
        optimizer=optimizer,
        lr=lr,
        schedule=options.schedule or "cosine",
        layer_decay=1.0 if options.layer_decay is None else options.layer_decay,
        clip=1.0 if options.clip is None else options.clip,
        weight_decay=pick(
            "weight_decay",
            options.weight_decay,
            0.0 if optimizer == "sgd" else 0.05,
            "DeiT's, from scratch",
        ),
        ema=pick(
            "ema", options.ema, 0.99 if small else 0.999, "averages over the last hundred steps or more"
        ),
        loss=pick(
            "loss",
            options.loss,
            "sigmoid" if facts.multilabel else "softmax",
            "several labels an image" if facts.multilabel else "one label an image",
        ),
        label_smoothing=pick(
            "label_smoothing",
            options.label_smoothing,
            0.0 if facts.multilabel else 0.1,
            "against overconfidence",
        ),
        augment=_augment(options, facts, pick),
        precision=_precision(options, facts, model, pick),
    )
    return replace(plan, reasons=pick.reasons)


def _learning_rate(
    options: TrainConfig, optimizer: Optimizer, model: Architecture, batch: int, pick: _Chooser
) -> float:
    if optimizer == "sgd":
        return pick(
            "lr", options.lr, 0.03 * sqrt(batch / 256), "the paper's range for SGD, by the batch's root"
        )
    narrow = isinstance(model, ViTConfig) and model.width < 128
    rate = min(3e-3, (6e-3 if narrow else 1e-3) * sqrt(batch / 256))
    why = f"{'6e-3, a narrow model,' if narrow else '1e-3'} at batch 256, by the batch's root, at most 3e-3"
    return pick("lr", options.lr, rate, why)


def _architecture(options: TrainConfig, facts: Facts, pick: _Chooser) -> Architecture:
    changes: dict[str, Any] = {"num_classes": facts.classes, "in_channels": facts.channels}
    if options.image_size is not None:
        changes["image_size"] = architecture.pair(options.image_size, "image size")
    if options.patch_size is not None:
        changes["patch_size"] = architecture.pair(options.patch_size, "patch size")
    if options.drop_path is not None:
        changes["drop_path"] = options.drop_path
    if options.model is not None:
        return zoo.get_config(options.model, **changes)
    if "patch_size" not in changes:
        changes["patch_size"] = _patch_size(changes.get("image_size", facts.size), facts, pick)
    if "image_size" not in changes:
        changes["image_size"] = _image_size(facts, changes["patch_size"], pick)
    width, depth, heads = _size(facts)
    shape = {"width": width, "depth": depth, "heads": heads, "mlp_width": 4 * width}
    pick("model", None, None, f"{facts.images:,} images on a {facts.device}: {depth} layers of width {width}")
    return ViTConfig(**{**shape, "pooling": "gap", "class_token": False, **changes})


def _patch_size(size: tuple[int, int], facts: Facts, pick: _Chooser) -> tuple[int, int]:
    """Aim at some 50 to 200 patches: fewer see too little, more cost too much."""
    side = min(size)
    patch = 1 if side < 8 else 2 if side < 24 else 4 if side < 48 else 8 if side < 96 else 16
    return pick("patch_size", None, (patch, patch), f"images of {size[0]}x{size[1]}")


def _image_size(facts: Facts, patch: tuple[int, int], pick: _Chooser) -> tuple[int, int]:
    height, width = facts.size
    most = 224 if facts.device == "cuda" else 128
    if min(height, width) <= most:
        fitted = (max(1, round(height / patch[0])) * patch[0], max(1, round(width / patch[1])) * patch[1])
        if max(fitted) <= 1.5 * min(fitted):
            return pick("image_size", None, fitted, f"the images' own size, {height}x{width}")
    side = min(most, min(height, width))
    fitted = (max(1, side // patch[0]) * patch[0], max(1, side // patch[1]) * patch[1])
    return pick("image_size", None, fitted, f"images of {height}x{width} on a {facts.device}")


def _size(facts: Facts) -> tuple[int, int, int]:
    """Return width, depth and heads."""
    if facts.device == "cpu":
        return (64, 4, 4) if facts.images < 20_000 else (96, 6, 4)
    if facts.images < 20_000:
        return 192, 9, 6
    return (256, 9, 8) if facts.images < 200_000 else (384, 12, 6)


def _batch_size(facts: Facts) -> int:
    if facts.images < 10_000:
        return 64
    if facts.device == "cpu":
        return 128
    return 256 if facts.images < 20_000 else 512 if facts.images < 200_000 else 1024


def _epochs(facts: Facts) -> int:
    views = 75_000 if facts.device == "cpu" else 10_000_000
    return min(300, max(5, round(views / facts.images)))


def _augment(options: TrainConfig, facts: Facts, pick: _Chooser) -> str:
    if min(facts.size) < 16:
        size = f"{facts.size[0]}x{facts.size[1]}"
        return pick("augment", options.augment, "mix", f"images of {size} are too small to crop")
    if facts.device == "cpu":
        return pick("augment", options.augment, "light", "few epochs on a CPU")
    return pick("augment", options.augment, "medium", f"{facts.images:,} images, many epochs")


def _precision(
    options: TrainConfig, facts: Facts, model: Architecture, pick: _Chooser
) -> Literal["bf16", "float32"]:
    if options.precision != "auto":
        return options.precision
    if not facts.bf16:
        return pick("precision", None, "float32", f"the {facts.device} has no bf16 arithmetic")
    width = model.width if isinstance(model, ViTConfig) else model.channels[-1]
    if facts.device == "cpu" and width < 192:
        return pick("precision", None, "float32", f"width {width} is too small to gain from bf16 on a CPU")
    return pick("precision", None, "bf16", f"the {facts.device} has bf16 arithmetic")


def seconds(text: str) -> float:
    """Read a time such as `90s`, `10m`, `1.5h`; a bare number is seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        found = float(number) * units[unit]
    except ValueError:
        found = 0.0
    if not 0.0 < found < float("inf"):
        raise OptionError(
            f"time {text!r} is not understood: give a number and s, m, h or d, such as 90s or 10m"
        )
    return found
