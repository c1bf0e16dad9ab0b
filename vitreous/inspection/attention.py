"""The attention probabilities of a forward pass, exact whatever kernel computes it, one layer at a time.

Letters: B batch, N tokens (prefix first), D width, H heads, L layers.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.resnet import ResNet
from vitreous.models.vit import Block, VisionTransformer
from vitreous.models.weights import Model


class Layer(NamedTuple):
    """What one block does to the tokens of a batch."""

    attention: Tensor  # (B, H, N, N), rows sum to 1
    tokens: Tensor  # (B, N, D) after the block


def attention_maps(model: nn.Module, images: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the attention probabilities of every layer and head, (B, L, H, N, N), as the model applies them.

    N counts all tokens, prefix first. The maps are computed again from queries and keys, so that they are
    exact with any fused kernel; dropout and stochastic depth are off. `mask` (B, patches): False is ignored.
    """
    return torch.stack(list(iterate_attention(model, images, mask)), dim=1)


def iterate_attention(model: nn.Module, images: Tensor, mask: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the attention probabilities (B, H, N, N) layer by layer, so that only one is held at a time."""
    return (layer.attention for layer in iterate_layers(model, images, mask))


def iterate_layers(model: nn.Module, images: Tensor, mask: Tensor | None = None) -> Iterator[Layer]:
    """Yield each block's attention probabilities and the tokens that leave it."""
    vit = unwrap(model)
    with evaluating(vit):
        geometry = vit.geometry(mask)
        x = vit.embed(images)
        for block in blocks_of(vit):
            attention = block.attn.probabilities(block.norm1(x), geometry)
            x = block(x, geometry)
            yield Layer(attention, x)


def blocks_of(vit: VisionTransformer) -> Iterable[Block]:
    """Return the encoder's blocks, typed."""
    return cast(Iterable[Block], vit.blocks)


def bare(model: nn.Module) -> Model:
    """Return the model inside a compiled or distributed wrapper; refuse models of other families."""
    inner = getattr(model, "_orig_mod", getattr(model, "module", model))
    if not isinstance(inner, VisionTransformer | ResNet):
        raise ModelError(f"{type(inner).__name__} can't be looked into: give a ViT, a hybrid or a BiT")
    return inner


def sharing(model: nn.Module) -> Model:
    """Return other modules with the same weights: hooks, modes and sizes of one are not seen by the other."""
    inner = bare(model)
    return copy.deepcopy(inner, {id(parameter): parameter for parameter in inner.parameters()})


def unwrap(model: nn.Module) -> VisionTransformer:
    """Return the transformer inside a compiled or distributed wrapper; refuse models without attention."""
    inner = bare(model)
    if not isinstance(inner, VisionTransformer):
        raise ModelError(
            f"{type(inner).__name__} has no attention to look at: give a Vision Transformer or a hybrid"
        )
    return inner


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout and stochastic depth off inside the context, then restore them."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
