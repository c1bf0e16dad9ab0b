"""Attention maps: exact under fused attention, with registers, masks, relative positions and any grid."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.test_vit import inputs, tiny
from vitreous import layouts
from vitreous.errors import ModelError
from vitreous.inspection import attention_maps
from vitreous.models.architecture import ResNetConfig
from vitreous.models.resnet import ResNet
from vitreous.models.weights import Weights

KINDS: list[dict[str, Any]] = [
    {},
    {"registers": 3},
    {"distilled": True},
    {"positions": "relative"},
    {"positions": "rope"},
    {"positions": "sincos2d", "pooling": "gap", "class_token": False},
    {"image_size": (8, 40)},
    {"frames": 2},
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_maps_are_what_the_fused_attention_applies(changes: dict[str, Any], masked: bool) -> None:
    model = tiny(**changes)
    x = inputs(model)
    mask = torch.rand(2, model.config.patches) > 0.3 if masked else None
    with torch.no_grad():
        maps = attention_maps(model, x, mask)
        tokens = model.config.tokens
        assert maps.shape == (2, 2, 4, tokens, tokens)
        torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]), rtol=0, atol=1e-5)
        if mask is not None:
            assert not maps[..., model.config.prefix :][
                ~mask[:, None, None, None].expand(2, 2, 4, tokens, -1)
            ].any()
        geometry = model.geometry(mask)
        z = model.embed(x)
        for layer, block in enumerate(model.blocks):
            normed = block.norm1(z)
            values = block.attn.project(normed, geometry)[2]
            by_maps = block.attn.proj((maps[:, layer] @ values).transpose(1, 2).flatten(2))
            torch.testing.assert_close(by_maps, block.attn(normed, geometry), rtol=0, atol=1e-5)
            z = block(z, geometry)


def test_maps_agree_with_transformers_eager_attention(tmp_path: Path) -> None:
    model = tiny(image_size=16, num_classes=0)
    layouts.write(Weights(config=model.config, tensors=dict(model.state_dict())), tmp_path / "hf", "hf")
    peer = transformers.ViTModel.from_pretrained(
        tmp_path / "hf", attn_implementation="eager", add_pooling_layer=False
    ).eval()
    x = inputs(model)
    with torch.no_grad():
        theirs = torch.stack(peer(x, output_attentions=True).attentions, dim=1)
    torch.testing.assert_close(attention_maps(model, x), theirs, rtol=0, atol=1e-5)


def test_dropout_is_off_and_the_mode_is_kept() -> None:
    model = tiny(dropout=0.5, drop_path=0.5).train()
    x = inputs(model)
    torch.testing.assert_close(attention_maps(model, x), attention_maps(model, x), rtol=0, atol=0)
    assert model.training


def test_maps_have_gradients_and_see_through_compilation() -> None:
    model = tiny()
    compiled = torch.compile(model, backend="eager")
    maps = attention_maps(compiled, inputs(model))  # type: ignore[arg-type]
    maps[..., 0].sum().backward()
    assert model.blocks[0].attn.qkv.weight.grad is not None


def test_a_model_without_attention_is_refused() -> None:
    model = ResNet(ResNetConfig(layers=(1,), stem_width=32))
    with pytest.raises(ModelError, match="ResNet has no attention"):
        attention_maps(model, torch.zeros(1, 3, 32, 32))
