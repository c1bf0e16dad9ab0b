"""Hugging Face folders: ViT, DeiT, DINOv2 (with registers) and BiT, with the names of transformers 4 and 5.

Written as transformers 5 writes them: `config.json`, `preprocessor_config.json`, and `model.safetensors` with
the names of version 4, which every version reads.
"""

import re
from math import isclose
from typing import Any

import torch
from torch import Tensor

from vitreous.config import Interpolation, Preprocessing, is_number
from vitreous.errors import LayoutError
from vitreous.layouts import infer
from vitreous.layouts.containers import Container, Hints
from vitreous.layouts.names import IMAGENET, Rules, assume, drop, fuse, listed, pooled, refuse, rename, split
from vitreous.models.architecture import Architecture, ResNetConfig, ViTConfig
from vitreous.models.fields import shown
from vitreous.models.weights import Weights

IN: Rules = [
    (r"^(?:vit|deit|dinov2|dinov2_with_registers|bit)\.", ""),
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.distillation_token$", "dist_token"),
    (r"^embeddings\.register_tokens$", "reg_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^(?:encoder\.layer|layers)\.(\d+)\.", r"blocks.\1."),
    (r"\.attention\.(?:attention\.)?(?:query|q_proj)\.", ".attn.q."),
    (r"\.attention\.(?:attention\.)?(?:key|k_proj)\.", ".attn.k."),
    (r"\.attention\.(?:attention\.)?(?:value|v_proj)\.", ".attn.v."),
    (r"\.attention\.(?:output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.(?:intermediate\.dense|mlp\.weights_in)\.", ".mlp.fc1."),
    (r"\.(?:output\.dense|mlp\.weights_out|mlp\.down_proj)\.", ".mlp.fc2."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
    (r"^layernorm\.", "norm."),
    (r"^pooler\.dense\.", "pre_logits."),
    (r"^(?:cls_)?classifier\.(weight|bias)", r"head.\1"),
    (r"^distillation_classifier\.", "head_dist."),
    # BiT
    (r"^embedder\.convolution\.", "stem.conv."),
    (r"^encoder\.stages\.(\d+)\.layers\.(\d+)\.", r"stages.\1.blocks.\2."),
    (r"^classifier\.1\.", "head.fc."),
]
OUT: Rules = [
    (r"^(cls_token)$", r"embeddings.\1"),
    (r"^dist_token$", "embeddings.distillation_token"),
    (r"^reg_token$", "embeddings.register_tokens"),
    (r"^pos_embed$", "embeddings.position_embeddings"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
    (r"^blocks\.(\d+)\.", r"encoder.layer.\1."),
    (r"\.attn\.q\.", ".attention.attention.query."),
    (r"\.attn\.k\.", ".attention.attention.key."),
    (r"\.attn\.v\.", ".attention.attention.value."),
    (r"\.attn\.proj\.", ".attention.output.dense."),
    (r"\.ls([12])\.gamma$", r".layer_scale\1.lambda1"),
    (r"^norm\.", "layernorm."),
    (r"^pre_logits\.", "pooler.dense."),
]
VIT_OUT: Rules = [
    (r"\.norm1\.", ".layernorm_before."),
    (r"\.norm2\.", ".layernorm_after."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
]
GATED_OUT: Rules = [(r"\.mlp\.fc1\.", ".mlp.weights_in."), (r"\.mlp\.fc2\.", ".mlp.weights_out.")]
BIT_OUT: Rules = [
    (r"^stem\.conv\.", "bit.embedder.convolution."),
    (r"^stages\.(\d+)\.blocks\.(\d+)\.", r"bit.encoder.stages.\1.layers.\2."),
    (r"^norm\.", "bit.norm."),
    (r"^head\.fc\.(weight|bias)", r"classifier.1.\1"),
]
EXACT = ("gelu", "gelu_python")
TANH = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_tanh")
RESAMPLE: list[Interpolation] = ["nearest", "lanczos", "bilinear", "bicubic"]  # Pillow's numbers 0 to 3
UNUSED = r"(?:\w+\.)?embeddings\.mask_token$|decoder\."


def matches(container: Container) -> bool:
    """Recognise the layout by its keys."""
    pattern = r"(?:\w+\.)?(?:embeddings\.patch_embeddings\.projection|embedder\.convolution)\.weight"
    return any(re.fullmatch(pattern, name) for name in container.tensors)


def read(container: Container, hints: Hints) -> Weights:
    """Read a Hugging Face folder (or its weights alone)."""
    notes: list[str] = []
    kept, unused = drop(container.tensors, UNUSED)
    if unused:
        notes.append(f"left out: {len(unused)} tensors of pre-training ({unused[0]}, …)")
    tensors = rename(kept, IN)
    tensors = fuse(tensors, ["attn.q", "attn.k", "attn.v"], "attn.qkv")
    tensors = fuse(tensors, ["mlp.gate_proj", "mlp.up_proj"], "mlp.fc1")
    document = container.document("config.json")
    if "dist_token" in tensors and "head_dist.weight" not in tensors and "head.weight" in tensors:
        # Only the class token is read: this one acts as a register.
        tensors["reg_token"] = tensors.pop("dist_token")
    if "head.fc.weight" in tensors:
        tensors["head.fc.weight"] = tensors["head.fc.weight"][:, :, None, None]
    config = infer.architecture(tensors, _hints(document) | hints, notes)
    processor = container.document("preprocessor_config.json")
    if processor:
        preprocessing = _read_processor(processor, config.image_size, notes)
    else:
        preprocessing = _assume_processor(config, notes)
    return Weights(
        config=config,
        tensors=tensors,
        preprocessing=preprocessing,
        labels=_read_labels(document, config.num_classes),
        notes=notes,
    )


def write(weights: Weights) -> Container:
    """Return the content of a Hugging Face folder."""
    config = weights.config
    if config.kind == "resnet":
        tensors, document = _write_bit(weights, config)
    else:
        tensors, document = _write_vit(weights, config)
    if weights.labels:
        document["id2label"] = {str(row): name for row, name in enumerate(weights.labels)}
        document["label2id"] = {name: row for row, name in enumerate(weights.labels)}
    elif config.num_classes:
        document["id2label"] = {str(row): f"LABEL_{row}" for row in range(config.num_classes)}
        document["label2id"] = {f"LABEL_{row}": row for row in range(config.num_classes)}
    documents: dict[str, Any] = {"config.json": document}
    if weights.preprocessing is not None:
        documents["preprocessor_config.json"] = _write_processor(weights.preprocessing)
    return Container(tensors=tensors, documents=documents)


def _vit_names(tensors: dict[str, Tensor], rules: Rules, prefix: str) -> dict[str, Tensor]:
    """Return a ViT's tensors under the names of transformers 4, with the prefix of a classifier's body."""
    parts = split(dict(tensors), "attn.qkv", ["attn.q", "attn.k", "attn.v"])
    body = {name: tensor for name, tensor in parts.items() if not name.startswith("head")}
    return {f"{prefix}{name}": tensor for name, tensor in rename(rename(body, OUT), rules).items()}


def _write_vit(weights: Weights, config: ViTConfig) -> tuple[dict[str, Tensor], dict[str, Any]]:
    kind = _kind(config)
    refuse(
        "hf",
        {
            "a hybrid's trunk (transformers 5 has none)": config.stem is not None,
            f"{config.positions} positions": config.positions != "learned",
            pooled(config.pooling): config.pooling not in ("cls", "cls_gap") or not config.class_token,
            "class token and mean without LayerScale": config.pooling == "cls_gap"
            and kind in ("vit", "deit"),
            "a pre_logits layer under a head": config.pre_logits is not None and config.num_classes > 0,
            "registers without LayerScale": config.registers > 0 and kind == "vit",
            "SwiGLU without LayerScale": config.activation == "swiglu" and kind in ("vit", "deit"),
            "positions on registers": config.registers > 0 and config.placed_prefix > 1,
            "a class token without a position": config.class_token
            and config.placed_prefix == 0
            and kind in ("vit", "deit"),
            "images that are not square": config.image_size[0] != config.image_size[1],
            "patches that are not square": config.patch_size[0] != config.patch_size[1],
            "video": config.frames is not None,
        },
    )
    tensors = dict(weights.tensors)
    if config.placed_prefix == 0:  # DINOv2 gives its class token a position: one that adds nothing
        tensors["pos_embed"] = torch.nn.functional.pad(tensors["pos_embed"], (0, 0, 1, 0))
    if kind.startswith("dinov2") and config.pooling == "cls" and config.num_classes:
        tensors["head.weight"] = torch.nn.functional.pad(tensors["head.weight"], (0, config.width))
    prefix = f"{kind}." if config.num_classes else ""
    gated = GATED_OUT if config.activation == "swiglu" else []
    named = _vit_names(tensors, gated if kind.startswith("dinov2") else VIT_OUT, prefix)
    if kind.startswith("dinov2"):
        named[f"{prefix}embeddings.mask_token"] = torch.zeros(1, config.width)
    heads = {
        "head": "cls_classifier" if kind == "deit" else "classifier",
        "head_dist": "distillation_classifier",
    }
    for ours, theirs in heads.items():
        for part in ("weight", "bias"):
            if f"{ours}.{part}" in tensors:
                named[f"{theirs}.{part}"] = tensors[f"{ours}.{part}"]
    return named, _vit_document(config, kind)


def _kind(config: ViTConfig) -> str:
    if config.distilled:
        return "deit"
    if config.layer_scale is None:
        return "vit"
    return "dinov2_with_registers" if config.registers else "dinov2"


def _vit_document(config: ViTConfig, kind: str) -> dict[str, Any]:
    suffix = "ForImageClassification" if config.num_classes else "Model"
    suffix += "WithTeacher" if kind == "deit" and config.num_classes else ""
    name = {"vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}[
        kind
    ]
    document: dict[str, Any] = {
        "architectures": [f"{name}{suffix}"],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "image_size": config.image_size[0],
        "patch_size": config.patch_size[0],
        "num_channels": config.in_channels,
        "hidden_act": "gelu_pytorch_tanh" if config.activation == "gelu_tanh" else "gelu",
        "layer_norm_eps": config.norm_eps,
        "qkv_bias": config.qkv_bias,
        "attention_probs_dropout_prob": config.attention_dropout,
        "hidden_dropout_prob": config.dropout,
        "dtype": "float32",
    }
    if kind.startswith("dinov2"):
        gated = config.activation == "swiglu"
        document |= {
            "mlp_ratio": _mlp_ratio(config),
            "layerscale_value": config.layer_scale,
            "use_swiglu_ffn": gated,
            "drop_path_rate": config.drop_path,
        }
        document |= {"num_register_tokens": config.registers} if config.registers else {}
    else:
        document["intermediate_size"] = config.mlp_width
        document |= (
            {"pooler_output_size": config.pre_logits, "pooler_act": "tanh"} if config.pre_logits else {}
        )
    return document


def _mlp_ratio(config: ViTConfig) -> int:
    """Return the whole ratio from which DINOv2's code computes the hidden width, or refuse."""
    for ratio in range(1, 17):
        hidden = config.width * ratio
        if config.activation == "swiglu":
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == config.mlp_width:
            return ratio
    raise LayoutError(
        f"the hf layout has no place for an MLP of {config.mlp_width}: DINOv2's is a multiple of its width"
    )


def _write_bit(weights: Weights, config: ResNetConfig) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = rename(weights.tensors, BIT_OUT)
    if config.num_classes:
        tensors["classifier.1.weight"] = tensors["classifier.1.weight"].flatten(1)
    else:
        tensors = {name.removeprefix("bit."): tensor for name, tensor in tensors.items()}
    refuse("hf", {"norms after convolutions": not config.preactivation})
    return tensors, {
        "architectures": ["BitForImageClassification" if config.num_classes else "BitModel"],
        "model_type": "bit",
        "embedding_size": config.channels[0],
        "hidden_sizes": list(config.channels[1:]),
        "depths": list(config.layers),
        "layer_type": "preactivation",
        "num_channels": config.in_channels,
        "num_groups": config.groups,
        "global_padding": None,
        "hidden_act": "relu",
        "dtype": "float32",
    }


def _hints(document: dict[str, Any]) -> Hints:
    if "num_attention_heads" not in document:
        return {}
    return {
        "heads": document["num_attention_heads"],
        "image_size": document.get("image_size"),
        "norm_eps": document.get("layer_norm_eps"),
        "activation": _activation(document.get("hidden_act")),
    }


def _activation(name: Any) -> Any:
    """Return our name of an activation; one that has none is left for its reader to refuse."""
    return "gelu" if name in EXACT else "gelu_tanh" if name in TANH else name


def _read_labels(document: dict[str, Any], classes: int) -> list[str] | None:
    names = document.get("id2label")
    if not isinstance(names, dict) or len(names) != classes:
        return None
    labels = [str(names.get(str(row), "")) for row in range(classes)]
    return None if labels == [f"LABEL_{row}" for row in range(classes)] or "" in labels else labels


def _assume_processor(config: Architecture, notes: list[str]) -> Preprocessing:
    size = config.image_size
    if config.kind == "vit" and _kind(config).startswith("dinov2"):
        notes.append("preprocessing: assumed, DINOv2's, ImageNet mean and std (no preprocessor_config.json)")
        before = (round(size[0] * 256 / 224), round(size[1] * 256 / 224))
        return Preprocessing(image_size=size, resize_size=before, **IMAGENET)
    notes.append(
        "preprocessing: assumed, mean 0.5, std 0.5, stretched, bilinear (no preprocessor_config.json)"
    )
    return Preprocessing(image_size=size, resize="exact", interpolation="bilinear")


def _read_processor(document: dict[str, Any], size: tuple[int, int], notes: list[str]) -> Preprocessing:
    before, crop = _box(document, "size"), _box(document, "crop_size")
    cropped = bool(document.get("do_center_crop")) and bool(crop)
    edge = before.get("shortest_edge")
    resize_size = (edge, edge) if edge else (before.get("height", size[0]), before.get("width", size[1]))
    resample = document.get("resample", 2)
    known = type(resample) is int and 0 <= resample < len(RESAMPLE)
    rescale, factor = document.get("do_rescale", True), document.get("rescale_factor", 1 / 255)
    divided = is_number(factor) and isclose(factor, 1 / 255, rel_tol=1e-3)
    assume(
        notes,
        {
            f"bicubic (resample {shown(resample)} is not supported)": not known,
            "scaled to 0 to 1 (do_rescale false is not supported)": not rescale,
            f"divided by 255 (rescale_factor {shown(factor)} is not supported)": rescale and not divided,
        },
    )
    normalize = document.get("do_normalize", True)
    return Preprocessing(
        image_size=(crop.get("height", 0), crop.get("width", 0)) if cropped else resize_size,
        resize="none" if not document.get("do_resize", True) else "cover" if edge else "exact",
        resize_size=resize_size,
        interpolation=RESAMPLE[resample] if known else "bicubic",
        mean=listed(document.get("image_mean") or [0.5] * 3) if normalize else (0.0,) * 3,
        std=listed(document.get("image_std") or [0.5] * 3) if normalize else (1.0,) * 3,
    )


def _box(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a size: one number, or an object with height and width, or with the shortest edge."""
    value = document.get(name) or {}
    value = {"height": value, "width": value} if isinstance(value, int) else value
    if not isinstance(value, dict):
        raise LayoutError(f"{name} {shown(value)} of preprocessor_config.json is not a size")
    return value


def _write_processor(preprocessing: Preprocessing) -> dict[str, Any]:
    height, width = preprocessing.resize_size or preprocessing.image_size
    cover = preprocessing.resize == "cover"
    refuse(
        "hf",
        {"padding to a square": preprocessing.resize == "pad", "covering a box": cover and height != width},
    )
    crop = preprocessing.image_size
    return {
        "image_processor_type": "BitImageProcessor" if cover else "ViTImageProcessor",
        "do_resize": preprocessing.resize != "none",
        "size": {"shortest_edge": height} if cover else {"height": height, "width": width},
        "resample": RESAMPLE.index(preprocessing.interpolation),
        "do_center_crop": cover or crop != (height, width),
        "crop_size": {"height": crop[0], "width": crop[1]},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_convert_rgb": preprocessing.channels == 3,
    }
