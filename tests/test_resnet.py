"""BiT: weight standardisation, padding, and refusals; test_zoo compares its logits with timm's."""

from dataclasses import replace

import pytest
import torch
from timm.layers.padding import pad_same as timm_pad_same
from timm.layers.std_conv import StdConv2d as TimmStdConv2d

from tests.conftest import randomize
from vitreous.errors import ModelError
from vitreous.models.architecture import ResNetConfig
from vitreous.models.resnet import ResNet, StdConv2d, pad_same

TINY = ResNetConfig(layers=(1, 1), stem_width=32, num_classes=5)


def test_standardised_convolution_is_timms() -> None:
    ours, theirs = StdConv2d(TINY, 8, 6, 3, 2), TimmStdConv2d(8, 6, 3, 2, eps=1e-8)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 8, 9, 7)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-5)


def test_filters_are_standardised_under_both_conventions() -> None:
    for eps_on in ("variance", "deviation"):
        conv = StdConv2d(replace(TINY, std_eps_on=eps_on), 8, 6, 1)
        moved = StdConv2d(replace(TINY, std_eps_on=eps_on), 8, 6, 1)
        moved.weight.data = conv.weight.data * 7 + 3
        x = torch.randn(2, 8, 4, 4)
        torch.testing.assert_close(conv(x), moved(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(7, 7), (8, 8), (13, 6)])
def test_same_padding_is_tensorflows(size: tuple[int, int]) -> None:
    x = torch.randn(1, 2, *size)
    assert torch.equal(pad_same(x, 3, 2, 0.5), timm_pad_same(x, [3, 3], [2, 2], value=0.5))


def test_any_size_goes_in_and_features_come_out() -> None:
    model = ResNet(TINY)
    randomize(model)
    x = torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        features = model.forward_features(x)
        assert features.shape == (2, 256, 5, 7)
        expected = features.mean((2, 3)) @ model.head.fc.weight.flatten(1).T + model.head.fc.bias
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-4)
    assert [tuple(each.shape[1:]) for each in model.forward_intermediates(x)] == [(128, 10, 14), (256, 5, 7)]


def test_it_compiles_whole_and_exports_with_any_batch() -> None:
    model = ResNet(TINY)
    randomize(model)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=1e-4)
        exported = torch.export.export(
            model, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}}, strict=True
        )
        three = torch.randn(3, 3, 32, 32)
        torch.testing.assert_close(exported.module()(three), model(three), rtol=0, atol=1e-4)


def test_a_fresh_head_is_zero_and_wrong_channels_are_refused() -> None:
    model = ResNet(TINY)
    assert not model(torch.randn(1, 3, 32, 32)).any()
    with pytest.raises(ModelError, match=r"expected \(B, 3, H, W\)"):
        model(torch.randn(1, 1, 32, 32))
    with pytest.raises(ModelError, match="empty stage"):
        ResNetConfig(layers=(3, 0))
