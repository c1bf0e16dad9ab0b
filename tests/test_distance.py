"""Attention distance and entropy against slow loops; receptive fields against gradients."""

from math import hypot, log
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.test_vit import inputs, tiny
from vitreous import inspection
from vitreous.inspection import distance
from vitreous.models.architecture import ResNetConfig
from vitreous.models.resnet import ResNet
from vitreous.models.zoo import get_config


@pytest.mark.parametrize(
    "changes", [{}, {"registers": 3}, {"image_size": (8, 40)}, {"distilled": True}], ids=str
)
def test_distance_and_entropy_against_a_slow_loop(changes: dict[str, Any]) -> None:
    model = tiny(**changes)
    x = inputs(model)
    with torch.no_grad():
        maps = inspection.attention_maps(model, x).double().numpy()
    config = model.config
    (height, width), prefix = config.grid, config.prefix
    slow, spread = np.zeros((2, 2, 4)), np.zeros((2, 2, 4))
    for b, layer, head in np.ndindex(2, 2, 4):
        for query in range(height * width):
            row = maps[b, layer, head, prefix + query]
            spread[b, layer, head] -= sum(p * log(p) for p in row) / log(len(row)) / (height * width)
            weights = row[prefix:] / row[prefix:].sum()
            for key, weight in enumerate(weights):
                down, right = key // width - query // width, key % width - query % width
                slow[b, layer, head] += weight * hypot(down * 8, right * 8) / (height * width)
    np.testing.assert_allclose(inspection.attention_distance(model, x), slow.mean(0), rtol=1e-4)
    np.testing.assert_allclose(inspection.attention_entropy(model, x), spread.mean(0), rtol=1e-4)


def test_distance_counts_visible_patches_only() -> None:
    """A padded image has the distances of the same image on a canvas of its own size."""
    small = tiny(positions="none", image_size=(16, 16))
    large = tiny(positions="none", image_size=(16, 24))
    large.load_state_dict(small.state_dict())
    x = inputs(small)
    padded = torch.nn.functional.pad(x, (0, 8))
    mask = torch.tensor([[True, True, False] * 2] * 2)
    measure = inspection.attention_distance
    torch.testing.assert_close(measure(large, padded, mask), measure(small, x), rtol=1e-4, atol=1e-4)


def test_receptive_fields_are_what_gradients_reach() -> None:
    config = ResNetConfig(layers=(2, 1), stem_width=32, num_classes=0)
    model = ResNet(config).double()
    for module in model.modules():  # a norm mixes the whole map: leave the convolutions alone
        for name, child in module.named_children():
            if isinstance(child, nn.GroupNorm):
                setattr(module, name, nn.Identity())
    x = torch.randn(1, 3, 160, 160, dtype=torch.float64, requires_grad=True)
    sides = []
    for stage in (0, 1):
        maps = model.forward_intermediates(x)[stage]
        # The largest pool picks one pixel: a sum over channels meets every border.
        (reach,) = torch.autograd.grad(maps[0, :, maps.shape[2] // 2, maps.shape[3] // 2].square().sum(), x)
        columns = reach[0].abs().sum(dim=(0, 1)).nonzero()[:, 0]
        sides.append(int(columns.max() - columns.min()) + 1)
    fields = {field.block: field for field in inspection.receptive_fields(config)}
    assert fields["root"] == ("root", 11, 4)
    assert [fields["stage 1, block 2"].side, fields["stage 2, block 1"].side] == sides
    assert fields["stage 2, block 1"].stride == 8


def test_receptive_field_of_bit_r50() -> None:
    """ResNet-50's published figure (its strides in the 3x3, as BiT's): 427 pixels, one cell every 32."""
    fields = inspection.receptive_fields(get_config("BiT-R50x1"))
    assert len(fields) == 1 + 3 + 4 + 6 + 3
    assert fields[-1].side == 427 and fields[-1].stride == 32


def test_field_distance_against_pixels() -> None:
    size, side = (48, 64), 21
    rows, columns = np.meshgrid(np.arange(48) + 0.5, np.arange(64) + 0.5, indexing="ij")
    total, generator = [], np.random.default_rng(0)
    for y, x in generator.uniform((0, 0), size, (300, 2)):
        inside = (abs(rows - y) <= side / 2) & (abs(columns - x) <= side / 2)
        total.append(np.hypot(rows - y, columns - x)[inside].mean())
    assert distance.field_distance(size, side) == pytest.approx(np.mean(total), rel=0.02)
    depth, line = distance.cnn_line((224, 224), get_config("BiT-R50x1"))
    assert (np.diff(line) >= -1e-9).all() and depth[-1] == 1.0
    assert line[-1] < 1.03 * distance.uniform_distance(get_config("ViT-B/16"))
