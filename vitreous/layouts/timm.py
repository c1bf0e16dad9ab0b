"""timm's state dicts, whose names are ours: ViT, DeiT, DINOv2, MAE (their own files too), hybrids, BiT.

A folder has `config.json` with the architecture's name, its arguments, preprocessing and class names, as timm
writes it (`save_for_hf`) and reads it (`create_model("local-dir:…")`).
"""

from dataclasses import fields, replace
from math import floor
from operator import truediv
from typing import Any, get_args

import torch
from torch import Tensor

from vitreous.config import Interpolation, Preprocessing, is_number
from vitreous.errors import LayoutError
from vitreous.layouts import infer
from vitreous.layouts.containers import Container, Hints
from vitreous.layouts.names import IMAGENET, Rules, assume, drop, listed, refuse, rename
from vitreous.models import zoo
from vitreous.models.architecture import Architecture, ResNetConfig, ViTConfig
from vitreous.models.fields import shown
from vitreous.models.weights import Weights

IN: Rules = [
    (r"^register_tokens$", "reg_token"),  # DINOv2's repository
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # its blocks in chunks, for FSDP
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"^pre_logits\.fc\.", "pre_logits."),  # timm before 0.6
]
UNUSED = r"mask_token$|decoder_"  # of MAE's and DINOv2's pre-training
LEAST_CROP = 0.05
CROPS = ("center", "squash")


def matches(container: Container) -> bool:
    """Recognise the layout by its keys."""
    names = container.tensors
    return "patch_embed.proj.weight" in names or "stem.conv.weight" in names


def read(container: Container, hints: Hints) -> Weights:
    """Read a timm state dict."""
    notes: list[str] = []
    kept, unused = drop(container.tensors, UNUSED)
    if unused:
        notes.append(f"left out: {len(unused)} tensors of pre-training ({unused[0]}, …)")
    tensors = rename(kept, IN)
    document = container.document("config.json")
    config = infer.architecture(tensors, _hints(document) | hints, notes)
    preprocessing = _preprocessing(document.get("pretrained_cfg"), config, tensors, notes)
    labels = _labels(document, config.num_classes, notes)
    return Weights(config=config, tensors=tensors, preprocessing=preprocessing, labels=labels, notes=notes)


def write(weights: Weights) -> Container:
    """Return a timm state dict, with the `config.json` from which timm builds the model."""
    weights = _fold_class_position(weights)
    config = weights.config
    if config.kind == "vit":
        refuse(
            "timm",
            {
                f"{config.positions} positions": config.positions not in ("learned", "none"),
                f"{config.pooling} pooling": config.pooling == "cls_gap",
                "a pre_logits layer": config.pre_logits is not None,
                "video": config.frames is not None,
                "a distillation token without a position": config.distilled
                and config.placed_prefix != config.prefix,
                "positions on some registers": config.placed_prefix not in (0, config.prefix),
            },
        )
    name, arguments = architecture(config)
    document: dict[str, Any] = {
        "architecture": name,
        "num_classes": config.num_classes,
        "num_features": config.width,
        "pretrained_cfg": _pretrained(weights),
        **({"model_args": arguments} if arguments else {}),
        **({"label_names": weights.labels} if weights.labels else {}),
    }
    return Container(tensors=dict(weights.tensors), documents={"config.json": document})


def _hints(document: dict[str, Any]) -> Hints:
    arguments = _object(document, "model_args")
    variant = zoo.VARIANTS.get(str(document.get("architecture", "")).split(".")[0])
    hints: Hints = {}
    if variant is not None and variant.kind == "vit":
        hints = {"heads": arguments.get("num_heads", variant.heads)}
        whole = _object(document, "pretrained_cfg").get("input_size")
        size = arguments.get("img_size") or (whole[-2:] if isinstance(whole, list) else None)
        hints["image_size"] = size or None
        hints["activation"] = arguments.get("act_layer")
        pool = arguments.get("global_pool", document.get("global_pool"))
        if pool in ("avg", "map"):
            hints["pooling"] = {"avg": "gap", "map": "map"}[pool]
    return hints


def _object(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _labels(document: dict[str, Any], classes: int, notes: list[str]) -> list[str] | None:
    names = document.get("label_names") or _object(document, "pretrained_cfg").get("label_names")
    if not isinstance(names, list):
        return None
    if len(names) != classes:
        notes.append(f"labels: left out, {len(names):,} names for {classes:,} classes")
        return None
    return [str(name) for name in names]


def architecture(config: Architecture) -> tuple[str, dict[str, Any]]:
    """Return the timm model to start from, and the arguments that make it this one."""
    if config.kind == "resnet":
        depth = next((depth for depth, layers in zoo.RESNETS.items() if layers == config.layers), None)
        name = f"resnetv2_{depth}x{config.width_factor}_bit"
        if depth is None or name not in zoo.VARIANTS:
            raise LayoutError(f"the timm layout has no place for a ResNet of stages {list(config.layers)}")
        changed = config.stem_width != 64
        channels = [config.stem_width * 4 * 2**stage for stage in range(len(config.layers))]
        arguments: dict[str, Any] = {"stem_chs": config.stem_width, "channels": channels} if changed else {}
        return name, arguments | ({} if config.in_channels == 3 else {"in_chans": config.in_channels})
    classes = config.num_classes
    for name, variant in zoo.VARIANTS.items():
        if variant.kind == "vit" and _same(variant, config):
            return name, {}
    return _nearest(config), {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size) if config.stem is None else config.patch_size[0],
        "in_chans": config.in_channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": config.mlp_width * (2 if config.activation == "swiglu" else 1) / config.width,
        "qkv_bias": config.qkv_bias,
        "init_values": config.layer_scale,
        "class_token": config.class_token,
        "reg_tokens": config.registers,
        "no_embed_class": config.prefix > 0 and config.placed_prefix == 0,
        "pos_embed": "learn" if config.positions == "learned" else "none",
        "global_pool": {"cls": "token", "gap": "avg", "map": "map"}[config.pooling],
        **({"fc_norm": config.norm_after_pool} if config.pooling == "gap" else {}),
        **({"act_layer": "gelu_tanh"} if config.activation == "gelu_tanh" else {}),
        **({} if classes else {"num_classes": 0}),
    }


