"""Google's `.npz` files: the published ViTs, hybrids and BiT, and big_vision's newer names.

JAX keeps kernels as [in, out], convolutions as HWIO, attention per head ([D, H, D/H], [H, D/H, D]) and group
norms as [1, 1, 1, C]; its GELU is the tanh approximation. So heads and GELU are known, unlike elsewhere.
"""

import re

from torch import Tensor

from vitreous.config import Preprocessing
from vitreous.errors import LayoutError
from vitreous.layouts import infer
from vitreous.layouts.containers import Container, Hints
from vitreous.layouts.names import Rules, fuse, refuse, rename, split
from vitreous.models.weights import Weights

ROOTS = ("params/img/", "opt/target/", "params/", "target/")
BIG_VISION = "MultiHeadDotProductAttention_0"
MOST_STACKED = 1000

IN: Rules = [
    (r"^Transformer/posembed_input/pos_embedding$|^pos_embedding$", "pos_embed"),
    (r"^cls$", "cls_token"),
    (r"^embedding/", "patch_embed.proj."),
    (r"^MAPHead_0/probe$", "attn_pool.latent"),
    (r"^MAPHead_0/MultiHeadDotProductAttention_0/out/", "attn_pool.proj."),
    (r"^MAPHead_0/MultiHeadDotProductAttention_0/query/", "attn_pool.q."),
    (r"^MAPHead_0/MultiHeadDotProductAttention_0/(k|v)\w+/", r"attn_pool.\1."),
    (r"^MAPHead_0/LayerNorm_0/", "attn_pool.norm."),
    (r"^MAPHead_0/MlpBlock_0/Dense_0/", "attn_pool.mlp.fc1."),
    (r"^MAPHead_0/MlpBlock_0/Dense_1/", "attn_pool.mlp.fc2."),
    (r"^Transformer/encoder_norm/", "norm."),
    (r"^Transformer/encoderblock_(\d+)/", r"blocks.\1."),
    (r"\.LayerNorm_0/", ".norm1."),
    (r"\.LayerNorm_[12]/", ".norm2."),
    (r"\.MultiHeadDotProductAttention_[01]/out/", ".attn.proj."),
    (r"\.MultiHeadDotProductAttention_[01]/(q|k|v)\w+/", r".attn.\1."),
    (r"\.MlpBlock_[03]/Dense_0/", ".mlp.fc1."),
    (r"\.MlpBlock_[03]/Dense_1/", ".mlp.fc2."),
    (r"^pre_logits/", "pre_logits."),
    (r"^head/", "head."),
    # the hybrids' trunk
    (r"^(conv|gn)_root/", r"patch_embed.backbone.stem.\1."),
    (
        r"^block(\d+)/unit(\d+)/",
        lambda m: f"patch_embed.backbone.stages.{int(m[1]) - 1}.blocks.{int(m[2]) - 1}.",
    ),
    (r"\.(conv|gn)_proj/", r".downsample.\1."),
    (r"\.(conv|gn)([123])/", r".\1\2."),
    # BiT
    (r"^resnet/root_block/standardized_conv2d/", "stem.conv."),
    (r"^resnet/block(\d+)/unit(\d+)/", lambda m: f"stages.{int(m[1]) - 1}.blocks.{int(m[2]) - 1}."),
    (r"\.a/proj/standardized_conv2d/", ".downsample.conv."),
    (r"\.([abc])/standardized_conv2d/", lambda m: f".conv{'abc'.index(m[1]) + 1}."),
    (r"\.([abc])/group_norm/", lambda m: f".gn{'abc'.index(m[1]) + 1}."),
    (r"^resnet/group_norm/", "norm."),
    (r"^resnet/head/conv2d/", "head.fc."),
    (r"\.gn([123]?)\.", r".norm\1."),
    (r"\.(kernel|scale|gamma)$", ".weight"),
    (r"\.beta$", ".bias"),
]


def matches(container: Container) -> bool:
    """Recognise the layout by its keys: paths with slashes."""
    return any(
        name.endswith(("embedding/kernel", "standardized_conv2d/kernel")) for name in container.tensors
    )


