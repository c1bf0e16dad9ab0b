"""One protocol: every kind of model answers the same calls, with the values that timm's models give."""

from typing import Any

import pytest
import timm
import torch

from tests.conftest import randomize
from vitreous.errors import ModelError
from vitreous.models import architecture, cost, zoo
from vitreous.models.architecture import ResNetConfig, ViTConfig
from vitreous.models.protocol import ImageModel
from vitreous.models.weights import Model

TRUNK = ResNetConfig(layers=(1, 1), stem_width=32, num_classes=0, preactivation=False, same_padding=True)
SHAPE: dict[str, Any] = {"image_size": (32, 64), "width": 32, "depth": 2, "heads": 4, "mlp_width": 64}
KINDS = {
    "plain": ViTConfig(**SHAPE, patch_size=(8, 8), num_classes=5),
    "distilled": ViTConfig(**SHAPE, patch_size=(8, 8), num_classes=5, distilled=True),
    "both pooled": ViTConfig(**SHAPE, patch_size=(8, 8), num_classes=5, pooling="cls_gap", pre_logits=16),
    "clips": ViTConfig(**SHAPE, patch_size=(8, 8), num_classes=5, frames=2),
    "hybrid": ViTConfig(**SHAPE, patch_size=(2, 2), num_classes=5, stem=TRUNK),
    "root alone": ViTConfig(
        **SHAPE, patch_size=(2, 2), num_classes=5, stem=ResNetConfig(layers=(), stem_width=32)
    ),
    "BiT": ResNetConfig(layers=(1, 1), stem_width=32, image_size=(32, 60), num_classes=5),
}


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Model:
    return randomize(zoo.build(KINDS[request.param]))  # type: ignore[return-value]


@torch.no_grad()
def test_both_kinds_answer_the_same_calls(model: Model) -> None:
    config, x = model.config, torch.randn(2, *model.config.input_shape)
    assert isinstance(model, ImageModel)
    features = model.forward_features(x)
    torch.testing.assert_close(model(x), model.forward_head(features))
    torch.testing.assert_close(model.encode(x), model.pool(features))
    assert model.encode(x).shape == (2, config.pooled_width)
    assert model.feature_maps(features).shape == (2, config.width, *config.grid)
    last = model.forward_intermediates(x)[-1]
    assert model.feature_maps(last).shape == (2, config.width, *config.grid)
    assert cost.parameters(config) == sum(each.numel() for each in model.parameters())


def test_names_of_the_outer_layers_are_the_models_own(model: Model) -> None:
    config = model.config
    first = model.get_submodule(config.first_convolution)
    assert first.weight.shape[1] == config.in_channels
    for name in config.classifiers:
        assert model.get_submodule(name).weight.shape[:2] == (5, config.feature_width)
    fresh = model.fresh_classifier()
    assert fresh is not None and not any(each.any() for each in fresh.parameters())
    assert [each.shape for each in fresh.parameters()] == [
        each.shape for each in model.get_submodule(config.classifiers[0]).parameters()
    ]


def test_a_kind_survives_its_document(model: Model) -> None:
    document = architecture.to_dict(model.config)
    assert document["kind"] == model.config.kind
    assert architecture.from_dict(document) == model.config


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {"depth": 2, "img_size": 32}),
        ("deit_tiny_distilled_patch16_224", {"depth": 2, "img_size": 32}),
        ("resnetv2_50x1_bit", {}),
    ],
)
@torch.no_grad()
def test_encode_is_timms_pooled_features(name: str, options: dict[str, Any]) -> None:
    theirs = randomize(timm.create_model(name, num_classes=3, **options))
    changes = {"depth": 2} if "depth" in options else {}
    ours = zoo.create_model(name, num_classes=3, image_size=32, **changes).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 3, 32, 32)
    expected = theirs.forward_head(theirs.forward_features(x), pre_logits=True)
    expected = expected.flatten(1) if expected.ndim == 4 else expected
    torch.testing.assert_close(ours.encode(x), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_encode_takes_another_layer_another_pooling_and_a_mask() -> None:
    model = randomize(zoo.build(KINDS["plain"]))
    x = torch.randn(2, 3, 32, 64)
    mask = torch.rand(2, 32) < 0.6
    tokens = model.norm(model.forward_intermediates(x, [0], mask)[0])
    mean = torch.stack([each[1:][seen].mean(0) for each, seen in zip(tokens, mask, strict=True)])
    torch.testing.assert_close(model.encode(x, mask, layer=0, pooling="gap"), mean)
    both = model.encode(x, mask, layer=0, pooling="cls_gap")
    torch.testing.assert_close(both, torch.cat([tokens[:, 0], mean], 1))
    with pytest.raises(ModelError, match="layers .* are out of range"):
        model.encode(x, layer=7)
    bare = zoo.build(ViTConfig(**SHAPE, patch_size=(8, 8), class_token=False, pooling="gap"))
    with pytest.raises(ModelError, match="pooling cls needs a class token"):
        bare.encode(x, pooling="cls")


def test_what_a_resnet_has_not_is_said_in_one_line() -> None:
    model, x = zoo.build(KINDS["BiT"]), torch.randn(2, 3, 32, 60)
    mask = torch.ones(2, 32, dtype=torch.bool)
    for call in (model, model.forward_features, model.encode):
        with pytest.raises(ModelError, match="a ResNet can't leave out padding"):
            call(x, mask)
    with pytest.raises(ModelError, match="leave out layer and pooling"):
        model.encode(x, pooling="gap")
    with pytest.raises(ModelError, match="patch size 8 is for a ViT"):
        model.set_patch_size(8)
