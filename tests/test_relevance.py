"""Attention rollout against a slow loop, from every kind of start, without prefix tokens."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.test_vit import SWITCHES, inputs, tiny
from vitreous import inspection
from vitreous.errors import ModelError
from vitreous.inspection import relevance

IMAGES = [switch for switch in SWITCHES if "frames" not in switch]


def slow_rollout(maps: np.ndarray, start: np.ndarray, fusion: str, discard: float) -> np.ndarray:
    """Follow arXiv 2005.00928 with loops: maps (L, H, N, N), start (N,) → (N,)."""
    count = maps.shape[-1]
    joint = np.eye(count)
    for layer in maps:
        fused = getattr(layer, fusion)(axis=0)
        for row in fused:
            for i in sorted(range(count), key=lambda i: row[i])[: int(discard * count)]:
                row[i] = 0.0
            row /= row.sum()
        joint = (0.5 * fused + 0.5 * np.eye(count)) @ joint
    return start @ joint


@pytest.mark.parametrize("discard", [0.0, 0.4])
@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"registers": 3},
        {"distilled": True},
        {"pooling": "gap", "class_token": False},
        {"pooling": "cls_gap"},
    ],
    ids=str,
)
def test_rollout_against_a_slow_loop(changes: dict[str, Any], fusion: Any, discard: float) -> None:
    model = tiny(**changes)
    x = inputs(model)
    maps = inspection.attention_maps(model, x).detach().double().numpy()
    prefix, count = model.config.prefix, model.config.tokens
    start = np.zeros(count)
    if model.config.distilled:
        start[:2] = 0.5
    elif model.config.pooling == "cls":
        start[0] = 1
    else:
        start[prefix:] = 1 / 6
        if prefix:
            start[0], start[1:] = 0.5, 1 / 12
    for i, found in enumerate(inspection.rollout(model, x, fusion=fusion, discard=discard).numpy()):
        expected = slow_rollout(maps[i].copy(), start, fusion, discard)[prefix:].reshape(2, 3)
        np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-4)


def test_rollout_from_a_patch_and_from_the_attention_pool() -> None:
    model = tiny(pooling="map", class_token=False)
    x = inputs(model, 1)
    maps = inspection.attention_maps(model, x).detach().double().numpy()[0]
    start = np.zeros(6)
    start[4] = 1
    found = inspection.rollout(model, x, patch=(1, 1))[0].numpy().reshape(-1)
    np.testing.assert_allclose(found, slow_rollout(maps.copy(), start, "mean", 0.0), rtol=1e-4)
    weights = relevance.starting_point(model, model.forward_intermediates(x)[-1])
    pool, patches = model.attn_pool, model.forward_features(x)
    # With the identity as values, what attention returns is its weights.
    attended = nn.functional.scaled_dot_product_attention(
        pool.q(pool.latent).unflatten(-1, (4, 8)).transpose(1, 2),
        pool.kv(patches).unflatten(-1, (2, 4, 8))[:, :, 0].transpose(1, 2),
        torch.eye(6).expand(1, 4, 6, 6),
    )
    torch.testing.assert_close(weights, attended.mean(1)[:, 0])
    with pytest.raises(ModelError, match="patch 2,0 is outside the grid: rows 0 to 1, columns 0 to 2"):
        inspection.rollout(model, x, patch=(2, 0))


def test_uniform_attention_rolls_out_uniformly() -> None:
    model = tiny()
    for block in model.blocks:
        block.attn.qkv.weight.data[:64] = 0  # queries and keys: all logits alike
        block.attn.qkv.bias.data[:64] = 0
    maps = inspection.rollout(model, inputs(model))
    torch.testing.assert_close(maps, torch.full((2, 2, 3), 1 / 6))


def test_identity_attention_stays_on_the_token() -> None:
    attention = torch.eye(7).expand(2, 4, 7, 7)
    torch.testing.assert_close(relevance.fuse(attention), torch.eye(7).expand(2, 7, 7))
    model = tiny()
    for block in model.blocks:
        block.attn.probabilities = lambda x, geometry: torch.eye(7).expand(2, 4, 7, 7)
    maps = inspection.rollout(model, inputs(model), patch=(1, 0))
    assert maps[:, 1, 0].tolist() == [1.0, 1.0] and maps.sum().item() == pytest.approx(2)


@pytest.mark.parametrize("changes", IMAGES, ids=str)
def test_registers_and_prefix_are_never_in_a_map(changes: dict[str, Any]) -> None:
    model = tiny(**changes)
    x = inputs(model)
    assert inspection.rollout(model, x).shape == (2, *model.config.grid)
    heads = inspection.head_maps(model, x)
    assert heads.shape == (2, 2, 4, *model.config.grid)
    maps = inspection.attention_maps(model, x)
    patches = maps[..., model.config.prefix :]
    rows = {"cls": slice(0, 1), "cls_gap": None}.get(model.config.pooling, slice(model.config.prefix, None))
    if model.config.distilled:
        rows = slice(0, 2)
    if rows is not None:
        torch.testing.assert_close(heads.flatten(-2), patches[..., rows, :].mean(-2))


def test_wrong_settings_of_a_rollout_are_refused() -> None:
    model = tiny()
    with pytest.raises(ModelError, match="unknown head fusion 'median': expected one of mean, max, min"):
        inspection.rollout(model, inputs(model), fusion="median")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"discard ratio 1.0 is out of range"):
        inspection.rollout(model, inputs(model), discard=1.0)
