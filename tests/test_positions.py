"""Positions against timm's and MAE's functions, and resampling against timm's."""

import pytest
import torch
from timm.layers.patch_embed import resample_patch_embed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.layers.pos_embed_sincos import apply_rot_embed, build_rotary_pos_embed
from torch import nn
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

from vitreous.models import positions


@pytest.mark.parametrize(
    ("old", "new"), [((14, 14), (24, 24)), ((14, 14), (16, 24)), ((16, 24), (14, 14)), ((3, 5), (6, 10))]
)
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_learned_positions_are_resampled_as_timm_does(
    old: tuple[int, int], new: tuple[int, int], prefix: int
) -> None:
    weights = torch.randn(1, prefix + old[0] * old[1], 12)
    ours = positions.resample_positions(weights, old, new, prefix)
    theirs = resample_abs_pos_embed(weights, list(new), list(old), num_prefix_tokens=prefix)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert torch.equal(ours[:, :prefix], weights[:, :prefix])


@pytest.mark.parametrize(
    ("old", "new"), [((14, 14), (16, 16)), ((16, 16), (8, 8)), ((8, 8), (12, 10)), ((16, 16), (32, 32))]
)
def test_patch_filters_are_resized_as_timm_does(old: tuple[int, int], new: tuple[int, int]) -> None:
    weights = torch.randn(6, 3, *old)
    theirs = resample_patch_embed(weights, list(new))
    torch.testing.assert_close(positions.resample_patches(weights, new), theirs, rtol=0, atol=1e-5)


def test_enlarged_patches_give_the_same_tokens() -> None:
    weights, patches = torch.randn(5, 3, 8, 8), torch.randn(2, 3, 8, 8)
    large = nn.functional.interpolate(patches, size=(12, 16), mode="bicubic", antialias=True)
    before = torch.einsum("dchw,bchw->bd", weights, patches)
    after = torch.einsum("dchw,bchw->bd", positions.resample_patches(weights, (12, 16)), large)
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-4)


def test_sincos_is_maes() -> None:
    """MAE's models put the column's half first, where transformers' function puts the row's."""
    rows, columns = build_2d_sinusoidal_position_embedding(height=3, width=5, embed_dim=32).chunk(2, dim=-1)
    theirs = torch.cat([columns, rows], dim=-1)
    torch.testing.assert_close(positions.sincos2d((3, 5), 32), theirs, rtol=0, atol=1e-5)


def test_sincos_differs_along_both_axes_of_any_grid() -> None:
    codes = positions.sincos2d((3, 7), 16)
    assert codes.shape == (21, 16)
    assert len(codes.unique(dim=0)) == 21


def test_rotation_is_timms() -> None:
    sine, cosine = build_rotary_pos_embed([3, 4], dim=16, in_pixels=False, temperature=positions.ROPE_BASE)
    ours = positions.rotary2d((3, 4), 16, prefix=1)
    torch.testing.assert_close(ours[0][1:], cosine, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours[1][1:], sine, rtol=0, atol=1e-5)
    x = torch.randn(2, 12, 16)
    torch.testing.assert_close(
        positions.rotate(x, cosine, sine), apply_rot_embed(x, sine, cosine), rtol=0, atol=1e-5
    )


def test_rotated_products_depend_on_the_offset_alone_and_prefix_tokens_do_not_turn() -> None:
    cosine, sine = positions.rotary2d((4, 6), 16, prefix=2)
    q, k = torch.randn(16), torch.randn(16)
    logits = (
        positions.rotate(q.expand(26, 16), cosine, sine) @ positions.rotate(k.expand(26, 16), cosine, sine).T
    )
    assert logits[0, 1].item() == pytest.approx((q @ k).item(), abs=1e-4)
    between = logits[2:, 2:].reshape(4, 6, 4, 6)
    assert between[1, 2, 2, 4].item() == pytest.approx(between[2, 3, 3, 5].item(), abs=1e-4)
    assert between[1, 2, 2, 4].item() != pytest.approx(between[1, 2, 2, 3].item(), abs=1e-4)


def test_relative_rows_belong_to_offsets() -> None:
    offsets = positions.relative_offsets((3, 4), prefix=1)
    assert offsets.shape == (13, 13)
    assert offsets.max() == positions.relative_rows((3, 4)) - 1
    between = offsets[1:, 1:].reshape(3, 4, 3, 4)
    assert between[0, 0, 1, 2] == between[1, 1, 2, 3]
    assert between[0, 0, 1, 2] != between[1, 2, 0, 0]
    assert len(between.unique()) == (2 * 3 - 1) * (2 * 4 - 1)
    assert (
        len(
            {offsets[0, 0].item(), offsets[0, 1].item(), offsets[1, 0].item()}
            - set(between.flatten().tolist())
        )
        == 3
    )


def test_a_relative_table_keeps_its_middle_when_resampled() -> None:
    table = torch.randn(positions.relative_rows((3, 3)), 4)
    larger = positions.resample_relative(table, (3, 3), (5, 7))
    assert larger.shape == (positions.relative_rows((5, 7)), 4)
    assert torch.equal(larger[-3:], table[-3:])
    assert torch.equal(positions.resample_relative(table, (3, 3), (3, 3)), table)
