"""What the explorer page shows: attention, rollout and positions, as arrays for one image.

Letters: N tokens, H heads; tokens are the prefix (class, distillation, registers), then the patches.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.inspection import iterate_attention
from vitreous.inspection.gradients import gradient_rollout
from vitreous.inspection.relevance import fuse
from vitreous.models.architecture import ViTConfig
from vitreous.models.vit import VisionTransformer
from vitreous.serve.settings import Refusal

Kind = Literal["attention", "rollout"]


@torch.inference_mode()
def links(model: VisionTransformer, images: Tensor, mask: Tensor | None, kind: Kind, layer: int) -> Tensor:
    """Return which token attends to which, of a batch of one image: a layer's heads (H, N, N), or (1, N, N)
    rolled out up to it."""
    reached: Tensor | None = None
    for index, attention in enumerate(iterate_attention(model, images, mask)):
        if kind == "rollout":
            link = fuse(attention)[0]
            reached = link if reached is None else link @ reached
        if index == layer:
            return (attention[0] if reached is None else reached[None]).float().cpu()
    raise AssertionError("the layer was checked against the depth")


def speaks(
    model: VisionTransformer, images: Tensor, mask: Tensor | None, label: int | None
) -> tuple[int, list[list[float]]]:
    """Return the class (if none is given, the likeliest) and what supports it in the one image, (h, w)."""
    if label is None:
        with torch.inference_mode():
            label = int(model(images, mask).argmax())
    found = gradient_rollout(model, images, torch.tensor([label], device=images.device), mask)[0]
    return label, [[round(value, 6) for value in line] for line in found.float().cpu().tolist()]


def heads(found: Tensor, kind: Kind, head: str) -> Tensor:
    """Return the heads that are asked for: `mean`, `all` or one; a rollout has gone through all of them."""
    if kind == "rollout" or head == "all":
        return found
    return found.mean(0, keepdim=True) if head == "mean" else found[int(head)][None]


def choose(found: Tensor, config: ViTConfig, patch: str) -> Tensor:
    """Return the rows (heads, N) that are asked for: `class`, `mean` or a patch."""
    if patch == "class":
        if not config.class_token:
            raise Refusal(
                422, "no_class_token", "this model has no class token: ask for patch=mean or a patch"
            )
        return found[:, 0]
    if patch == "mean":
        return found[:, config.prefix :].mean(1)
    if int(patch) >= config.patches:
        raise Refusal(422, "no_such_patch", f"patch must be class, mean, or 0 to {config.patches - 1}")
    return found[:, config.prefix + int(patch)]


def maps(rows: Tensor, config: ViTConfig) -> dict[str, Any]:
    """Return rows (heads, N) as JSON: a map over the grid for each head, and what the prefix gets."""
    height, width = config.grid
    patches = rows[:, config.prefix :].reshape(-1, height, width)
    return {
        "maps": [[[round(value, 6) for value in line] for line in each] for each in patches.tolist()],
        "prefix": [[round(value, 6) for value in each] for each in rows[:, : config.prefix].tolist()],
    }


def packed(values: Tensor) -> bytes:
    """Return values as little-endian half floats: a third of the size of their digits."""
    return values.half().numpy().astype("<f2").tobytes()