def _same(variant: ViTConfig, config: ViTConfig) -> bool:
    """Tell whether timm's variant computes the same, apart from the head, epsilons and dropout."""
    aside = {"num_classes", "norm_eps", "stem", "layer_scale"}
    aside |= {"dropout", "attention_dropout", "embedding_dropout", "drop_path", "patch_drop"}
    if (variant.layer_scale is None) != (config.layer_scale is None) or (variant.stem is None) != (
        config.stem is None
    ):
        return False
    if variant.stem and config.stem and not _same_trunk(variant.stem, config.stem):
        return False
    names = [field.name for field in fields(ViTConfig) if field.name not in aside]
    return all(getattr(variant, name) == getattr(config, name) for name in names)


def _same_trunk(ours: ResNetConfig, other: ResNetConfig) -> bool:
    shape = ("layers", "width_factor", "stem_width", "preactivation", "same_padding", "groups")
    return all(getattr(ours, name) == getattr(other, name) for name in shape)


def _nearest(config: ViTConfig) -> str:
    if config.stem is not None:
        for name, variant in zoo.VARIANTS.items():
            if variant.kind == "vit" and variant.stem and _same_trunk(variant.stem, config.stem):
                return name
        raise LayoutError(f"the timm layout has no place for a trunk of stages {list(config.stem.layers)}")
    if config.distilled:
        return "deit_base_distilled_patch16_224"
    return "vit_giant_patch14_dinov2" if config.activation == "swiglu" else "vit_base_patch16_224"


def _preprocessing(
    values: Any, config: Architecture, tensors: dict[str, Tensor], notes: list[str]
) -> Preprocessing:
    size = config.image_size
    if not isinstance(values, dict) or "mean" not in values:
        facebook = "blocks.0.ls1.gamma" in tensors or "dist_token" in tensors or "fc_norm.weight" in tensors
        statistics = IMAGENET if facebook else {"mean": (0.5,) * 3, "std": (0.5,) * 3}
        notes.append(
            f"preprocessing: assumed, mean {statistics['mean'][0]}, std {statistics['std'][0]}, "
            "crop 0.9, bicubic (a bare state dict has none)"
        )
        return _cropped(size, 0.9, resize="cover", **statistics)
    crop = values.get("crop_pct") or 0.875
    if not is_number(crop) or not LEAST_CROP <= crop <= 1:
        raise LayoutError(f"crop_pct {shown(crop)} can't be used: expected {LEAST_CROP} to 1")
    mode, interpolation = values.get("crop_mode") or "center", values.get("interpolation") or "bicubic"
    assume(
        notes,
        {
            f"bicubic (interpolation {shown(interpolation)} is not supported)": interpolation
            not in get_args(Interpolation),
            f"the centre cropped (crop_mode {shown(mode)} is not supported)": mode not in CROPS,
        },
    )
    return _cropped(
        size,
        crop,
        resize="exact" if mode == "squash" else "cover",
        interpolation=interpolation if interpolation in get_args(Interpolation) else "bicubic",
        mean=listed(values["mean"]),
        std=listed(values.get("std")),
    )


def _cropped(size: tuple[int, int], crop: float, **options: Any) -> Preprocessing:
    return Preprocessing(
        image_size=size, resize_size=(floor(size[0] / crop), floor(size[1] / crop)), **options
    )


def _pretrained(weights: Weights) -> dict[str, Any]:
    config, preprocessing = weights.config, weights.preprocessing
    classifiers = list(config.classifiers)
    document: dict[str, Any] = {
        "input_size": [config.in_channels, *config.image_size],
        "fixed_input_size": config.has_attention,
        "num_classes": config.num_classes,
        # timm takes all filters to be for RGB and adapts even those that fit: it must find no others
        "first_conv": config.first_convolution if config.in_channels == 3 else None,
        "classifier": classifiers[0] if len(classifiers) == 1 else classifiers,
    }
    if preprocessing is not None:
        resize = preprocessing.resize_size or preprocessing.image_size
        document |= {
            # timm divides by it and rounds down: a hair less keeps the size exact
            "crop_pct": min(map(truediv, preprocessing.image_size, resize)) * (1 - 1e-9),
            "crop_mode": "squash" if preprocessing.resize == "exact" else "center",
            "interpolation": preprocessing.interpolation,
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
        }
    return document


def _fold_class_position(weights: Weights) -> Weights:
    """Add the class token's position to the token itself: timm with registers has no place for it."""
    config = weights.config
    if config.kind != "vit" or (config.registers, config.placed_prefix) != (
        config.prefix - 1,
        1,
    ):
        return weights
    if config.registers == 0:
        return weights
    positions = weights.tensors["pos_embed"]
    with torch.no_grad():
        token = weights.tensors["cls_token"] + positions[:, :1]
    tensors = weights.tensors | {"cls_token": token, "pos_embed": positions[:, 1:].contiguous()}
    return replace(weights, config=replace(config, positioned_prefix=0), tensors=tensors)
