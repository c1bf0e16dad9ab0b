"""Fitting a model to another task: heads, channels and sizes, with timm's functions as oracle."""

import pytest
import timm
import torch
from timm.models._manipulate import adapt_input_conv

from tests.conftest import randomize
from tests.test_vit import inputs, tiny
from vitreous.config import Preprocessing
from vitreous.errors import ModelError
from vitreous.models import adapt, zoo
from vitreous.models.architecture import ResNetConfig, pair
from vitreous.models.resnet import ResNet


def test_a_new_head_is_zero_and_nothing_else_changes() -> None:
    model = tiny()
    x = inputs(model)
    before = model.forward_features(x)
    said = adapt.set_classes(model, 9)
    assert said == ["head: 5 → 9 classes, fresh zeros"]
    assert not model(x).any() and model(x).shape == (2, 9)
    torch.testing.assert_close(model.forward_features(x), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    "changes", [{}, {"distilled": True}, {"pre_logits": 8}, {"pooling": "cls_gap"}], ids=str
)
def test_rows_of_classes_that_both_know_are_kept(changes: dict[str, object]) -> None:
    model = tiny(**changes)
    x = inputs(model)
    before = model(x)
    said = adapt.set_classes(model, 3, ["a", "b", "c", "d", "e"], ["new", "d", "b"])
    assert said == ["head: 5 → 3 classes, fresh zeros, 2 rows kept by name"]
    after = model(x)
    assert not after[:, 0].any()
    torch.testing.assert_close(after[:, 1:], before[:, [3, 1]], rtol=0, atol=1e-6)


def test_a_resnets_head_is_replaced_too() -> None:
    model = ResNet(ResNetConfig(layers=(1,), stem_width=32, num_classes=4))
    randomize(model)
    adapt.set_classes(model, 2)
    assert model(torch.randn(1, 3, 32, 32)).tolist() == [[0.0, 0.0]]
    adapt.set_classes(model, 0)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 128)


def test_a_head_can_be_removed_and_given_to_a_model_without() -> None:
    model = tiny()
    adapt.set_classes(model, 0)
    assert model(inputs(model)).shape == (2, 32)
    adapt.set_classes(model, 4)
    assert model(inputs(model)).shape == (2, 4)


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_channels_are_adapted_as_timm_does(channels: int) -> None:
    weight = torch.randn(6, 3, 4, 4)
    torch.testing.assert_close(
        adapt.adapt_channels(weight, channels), adapt_input_conv(channels, weight.clone())
    )


def test_a_gray_image_gives_what_its_copy_in_every_channel_gave() -> None:
    model = tiny()
    gray = torch.randn(2, 1, 16, 24)
    before = model(gray.expand(-1, 3, -1, -1))
    assert adapt.set_channels(model, 1) == ["input channels: 3 → 1, filters summed"]
    torch.testing.assert_close(model(gray), before, rtol=0, atol=1e-5)
    assert adapt.set_channels(model, 1) == []


@pytest.mark.parametrize("name", ["vit_tiny_r_s16_p8_224", "vit_base_r50_s16_224", "resnetv2_50x1_bit"])
def test_trunks_are_adapted_at_their_first_convolution(name: str) -> None:
    with torch.device("meta"):
        model = zoo.create_model(name)
    adapt.set_channels(model, 5)
    assert model.config.in_channels == 5
    assert any(p.ndim == 4 and p.shape[1] == 5 and p.shape[2] == 7 for p in model.parameters())


@pytest.mark.parametrize(
    ("size", "patch"), [(384, None), ((256, 384), None), (None, 14), (None, 32), (320, 32)]
)
def test_another_size_or_patch_gives_timms_logits(
    size: int | tuple[int, int] | None, patch: int | None
) -> None:
    """timm resamples on load, through its own functions, into a model built at the new size."""
    small = {"depth": 1, "num_classes": 3}
    model = randomize(zoo.create_model("vit_tiny_patch16_224", **small))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    target = {"img_size": size or 224} | ({"patch_size": patch} if patch else {})
    peer = timm.create_model("vit_tiny_patch16_224", **small, **target).eval()
    peer.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(state, peer), strict=True)
    said = adapt.set_sizes(model, size, patch)
    assert len(said) == (size is not None) + (patch is not None)
    x = torch.randn(1, 3, *pair(size or 224, "size"))
    with torch.no_grad():
        torch.testing.assert_close(model(x), peer(x), rtol=0, atol=1e-5)


def test_a_resnet_has_no_patches() -> None:
    with pytest.raises(ModelError, match="no patches"):
        adapt.set_sizes(ResNet(ResNetConfig(layers=(1,), stem_width=32)), None, 8)


def test_preprocessing_follows_the_model() -> None:
    before = Preprocessing(
        image_size=(224, 224), resize_size=(256, 256), mean=(0.3, 0.4, 0.5), std=(0.1, 0.2, 0.3)
    )
    after = adapt.refit(before, (448, 224), 1)
    assert (after.image_size, after.resize_size) == ((448, 224), (512, 256))
    assert after.mean == pytest.approx((0.4,)) and after.std == pytest.approx((0.2,))
    assert adapt.refit(before, (224, 224), 4).mean == (0.3, 0.4, 0.5, 0.3)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "BiT-R50x1"])
def test_a_head_is_reset_as_timms_is(name: str) -> None:
    model = zoo.create_model(name, num_classes=3, **({} if name[0] == "B" else {"depth": 1}))
    model.reset_classifier(7)
    assert model.config.num_classes == 7
    expected = zoo.build(model.config).state_dict()
    assert {key: value.shape for key, value in model.state_dict().items()} == {
        key: value.shape for key, value in expected.items()
    }
    assert all(not value.any() for key, value in model.state_dict().items() if key.startswith("head"))
    model.reset_classifier(0)
    assert not [key for key in model.state_dict() if key.startswith("head")]
    with pytest.raises(ModelError, match="num_classes"):
        model.reset_classifier(-1)
