"""Maps for one class: Grad-CAM (arXiv 1610.02391) and gradient-weighted rollout (arXiv 2103.15679).

The model runs with its own fused kernels. The gradient of an attention map is not recorded but computed: a
head's output is O = A V, so that dA = dO Vᵀ, one layer at a time. Parameters get no gradients.
Letters: B batch, N tokens, D width, H heads, K classes, (h, w) grid.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.inspection.attention import blocks_of, evaluating, sharing, unwrap
from vitreous.inspection.relevance import Patch, starting_point, to_grid
from vitreous.models.vit import VisionTransformer
from vitreous.models.weights import Model


class Explanation(NamedTuple):
    """What supports the chosen class of each image."""

    cam: Tensor  # (B, h, w), at least 0
    rollout: Tensor | None  # (B, h, w), each summing to 1; None for a CNN


class _Seen:
    """One block's tensors on the way to the logits; hooks fill them in."""

    tokens: Tensor  # (B, N, D) into the block
    normed: Tensor  # (B, N, D) into its attention
    mixed: Tensor  # (B, N, D) the heads' outputs, before they are projected


def grad_cam(
    model: nn.Module, images: Tensor, classes: Tensor, mask: Tensor | None = None, *, layer: int = -1
) -> Tensor:
    """Return Grad-CAM maps (B, h, w) for one class per image, at the normalised input of a block."""
    return explain(model, images, classes, mask, layer=layer).cam


def gradient_rollout(
    model: nn.Module,
    images: Tensor,
    classes: Tensor,
    mask: Tensor | None = None,
    *,
    patch: Patch | None = None,
) -> Tensor:
    """Return rollout maps (B, h, w) in which a link counts only as far as it supports the class."""
    found = explain(unwrap(model), images, classes, mask, patch=patch).rollout
    assert found is not None
    return found


def explain(
    model: nn.Module,
    images: Tensor,
    classes: Tensor,
    mask: Tensor | None = None,
    *,
    layer: int = -1,
    patch: Patch | None = None,
) -> Explanation:
    """Return both maps from one forward and one backward pass; others may use the model meanwhile."""
    inner = sharing(model)  # hooks on the model itself would see what others compute
    if not inner.config.has_attention:
        return Explanation(_map_cam(inner, images, classes, mask), None)
    vit = unwrap(inner)
    _check(vit.config.num_classes, classes)
    depth = len(vit.blocks)
    if not -depth <= layer < depth:
        raise ModelError(f"layer {layer} is out of range: the model has {depth} blocks, 0 to {depth - 1}")
    with evaluating(vit), torch.enable_grad(), _recording(vit) as seen:
        tokens = vit.forward_features(_leaf(images), mask)
        score = _score(vit.forward_head(tokens, mask), classes)
        wanted = [seen[layer].normed, *(each.mixed for each in seen)]
        # Tokens of the last block that are not pooled don't reach the logits: their gradient is zero.
        gradients = torch.autograd.grad(score, wanted, allow_unused=True, materialize_grads=True)
    with evaluating(vit), torch.no_grad():
        cam = _cam(vit, seen[layer].normed, gradients[0], mask)
        last = list(blocks_of(vit))[-1](seen[-1].tokens, vit.geometry(mask))
        reached = _relevance(vit, seen, list(gradients[1:]), mask)
        start = starting_point(vit, last, mask, patch)
        return Explanation(cam, to_grid(vit, (start[:, None] @ reached)[:, 0]))


def _cam(vit: VisionTransformer, activation: Tensor, gradient: Tensor, mask: Tensor | None) -> Tensor:
    patches = slice(vit.config.prefix, None)
    weight = gradient[:, patches].mean(dim=1, keepdim=True)  # one per channel
    cam = (weight * activation[:, patches]).sum(-1).relu()  # (B, patches)
    cam = cam if mask is None else cam * mask
    return cam.unflatten(1, (vit.config.time_steps, *vit.config.grid)).mean(1)


def _relevance(
    vit: VisionTransformer, seen: list[_Seen], gradients: list[Tensor], mask: Tensor | None
) -> Tensor:
    """Return R (B, N, N): R ← R + E_h[(∇A ⊙ A)⁺] R, from the first layer to the last."""
    geometry = vit.geometry(mask)
    batch, tokens = seen[0].tokens.shape[:2]
    reached = torch.eye(tokens, device=seen[0].tokens.device).expand(batch, -1, -1)
    for block, each, gradient in zip(blocks_of(vit), seen, gradients, strict=True):
        values = block.attn.project(each.normed, geometry)[2]
        outputs = gradient.unflatten(-1, (block.attn.heads, -1)).transpose(1, 2)  # (B, H, N, D/H)
        attention = block.attn.probabilities(each.normed, geometry)
        link = (outputs @ values.mT * attention).relu().mean(1)
        reached = reached + link @ reached
    return reached


@contextmanager
def _recording(vit: VisionTransformer) -> Iterator[list[_Seen]]:
    """Collect what the blocks work with; complete once the model has run."""
    seen: list[_Seen] = []
    handles: list[Any] = []
    for block in blocks_of(vit):
        each = _Seen()
        seen.append(each)
        handles += [
            block.register_forward_pre_hook(lambda _, given, to=each: setattr(to, "tokens", given[0])),
            block.norm1.register_forward_hook(lambda _, __, made, to=each: setattr(to, "normed", made)),
            block.attn.proj.register_forward_pre_hook(
                lambda _, given, to=each: setattr(to, "mixed", given[0])
            ),
        ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _map_cam(model: Model, images: Tensor, classes: Tensor, mask: Tensor | None) -> Tensor:
    _check(model.config.num_classes, classes)
    with evaluating(model), torch.enable_grad():
        features = model.forward_features(_leaf(images), mask)
        (gradient,) = torch.autograd.grad(_score(model.forward_head(features), classes), features)
    return (gradient.mean(dim=(2, 3), keepdim=True) * features).sum(1).relu().detach()


def _leaf(images: Tensor) -> Tensor:
    """Return a copy that requires gradients, so that frozen models can be explained too."""
    return images.detach().clone().requires_grad_()


def _score(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes.to(logits.device)[:, None]).sum()


def _check(count: int, classes: Tensor) -> None:
    if count == 0:
        raise ModelError(
            "this model has no classes, and Grad-CAM asks for one: load it with num_classes, train its head"
        )
    if classes.ndim != 1 or classes.dtype != torch.int64 or not ((classes >= 0) & (classes < count)).all():
        raise ModelError(f"classes {classes.tolist()} don't fit: give one number per image, 0 to {count - 1}")