def read(container: Container, hints: Hints) -> Weights:
    """Read one of Google's files."""
    tensors = _strip_root(container.tensors)
    big_vision = any(BIG_VISION in name and "MAPHead" not in name for name in tensors)
    tensors = _unstack(tensors)
    heads = next(
        (t.shape[-2] for name, t in tensors.items() if name.endswith("/query/kernel") and t.ndim == 3), None
    )
    tensors = {name: tensor.float() for name, tensor in rename(tensors, IN).items()}
    tensors = {name: _to_torch(name, tensor) for name, tensor in tensors.items()}
    tensors = fuse(tensors, ["attn.q", "attn.k", "attn.v"], "attn.qkv")
    tensors = fuse(tensors, ["attn_pool.k", "attn_pool.v"], "attn_pool.kv")
    if not any(".stages." in name for name in tensors):  # R+ViT-Ti/16: the root alone
        tensors = rename(tensors, [(r"^patch_embed\.backbone\.stem\.", "patch_embed.backbone.")])
    notes: list[str] = []
    known: Hints = {}
    if "patch_embed.proj.weight" in tensors:
        trunk = {"std_eps": 1e-5, "std_eps_on": "deviation", "norm_eps": 1e-6}
        known = {"heads": heads, "activation": "gelu_tanh", "stem": trunk}
        if big_vision and "cls_token" in tensors:
            known["positioned_prefix"] = 0
    else:
        known = {"std_eps": 1e-10}
    config = infer.architecture(tensors, known | hints, notes)
    preprocessing = Preprocessing(image_size=config.image_size, resize="exact", interpolation="bilinear")
    notes.append(
        "preprocessing: Google's, stretched to the image size and scaled to [-1, 1] (the file has none)"
    )
    return Weights(config=config, tensors=tensors, preprocessing=preprocessing, notes=notes)


def write(weights: Weights) -> Container:
    """Return one of Google's files: with the published names, or big_vision's for its kinds of pooling."""
    config = weights.config
    if config.kind == "resnet":
        refuse("google", {"norms after convolutions": not config.preactivation})
        return Container(tensors=_rename_out(weights.tensors, BIT_OUT, heads=1))
    big_vision = config.pooling != "cls" or config.placed_prefix == 0
    refuse(
        "google",
        {
            "registers": config.registers > 0,
            "a distillation token": config.distilled,
            "LayerScale": config.layer_scale is not None,
            f"{config.pooling} pooling": config.pooling not in ("cls", "gap", "map"),
            f"{config.positions} positions": config.positions != "learned",
            f"the activation {config.activation} (JAX computes gelu_tanh)": config.activation != "gelu_tanh",
            "attention without biases": not config.qkv_bias,
            "video": config.frames is not None,
            "a norm after pooling": config.norm_after_pool,
            "positions on the class token with this pooling": big_vision and config.placed_prefix > 0,
            "a hybrid's trunk with this pooling": big_vision and config.stem is not None,
        },
    )
    rules = _vit_out(big_vision)
    return Container(tensors=_rename_out(weights.tensors, rules, config.heads))


def _vit_out(big_vision: bool) -> Rules:
    root = "params/" if big_vision else ""
    norm, attention, mlp = (1, 0, 0) if big_vision else (2, 1, 3)
    positions = "pos_embedding" if big_vision else "Transformer/posembed_input/pos_embedding"
    mha = f"MultiHeadDotProductAttention_{attention}"
    letters = {"q": "query", "k": "key", "v": "value"}
    return [
        (r"^pos_embed$", f"{root}{positions}"),
        (r"^cls_token$", f"{root}cls"),
        (r"^patch_embed\.backbone\.(?:stem\.)?(conv|norm)\.", lambda m: f"{_kind(m[1])}_root/"),
        (
            r"^patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.",
            lambda m: f"block{int(m[1]) + 1}/unit{int(m[2]) + 1}/",
        ),
        (r"(unit\d+/)downsample\.(conv|norm)\.", lambda m: f"{m[1]}{_kind(m[2])}_proj/"),
        (r"(unit\d+/)(conv|norm)([123])\.", lambda m: f"{m[1]}{_kind(m[2])}{m[3]}/"),
        (r"^patch_embed\.proj\.", f"{root}embedding/"),
        (r"^attn_pool\.latent$", f"{root}MAPHead_0/probe"),
        (r"^attn_pool\.proj\.", f"{root}MAPHead_0/MultiHeadDotProductAttention_0/out/"),
        (
            r"^attn_pool\.(q|k|v)\.",
            lambda m: f"{root}MAPHead_0/MultiHeadDotProductAttention_0/{letters[m[1]]}/",
        ),
        (r"^attn_pool\.norm\.", f"{root}MAPHead_0/LayerNorm_0/"),
        (r"^attn_pool\.mlp\.fc([12])\.", lambda m: f"{root}MAPHead_0/MlpBlock_0/Dense_{int(m[1]) - 1}/"),
        (r"^norm\.", f"{root}Transformer/encoder_norm/"),
        (r"^blocks\.(\d+)\.", rf"{root}Transformer/encoderblock_\1/"),
        (r"/norm1\.", "/LayerNorm_0/"),
        (r"/norm2\.", f"/LayerNorm_{norm}/"),
        (r"/attn\.proj\.", f"/{mha}/out/"),
        (r"/attn\.(q|k|v)\.", lambda m: f"/{mha}/{letters[m[1]]}/"),
        (r"/mlp\.fc([12])\.", lambda m: f"/MlpBlock_{mlp}/Dense_{int(m[1]) - 1}/"),
        (r"^(pre_logits|head)\.", rf"{root}\1/"),
        (r"((?:LayerNorm_\d|encoder_norm|gn\w*)/)weight$", r"\1scale"),
        (r"/weight$", "/kernel"),
    ]


