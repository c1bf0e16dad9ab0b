"""How a model starts: the initialisation of the paper's own code, one that imitates a trained model, torch's.

`initialize` is the paper's:

| parameter                        | drawn from                                                    |
|----------------------------------|---------------------------------------------------------------|
| dense layers of MSA and MLP      | Xavier uniform; q, k and v each on its own, though fused      |
| biases of the MLP                | normal, deviation 1e-6; every other bias is zero              |
| patch embedding, `pre_logits`    | normal, variance 1 / fan in (LeCun), cut at two deviations    |
| learned positions, offsets       | normal, deviation 0.02                                        |
| class token                      | zero                                                          |
| distillation token, registers    | normal, deviation 0.02 (DeiT) and 1e-6 (DINOv2)               |
| query of attention pooling       | Xavier uniform                                                |
| head                             | zero: pre-training and fine-tuning start from equal scores    |
| LayerScale                       | its configured value; norms are the identity                  |
| trunk of a hybrid                | see `resnet.initialize`                                       |

`mimetic` then changes the attention and the positions to what they tend to become in a model that was
pre-trained on millions of images (Trockman and Kolter, arXiv 2305.09828). `torch_alone` has what most
tutorials have: positions as large as what they are added to, fifty times those of the paper.
"""

from collections.abc import Callable, Iterable
from math import sqrt
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from vitreous.models import positions, resnet

if TYPE_CHECKING:
    from vitreous.models.vit import Block, VisionTransformer

# A standard normal distribution cut at two deviations has this deviation.
TRUNCATED_DEVIATION = 0.87962566103423978


@torch.no_grad()
def initialize(model: "VisionTransformer") -> None:
    """Fill every parameter of a ViT as the table says; a model without storage (meta device) stays empty."""
    if model.patch_embed.proj.weight.is_meta:
        return
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()
    for name, parameter in model.named_parameters():
        leaf = name.rpartition(".")[2]
        if (
            name.startswith("patch_embed.backbone.")
            or ".norm" in name
            or name.startswith(("norm.", "fc_norm."))
        ):
            continue
        if leaf == "bias":
            nn.init.normal_(parameter, std=1e-6) if ".mlp." in name else nn.init.zeros_(parameter)
        elif leaf == "gamma":
            nn.init.constant_(parameter, model.config.layer_scale or 1.0)
        elif leaf in _TOKENS:
            nn.init.normal_(parameter, std=_TOKENS[leaf])
        elif name.startswith(("head.", "head_dist.")) or leaf == "cls_token":
            nn.init.zeros_(parameter)
        elif name.startswith(("patch_embed.proj.", "pre_logits.")):
            lecun_normal_(parameter)
        else:
            _xavier_each(parameter, 3 if ".qkv." in name else 2 if ".kv." in name else 1)
    if model.patch_embed.backbone is not None:
        resnet.initialize(model.patch_embed.backbone)


@torch.no_grad()
def mimetic(model: "VisionTransformer") -> None:
    """Let tokens attend to what is like them and near them, as in a trained model.

    In every head W_q W_kᵀ is near 0.7 (I + Z), as far as the head's rank allows: a token attends to tokens
    like itself, and with positions from sines and cosines to its neighbours. W_v W_proj is -0.4 (I + Z).
    Entries of Z have variance 1/D.
    """
    config = model.config
    if model.patch_embed.proj.weight.is_meta:
        return
    if config.positions == "learned" and config.width % 4 == 0 and config.frames is None:
        model.pos_embed[:, config.placed_prefix :] = positions.sincos2d(config.grid, config.width)
    head = config.width // config.heads
    for block in cast("Iterable[Block]", model.blocks):
        queries, keys, values = block.attn.qkv.weight.chunk(3)
        for query, key in zip(queries.split(head), keys.split(head), strict=True):
            left, right = _factors(0.7 * _near_identity(config.width), head)
            query.copy_(left.mT)
            key.copy_(right.mT)
        left, right = _factors(-0.4 * _near_identity(config.width), config.width)
        block.attn.proj.weight.copy_(left)
        values.copy_(right.mT)


@torch.no_grad()
def torch_alone(model: "VisionTransformer") -> None:
    """Start dense layers and patches as torch does by itself, tokens and learned positions from N(0, 1)."""
    if model.patch_embed.proj.weight.is_meta:
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) or name == "patch_embed.proj":
            module.reset_parameters()  # type: ignore[operator]
    for name, parameter in model.named_parameters():
        if name in _TOKENS or name == "cls_token":
            nn.init.normal_(parameter)


OTHERS: "dict[str, Callable[[VisionTransformer], None]]" = {"mimetic": mimetic, "torch": torch_alone}
"""What changes a model that started as the paper's, by the name of the option."""


def _near_identity(width: int) -> Tensor:
    return torch.eye(width) + torch.randn(width, width) / sqrt(width)


def _factors(product: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return A and B (D, rank) of equal norm; A Bᵀ is the product on directions that it stretches most.

    Found by power iteration: as good here as singular values, and a large model starts within seconds.
    """
    directions = product @ (product.mT @ (product @ torch.randn(len(product), rank)))
    basis = torch.linalg.qr(directions).Q
    image = product.mT @ basis
    stretch = (image.norm() / sqrt(rank)).sqrt()
    return basis * stretch, image / stretch


_TOKENS = {
    "pos_embed": 0.02,
    "pos_embed_x": 0.02,
    "pos_embed_y": 0.02,
    "offset_embed": 0.02,
    "dist_token": 0.02,
    "reg_token": 1e-6,
}


def lecun_normal_(weight: Tensor) -> None:
    """Fill with a truncated normal of variance 1 / fan in."""
    deviation = 1.0 / sqrt(weight[0].numel()) / TRUNCATED_DEVIATION
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


def _xavier_each(weight: Tensor, parts: int) -> None:
    for part in weight.chunk(parts):
        nn.init.xavier_uniform_(part if part.ndim == 2 else part.flatten(0, -2))
