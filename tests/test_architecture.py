"""The configurations: what they compute, and what they refuse in one line that says what to do."""

import json
from typing import Any

import pytest

from vitreous.errors import ModelError
from vitreous.models.architecture import ResNetConfig, ViTConfig, from_dict, override, to_dict


def test_the_defaults_are_vit_base_16() -> None:
    config = ViTConfig()
    assert (config.grid, config.tokens, config.prefix) == ((14, 14), 197, 1)


def test_a_hybrid_counts_patches_on_the_feature_map() -> None:
    config = ViTConfig(patch_size=(1, 1), stem=ResNetConfig(layers=(3, 4, 9)))
    assert config.step == (16, 16)
    assert config.grid == (14, 14)


def test_a_clip_is_cut_along_time_too() -> None:
    config = ViTConfig(frames=8, tubelet=2)
    assert config.patches == 4 * 14 * 14


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"image_size": (225, 224)},
            "image size 225x224 is not a multiple of the patch size 16: use 224x224 or 240x224",
        ),
        ({"image_size": 8}, "use 16x16"),
        ({"heads": 5}, "width 768 is not a multiple of 5 heads: use 4 or 6 heads, or width 770"),
        ({"depth": 0}, "depth 0 is too small"),
        ({"positions": "learnt"}, "unknown positions 'learnt': expected one of learned, sincos2d"),
        ({"pooling": "mean"}, "unknown pooling 'mean': expected one of cls, gap, map"),
        ({"class_token": False}, "pooling cls needs the class token: use gap or map"),
        ({"distilled": True, "pooling": "gap"}, "a distilled model pools its class token"),
        ({"dropout": 1.0}, "dropout 1.0 is not a probability"),
        ({"positions": "rope", "width": 60, "heads": 10}, "head width that is a multiple of 4, not 6"),
        ({"positions": "sincos2d", "width": 6, "heads": 3}, "multiple of 4, not 6"),
        ({"positions": "learned2d", "width": 3, "heads": 3}, "even width"),
        ({"frames": 3, "tubelet": 2}, "3 frames is not a multiple of the tubelet 2"),
        ({"frames": 2, "positions": "rope"}, "positions rope is for images"),
        ({"tubelet": 2}, "tubelet 2 is for video"),
        ({"frames": 2, "stem": ResNetConfig()}, "trunk takes images"),
        ({"norm_after_pool": True}, "norm_after_pool goes with pooling gap"),
        ({"positioned_prefix": 2}, "positioned_prefix 2 is out of range"),
        ({"image_size": (1, 2, 3)}, "is not a size"),
        ({"image_size": -16}, "is not a size"),
        ({"image_size": "x" * 10**5}, "image_size 'xxxxxxxxxxxx...xxxxxxxxxxxxx' is not a size"),
        ({"image_size": 10**6}, "image_size 1000000 is too large: a side is at most 16,384"),
        ({"image_size": 8192, "patch_size": 8}, "1,048,576 patches are more than 65,536"),
        ({"image_size": 2048, "positions": "relative"}, "16,384 patches are more than 10,000"),
        ({"depth": True}, "depth True is not a whole number: give one of at least 1"),
        ({"depth": 1.5}, "depth 1.5 is not a whole number"),
        ({"width": 10**30}, "width 1000000000000000000000000000000 is too large"),
        ({"width": 2**31 - 1, "heads": 2}, "is not a multiple of 2 heads: use 1 or 2147483647 heads"),
        ({"norm_eps": float("nan")}, "norm_eps nan can't be used: give a number of at least 0"),
        ({"dropout": "x"}, "dropout 'x' can't be used"),
        ({"class_token": 1}, "class_token 1 is neither true nor false"),
        ({"frames": 0}, "frames 0 is too small"),
        ({"pre_logits": -1}, "pre_logits -1 is too small"),
        ({"stem": 3}, "stem 3 can't be used"),
        ({"stem": {"layers": 3}}, "layers 3 can't be used: give the blocks of each stage"),
        ({"stem": {"layers": ["x"]}}, "layers ['x'] can't be used"),
        ({"stem": {"layers": [1] * 10**5}}, "layers has 100,000 stages: give at most 16"),
    ],
)
def test_what_cannot_be_built_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as refusal:
        ViTConfig(**options)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_misspelt_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError, match="no option 'num_class'; did you mean num_classes"):
        override(ViTConfig(), {"num_class": 10})


@pytest.mark.parametrize(
    "config",
    [
        ViTConfig(registers=4, image_size=(224, 448)),
        ViTConfig(patch_size=(1, 1), stem=ResNetConfig(layers=(3, 4, 9), std_eps_on="deviation")),
        ResNetConfig(width_factor=3),
    ],
)
def test_a_configuration_survives_json(config: ViTConfig | ResNetConfig) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    "values", [{}, {"kind": "os.system"}, {"kind": "vit", "surprise": 1}, {"kind": ["vit"]}]
)
def test_unknown_kinds_and_keys_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ModelError):
        from_dict(values)
