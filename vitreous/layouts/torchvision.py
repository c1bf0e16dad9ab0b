"""torchvision's `VisionTransformer` state dict: attention under `in_proj`, the MLP's layers by number."""

from typing import Any

from vitreous.config import Preprocessing
from vitreous.layouts import infer
from vitreous.layouts.containers import Container, Hints
from vitreous.layouts.names import IMAGENET, NoPlaceError, Rules, pooled, refuse, rename
from vitreous.models.architecture import Architecture
from vitreous.models.weights import Weights

IN: Rules = [
    (r"^class_token$", "cls_token"),
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^encoder\.pos_embedding$", "pos_embed"),
    (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.(?:0|linear_1)\.", ".mlp.fc1."),
    (r"\.mlp\.(?:3|linear_2)\.", ".mlp.fc2."),
    (r"^encoder\.ln\.", "norm."),
    (r"^heads\.pre_logits\.", "pre_logits."),
    (r"^heads\.head\.", "head."),
]
OUT: Rules = [
    (r"^cls_token$", "class_token"),
    (r"^patch_embed\.proj\.", "conv_proj."),
    (r"^pos_embed$", "encoder.pos_embedding"),
    (r"^blocks\.(\d+)\.", r"encoder.layers.encoder_layer_\1."),
    (r"\.norm([12])\.", r".ln_\1."),
    (r"\.attn\.qkv\.", ".self_attention.in_proj_"),
    (r"\.attn\.proj\.", ".self_attention.out_proj."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.3."),
    (r"^norm\.", "encoder.ln."),
    (r"^(pre_logits|head)\.", r"heads.\1."),
]


def matches(container: Container) -> bool:
    """Recognise the layout by its keys."""
    return "conv_proj.weight" in container.tensors and "encoder.pos_embedding" in container.tensors


def read(container: Container, hints: Hints) -> Weights:
    """Read a torchvision state dict."""
    notes: list[str] = []
    tensors = rename(container.tensors, IN)
    config = infer.architecture(tensors, hints, notes)
    size = config.image_size
    preprocessing = Preprocessing(
        image_size=size,
        resize_size=(size[0] * 8 // 7, size[1] * 8 // 7),
        interpolation="bilinear",
        **IMAGENET,
    )
    notes.append("preprocessing: torchvision's for IMAGENET1K_V1 (the file has none)")
    return Weights(config=config, tensors=tensors, preprocessing=preprocessing, notes=notes)


def arguments(config: Architecture) -> dict[str, Any]:
    """Return the arguments of torchvision's `VisionTransformer` that make it this model."""
    assert config.kind == "vit"  # `write` has refused everything else
    return {
        "image_size": config.image_size[0],
        "patch_size": config.patch_size[0],
        "num_layers": config.depth,
        "num_heads": config.heads,
        "hidden_dim": config.width,
        "mlp_dim": config.mlp_width,
        "num_classes": config.num_classes,
        "representation_size": config.pre_logits,
    }


def write(weights: Weights) -> Container:
    """Return a torchvision state dict."""
    config = weights.config
    if config.kind != "vit":
        raise NoPlaceError("torchvision", "BiT")
    refuse(
        "torchvision",
        {
            "registers": config.registers > 0,
            "a distillation token": config.distilled,
            "LayerScale": config.layer_scale is not None,
            "a hybrid's trunk": config.stem is not None,
            pooled(config.pooling): config.pooling != "cls",
            f"{config.positions} positions": config.positions != "learned",
            "a class token without a position": config.placed_prefix != config.prefix,
            f"the activation {config.activation}": config.activation != "gelu",
            "attention without biases": not config.qkv_bias,
            "video": config.frames is not None,
            "images of other than 3 channels": config.in_channels != 3,
            "a model without head": config.num_classes == 0,
            "images or patches that are not square": config.grid[0] != config.grid[1]
            or config.patch_size[0] != config.patch_size[1],
        },
    )
    return Container(tensors=rename(weights.tensors, OUT))
