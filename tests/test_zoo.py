"""The table of variants: golden counts, timm's shapes and logits, aliases, and the cost formulas."""

import json
from typing import Any

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import FIXTURES, randomize
from vitreous.errors import ModelError
from vitreous.models import cost, zoo
from vitreous.models.architecture import ResNetConfig, ViTConfig

GOLDEN: dict[str, int] = json.loads((FIXTURES / "parameter_counts.json").read_text())
IN_TIMM = sorted(set(zoo.VARIANTS) & set(timm.list_models()))


def test_every_variant_has_a_golden_count_and_reaches_it() -> None:
    assert {name: cost.parameters(zoo.get_config(name, num_classes=1000)) for name in zoo.VARIANTS} == GOLDEN


def test_the_published_counts() -> None:
    assert GOLDEN["vit_base_patch16_224"] == 86_567_656
    assert GOLDEN["vit_large_patch16_224"] == 304_326_632
    assert GOLDEN["vit_huge_patch14_224"] == 632_045_800


def test_only_bit_widths_are_ours_alone() -> None:
    assert all("_bit" in name for name in set(zoo.VARIANTS) - set(IN_TIMM))
    assert len(IN_TIMM) >= 45


def peer(name: str, **changes: Any) -> torch.nn.Module:
    """Return timm's model without its initial weights, which take long to draw."""
    skipped = {} if isinstance(zoo.VARIANTS[name], ResNetConfig) else {"weight_init": "skip"}
    return timm.create_model(name, **changes, **skipped)


@pytest.mark.parametrize("name", zoo.VARIANTS)
def test_the_model_has_as_many_parameters_as_computed_and_timms_names(name: str) -> None:
    with torch.device("meta"):
        ours = zoo.create_model(name, num_classes=1000)
        theirs = peer(name, num_classes=1000) if name in IN_TIMM else ours
    assert sum(parameter.numel() for parameter in ours.parameters()) == GOLDEN[name]
    shapes = [{key: value.shape for key, value in model.state_dict().items()} for model in (ours, theirs)]
    assert shapes[0] == shapes[1]


def small(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return overrides of depth and size, ours and timm's, under which a variant computes in a moment."""
    config = zoo.VARIANTS[name]
    if isinstance(config, ResNetConfig):
        stem = {1: 32, 2: 16, 3: 32, 4: 8}[config.width_factor]
        channels = tuple(stem * 4 * 2**stage for stage in range(4))
        return (
            {"stem_width": stem, "num_classes": 7},
            {"stem_chs": stem, "channels": channels, "num_classes": 7},
        )
    size = (2 * config.step[0], 3 * config.step[1])
    shared = {"depth": 2, "num_classes": 7}
    return {"image_size": size, **shared}, {"img_size": size, **shared}


@pytest.mark.parametrize("name", IN_TIMM)
def test_same_weights_same_logits_as_timm(name: str) -> None:
    ours, theirs = small(name)
    with torch.device("meta"):  # initial weights, the slowest part, would be overwritten
        model, other = zoo.create_model(name, **ours), peer(name, **theirs).eval()
    assert not list(model.buffers()) and not list(other.buffers())
    model = randomize(model.to_empty(device="cpu"))
    other.load_state_dict(model.state_dict(), strict=True, assign=True)
    images = torch.randn(2, 3, *ours.get("image_size", (96, 64)))
    with torch.no_grad():
        torch.testing.assert_close(model(images), other(images), rtol=0, atol=1e-5)
    model.load_state_dict(other.state_dict(), strict=True)


@pytest.mark.slow
def test_the_whole_of_vit_base_16_agrees_with_timm() -> None:
    with torch.device("meta"):
        model, other = zoo.create_model("ViT-B/16"), peer("vit_base_patch16_224").eval()
    model = randomize(model.to_empty(device="cpu"))
    other.load_state_dict(model.state_dict(), strict=True, assign=True)
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(model(images), other(images), rtol=0, atol=1e-5)


VARIATIONS: list[dict[str, Any]] = [
    {},
    {"positions": "learned2d"},
    {"positions": "relative"},
    {"positions": "none", "pooling": "map", "class_token": False},
    {"activation": "swiglu", "layer_scale": 1e-5, "registers": 4, "qkv_bias": False},
    {"pre_logits": 48, "pooling": "gap"},
    {"distilled": True},
    {"frames": 4, "tubelet": 2},
    {"pooling": "cls_gap", "num_classes": 3},
    {"patch_size": (1, 1), "stem": ResNetConfig(layers=(2, 1), preactivation=False, same_padding=True)},
    {"patch_size": (2, 2), "stem": ResNetConfig(layers=(), preactivation=False, same_padding=True)},
]


@pytest.mark.parametrize("changes", VARIATIONS, ids=str)
def test_cost_formulas_agree_with_the_model_and_torchs_counter(changes: dict[str, Any]) -> None:
    config = ViTConfig(
        **{"image_size": (32, 48), "patch_size": (8, 8), "width": 32, "heads": 4, "mlp_width": 64, "depth": 2}
        | changes
    )
    model = zoo.build(config).eval()
    assert cost.parameters(config) == sum(parameter.numel() for parameter in model.parameters())
    clip = () if config.frames is None else (config.frames,)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.randn(1, 3, *clip, *config.image_size))
    assert cost.flops(config) == counter.get_total_flops() // 2


def test_cost_of_a_resnet_agrees_with_torchs_counter() -> None:
    config = ResNetConfig(layers=(1, 2, 1, 1), image_size=(64, 96))
    model = zoo.build(config).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.randn(1, 3, 64, 96))
    assert cost.flops(config) == counter.get_total_flops() // 2
    assert cost.parameters(config) == sum(parameter.numel() for parameter in model.parameters())


def test_the_papers_names_are_aliases() -> None:
    assert zoo.get_config("ViT-B/16") is not None
    assert zoo.ALIASES["R50+ViT-B/16"] == "vit_base_r50_s16_224"
    assert zoo.ALIASES["BiT-R152x4"] == "resnetv2_152x4_bit"
    assert zoo.list_models("ViT-B/16") == ["vit_base_patch16_224"]
    assert set(zoo.ALIASES.values()) <= set(zoo.VARIANTS)


def test_an_unknown_variant_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        ModelError, match=r"unknown model 'vit_bas_patch16_224'; did you mean vit_base_patch16_224"
    ):
        zoo.create_model("vit_bas_patch16_224")


def test_patterns_match_parts_and_wildcards() -> None:
    assert zoo.list_models("*_dinov2") == [name for name in zoo.VARIANTS if name.endswith("_dinov2")]
    assert "deit_tiny_patch16_224" in zoo.list_models("DEIT")
    assert zoo.list_models("nothing-like-it") == []


def test_trained_weights_are_loaded_not_created() -> None:
    with pytest.raises(
        ModelError, match=r"makes fresh weights.*vitreous\.load\(.hf://google/vit-base-patch16-224"
    ):
        zoo.create_model("vit_base_patch16_224", pretrained=True)
    assert zoo.create_model("vit_tiny_patch16_224", pretrained=False, depth=1).config.depth == 1