BIT_OUT: Rules = [
    (r"^stem\.conv\.", "resnet/root_block/standardized_conv2d/"),
    (
        r"^stages\.(\d+)\.blocks\.(\d+)\.",
        lambda m: f"resnet/block{int(m[1]) + 1}/unit{int(m[2]) + 1:02d}/",
    ),
    (r"/downsample\.conv\.", "/a/proj/standardized_conv2d/"),
    (r"/conv([123])\.", lambda m: f"/{'abc'[int(m[1]) - 1]}/standardized_conv2d/"),
    (r"/norm([123])\.", lambda m: f"/{'abc'[int(m[1]) - 1]}/group_norm/"),
    (r"^norm\.", "resnet/group_norm/"),
    (r"^head\.fc\.", "resnet/head/conv2d/"),
    (r"group_norm/weight$", "group_norm/gamma"),
    (r"group_norm/bias$", "group_norm/beta"),
    (r"/weight$", "/kernel"),
]


def _kind(name: str) -> str:
    return "gn" if name == "norm" else name


def _rename_out(tensors: dict[str, Tensor], rules: Rules, heads: int) -> dict[str, Tensor]:
    parts = split(dict(tensors), "attn.qkv", ["attn.q", "attn.k", "attn.v"])
    parts = split(parts, "attn_pool.kv", ["attn_pool.k", "attn_pool.v"])
    shaped = {name: _to_jax(name, tensor, heads) for name, tensor in parts.items()}
    return rename(shaped, rules)


def _to_torch(name: str, tensor: Tensor) -> Tensor:
    """Turn a JAX kernel into PyTorch's shape."""
    if name.endswith(
        ("attn.q.bias", "attn.k.bias", "attn.v.bias", "pool.q.bias", "pool.k.bias", "pool.v.bias")
    ):
        return tensor.flatten()
    if re.search(r"(attn|attn_pool)\.[qkv]\.weight$", name):
        return tensor.flatten(1).T.contiguous()  # [D, H, D/H] → [D, D]
    if re.search(r"(attn|attn_pool)\.proj\.weight$", name):
        return tensor.flatten(0, 1).T.contiguous()  # [H, D/H, D] → [D, D]
    if name.endswith(".weight") and ".norm" not in name and not name.startswith("norm."):
        if tensor.ndim == 4:
            return tensor.permute(3, 2, 0, 1).contiguous()  # HWIO → OIHW
        return tensor.T.contiguous() if tensor.ndim == 2 else tensor
    return tensor.flatten() if tensor.ndim == 4 else tensor  # group norm: [1, 1, 1, C]


def _to_jax(name: str, tensor: Tensor, heads: int) -> Tensor:
    """Undo `_to_torch`."""
    if re.search(r"(attn|attn_pool)\.[qkv]\.bias$", name):
        return tensor.unflatten(0, (heads, -1)).contiguous()
    if re.search(r"(attn|attn_pool)\.[qkv]\.weight$", name):
        return tensor.T.unflatten(1, (heads, -1)).contiguous()
    if re.search(r"(attn|attn_pool)\.proj\.weight$", name):
        return tensor.T.unflatten(0, (heads, -1)).contiguous()
    in_trunk = name.startswith("patch_embed.backbone.")
    if ".norm" in name or name.startswith("norm."):
        return tensor[None, None, None] if in_trunk else tensor
    if name.endswith(".weight"):
        return (tensor.permute(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T).contiguous()
    return tensor


def _strip_root(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for root in ROOTS:
        under = {name.removeprefix(root): tensor for name, tensor in tensors.items() if name.startswith(root)}
        if any(name.endswith("embedding/kernel") for name in under):
            return under
    return tensors


def _unstack(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Separate the blocks that big_vision stacks along a leading axis for its scan over layers."""
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith("Transformer/encoderblock/"):
            rest = name.removeprefix("Transformer/encoderblock/")
            if tensor.ndim == 0 or len(tensor) > MOST_STACKED:
                raise LayoutError(f"{name} has the shape {list(tensor.shape)}: expected the blocks, stacked")
            apart |= {
                f"Transformer/encoderblock_{i}/{rest}": layer for i, layer in enumerate(tensor.unbind(0))
            }
        else:
            apart[name] = tensor
    return apart
