"""Looking inside a model: what it attends to, exactly, whatever kernel computes it. Nothing is drawn here."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.vit import Block, VisionTransformer


def attention_maps(model: nn.Module, images: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the attention probabilities of every layer and head, (B, L, H, N, N), as the model applies them.

    N counts all tokens, prefix first. The maps are computed again from queries and keys, so that they are
    exact with any fused kernel; dropout and stochastic depth are off. `mask` (B, patches): False is ignored.
    """
    return torch.stack(list(iterate_attention(model, images, mask)), dim=1)


def iterate_attention(model: nn.Module, images: Tensor, mask: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the attention probabilities (B, H, N, N) layer by layer: only one need be held at a time."""
    vit = unwrap(model)
    with evaluating(vit):
        geometry = vit.geometry(mask)
        x = vit.embed(images)
        for block in cast(Iterable[Block], vit.blocks):
            yield block.attn.probabilities(block.norm1(x), geometry)
            x = block(x, geometry)


def unwrap(model: nn.Module) -> VisionTransformer:
    """Return the transformer inside a compiled or distributed wrapper; refuse models without attention."""
    inner = getattr(model, "_orig_mod", getattr(model, "module", model))
    if not isinstance(inner, VisionTransformer):
        raise ModelError(
            f"{type(inner).__name__} has no attention to look at: give a Vision Transformer or a hybrid"
        )
    return inner


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout and stochastic depth off for a while, and back to what they were."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
