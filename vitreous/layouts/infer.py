"""From tensors under our names to the configuration of the model that they belong to.

Keys and shapes tell most of it. What they can't (heads, the kind of GELU, a grid's aspect) comes as hints
from the layout and its documents; what nobody knows is asked for.
"""

import re
from collections.abc import Mapping
from math import isqrt
from typing import Any

from torch import Tensor

from vitreous.errors import LayoutError
from vitreous.models import zoo
from vitreous.models.architecture import Architecture, ResNetConfig, ViTConfig
from vitreous.models.fields import pair, shown

AXES = {"reg_token": 3, "pos_embed": 3, "head.weight": 2, "pre_logits.weight": 2, "cls_token": 3}


def architecture(tensors: Mapping[str, Tensor], hints: Mapping[str, Any], notes: list[str]) -> Architecture:
    """Return the configuration of these tensors; `hints` are fields that are known from elsewhere."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    known = {name: value for name, value in hints.items() if value is not None}
    return _vit(shapes, known, notes) if "patch_embed.proj.weight" in shapes else resnet(shapes, known)


def resnet(shapes: Mapping[str, tuple[int, ...]], hints: Mapping[str, Any], prefix: str = "") -> ResNetConfig:
    """Return the configuration of a BiT ResNet, or of a hybrid's trunk under `prefix`."""
    stages = _count(shapes, rf"{prefix}stages\.(\d+)\.")
    layers = tuple(_count(shapes, rf"{prefix}stages\.{i}\.blocks\.(\d+)\.") for i in range(stages))
    root = f"{prefix}stem.conv.weight" if layers else f"{prefix}conv.weight"
    if root not in shapes:
        raise LayoutError(
            "the weights are of no model that vitreous knows: they have no patches and no root convolution"
        )
    channels = _shape(shapes, root, 4)[0]
    before = root.replace("conv.weight", "norm.weight") not in shapes
    known: dict[str, Any] = {
        "layers": layers,
        "in_channels": shapes[root][1],
        "num_classes": shapes.get(f"{prefix}head.fc.weight", (0,))[0],
        "preactivation": before,
        "same_padding": not before,
    }
    factor = channels // 64 if channels % 64 == 0 else 1
    known |= {"stem_width": channels // factor, "width_factor": factor, **hints}
    return ResNetConfig(**known)


def _vit(shapes: Mapping[str, tuple[int, ...]], hints: dict[str, Any], notes: list[str]) -> ViTConfig:
    embed = shapes["patch_embed.proj.weight"]
    if len(embed) not in (4, 5):
        raise LayoutError(f"patch_embed.proj.weight has the shape {list(embed)}: expected 4 axes")
    for name, axes in AXES.items():
        if name in shapes:
            _shape(shapes, name, axes)
    hybrid = any(name.startswith("patch_embed.backbone.") for name in shapes)
    trunk_hints = {"num_classes": 0, **hints.pop("stem", {})}
    stem = resnet(shapes, trunk_hints, "patch_embed.backbone.") if hybrid else None
    depth = _count(shapes, r"blocks\.(\d+)\.")
    if depth == 0:
        raise LayoutError("the weights have patches but no blocks.0: this is not a Vision Transformer")
    inner = _shape(shapes, "blocks.0.mlp.fc2.weight", 2)[1]
    gated = _shape(shapes, "blocks.0.mlp.fc1.weight", 2)[0] == 2 * inner
    width = embed[0]
    tokens: dict[str, Any] = {
        "class_token": "cls_token" in shapes,
        "distilled": "dist_token" in shapes,
        "registers": shapes.get("reg_token", (1, 0))[1],
    }
    config: dict[str, Any] = {
        "patch_size": embed[-2:],
        "in_channels": stem.in_channels if stem else embed[1],
        "stem": stem,
        "width": width,
        "depth": depth,
        "mlp_width": inner,
        "activation": "swiglu" if gated else "gelu",
        "qkv_bias": "blocks.0.attn.qkv.bias" in shapes,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in shapes else None,
        "pre_logits": shapes.get("pre_logits.weight", (None,))[0],
        "norm_after_pool": "fc_norm.weight" in shapes,
        "num_classes": shapes.get("head.weight", (0,))[0],
        "pooling": _pooling(shapes, width, tokens["class_token"]),
        **tokens,
    }
    if gated:
        hints.pop("activation", None)
    elif (activation := hints.get("activation", "gelu")) not in ("gelu", "gelu_tanh"):
        raise LayoutError(
            f"the activation {shown(activation)} can't be computed: gelu, its tanh form and SwiGLU can be"
        )
    if "heads" not in hints:
        hints["heads"] = _heads(width, depth, inner, notes)
    config |= hints
    step = [side * (stem.stride if stem else 1) for side in embed[-2:]]
    return ViTConfig(**config | _grid(shapes, config, step, sum(tokens.values())))


def _pooling(shapes: Mapping[str, tuple[int, ...]], width: int, class_token: bool) -> str:
    if "attn_pool.latent" in shapes:
        return "map"
    if "fc_norm.weight" in shapes or not class_token:
        return "gap"
    first = shapes.get("pre_logits.weight") or shapes.get("head.weight") or (0, 0)
    return "cls_gap" if first[1] == 2 * width else "cls"


def _heads(width: int, depth: int, mlp_width: int, notes: list[str]) -> int:
    """Return the number of heads, which weights don't tell: that of all published models of this shape."""
    known = {
        config.heads
        for config in zoo.VARIANTS.values()
        if config.kind == "vit"
        and (config.width, config.depth, config.mlp_width) == (width, depth, mlp_width)
    }
    if len(known) != 1:
        raise LayoutError(
            f"the number of heads of a model of width {width} can't be read from its weights: "
            "give it (heads=N, --heads N)"
        )
    heads = known.pop()
    notes.append(f"heads: {heads}, as in every published model of this shape; give heads if yours differs")
    return heads


def _grid(
    shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], step: list[int], prefix: int
) -> dict[str, Any]:
    """Return the fields that follow from the position embeddings: kind, image size, positioned prefix."""
    size = config.get("image_size")
    size = pair(size, "image_size") if size else None
    if "pos_embed" not in shapes:
        if "pos_embed_y" in shapes:
            rows, columns = (_shape(shapes, f"pos_embed_{axis}", 3)[1] for axis in "yx")
            return {"positions": "learned2d", "image_size": (rows * step[0], columns * step[1])}
        if size is None:
            raise LayoutError(
                "the image size can't be read from weights without position embeddings: give image_size"
            )
        relative = "blocks.0.attn.offset_embed" in shapes
        return {"positions": config.get("positions", "relative" if relative else "none"), "image_size": size}
    length = shapes["pos_embed"][1]
    for placed in dict.fromkeys((prefix, 1, 0)):
        count = length - placed
        placed = {} if placed == prefix else {"positioned_prefix": placed}
        if size is not None and count == (size[0] // step[0]) * (size[1] // step[1]):
            return {"image_size": size, **placed}
        side = isqrt(max(count, 0))
        if side and side * side == count:
            return {"image_size": (side * step[0], side * step[1]), **placed}
    raise LayoutError(
        f"{length} position embeddings make no square grid: give the image size (image_size=, --image-size)"
    )


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str, axes: int) -> tuple[int, ...]:
    """Return the shape of a tensor that has to be there, and to have this many axes."""
    if name not in shapes:
        raise LayoutError(f"the weights lack {name}")
    if len(shapes[name]) != axes:
        raise LayoutError(f"{name} has the shape {list(shapes[name])}: expected {axes} axes")
    return shapes[name]


def _count(shapes: Mapping[str, Any], pattern: str) -> int:
    """Return how many numbered parts there are; refuse numbers with gaps."""
    found = {match[1] for name in shapes if (match := re.match(pattern, name))}
    if any(len(number) > 6 or int(number) >= len(found) for number in found):
        raise LayoutError(
            f"the weights lack a layer: numbers up to {max(found, key=len)[:20]}, {len(found)} layers"
        )
    return len(found)
