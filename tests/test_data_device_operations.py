"""Batched operations and boxes against those of single images: torchvision's kernels, numpy's boxes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import betaincinv

from tests.data_images import picture
from tests.test_draws import has_compiler
from vitreous.config import Augment
from vitreous.data import augment, device_boxes, device_operations, mix, operations, order

PLAIN = Augment(crop_scale=None, flip=0.0)
MOVING = operations.GEOMETRIC


def pictures(count: int, size: tuple[int, int] = (36, 28), mode: str = "RGB") -> torch.Tensor:
    pixels = np.stack(
        [np.asarray(picture(seed, size, mode)).reshape(size[1], size[0], -1) for seed in range(count)]
    )
    pixels[0] = 7  # one level: nothing to stretch or equalize
    pixels[1, :, :, 0] = 255
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def compare(
    settings: Augment, mode: str = "RGB", size: tuple[int, int] = (36, 28), count: int = 210
) -> np.ndarray:
    """Return the largest difference in levels per image between one kernel call per group and ours."""
    images = pictures(count, size, mode)
    draws = order.uniforms(operations.draws_needed(settings), 3, np.arange(count))
    expected = operations.apply_batch(images.clone(), operations.choose(settings, draws))
    table = device_operations.strengths(settings.randaugment[1])
    ours = device_operations.operate(images, settings, torch.from_numpy(draws), table)
    assert ours.dtype == torch.uint8
    return (ours.int() - expected.int()).abs().flatten(1).float().numpy()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("magnitude", [0, 9, 15, 20, 30])
def test_randaugment_is_torchvisions(mode: str, magnitude: int) -> None:
    settings = replace(PLAIN, randaugment=(1, magnitude))
    apart = compare(settings, mode)
    draws = order.uniforms(2, 3, np.arange(len(apart)))
    chosen = [operations.NAMES[int(row[0] * len(operations.NAMES))] for row in draws]
    assert set(chosen) == set(operations.NAMES)
    for name in operations.NAMES:
        rows = apart[[i for i, each in enumerate(chosen) if each == name]]
        if name in MOVING:  # where two source pixels are equally near, the last bit decides
            assert (rows > 0).mean() < 0.03, name
        elif name in ("Brightness", "Contrast", "Color"):  # a product that ends on a whole level
            assert rows.max() <= 1 and (rows > 0).mean() < 0.02, name
        else:
            assert rows.max() == 0, name


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_three_augment_and_jitter_are_torchvisions(mode: str) -> None:
    apart = compare(replace(PLAIN, three_augment=True), mode)
    assert apart.max() <= 1 and (apart > 0).mean() < 1e-3  # a blur's sum may round the other way
    assert compare(replace(PLAIN, color_jitter=0.4), mode).max() <= 1


def test_several_operations_follow_each_other() -> None:
    settings = replace(PLAIN, randaugment=(3, 12), three_augment=True, color_jitter=0.3)
    apart = compare(settings)
    assert (apart > 3).mean() < 0.03
    assert np.median(apart.mean(1)) < 0.1


@pytest.mark.parametrize("size", [(2, 2), (3, 5), (9, 8)])
def test_tiny_images_have_no_room_for_a_kernel(size: tuple[int, int]) -> None:
    apart = compare(replace(PLAIN, randaugment=(1, 12), three_augment=True), size=size, count=60)
    assert (apart > 1).mean() < 0.05


def draws_of(count: int, columns: int) -> np.ndarray:
    return order.uniforms(columns, 11, np.arange(count))


@pytest.mark.parametrize("ratio", [(3 / 4, 4 / 3), (0.99, 1.01)])
def test_crops_are_those_of_numpy(ratio: tuple[float, float]) -> None:
    settings = Augment(crop_scale=(0.08, 1.0), crop_ratio=ratio)
    sizes = (draws_of(3000, 2) * 500 + 1).astype(np.int64)
    sizes[:50] = [1000, 10]  # too long for any attempt: the centre
    draws = draws_of(3000, 40).reshape(-1, 10, 4)
    expected = augment.crop_boxes(sizes[:, 0], sizes[:, 1], settings, draws)
    heights, widths = torch.from_numpy(sizes).unbind(1)
    ours = device_boxes.crop_boxes(heights, widths, settings, torch.from_numpy(draws))
    assert np.array_equal(ours.numpy(), expected)


def test_erased_boxes_are_those_of_numpy() -> None:
    draws = draws_of(3000, mix.ERASE_DRAWS)
    for height, width in ((32, 32), (4, 50), (1, 1)):
        expected = mix.erase_boxes(draws, 0.4, height, width)
        ours = device_boxes.erase_boxes(torch.from_numpy(draws), 0.4, height, width)
        assert np.array_equal(ours.numpy(), expected)


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 1.0), (0.2, 0.0), (0.0, 1.0), (0.0, 0.5)])
def test_shares_are_those_of_numpy(mixup: float, cutmix: float) -> None:
    settings = replace(PLAIN, mixup=mixup, cutmix=cutmix, mix_probability=0.8)
    draws = draws_of(3000, mix.MIX_DRAWS)
    own, boxes = mix.mix_shares(settings, draws, 32, 24)
    tables = device_boxes.beta_table(mixup), device_boxes.beta_table(cutmix)
    ours, our_boxes = device_boxes.mix_shares(settings, torch.from_numpy(draws), 32, 24, *tables)
    assert np.abs(ours.numpy() - own).max() < 1e-5
    assert np.array_equal(our_boxes.numpy(), boxes)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 1.0])
def test_the_table_is_betas_quantile(alpha: float) -> None:
    draws = draws_of(1, 20_000)[0]
    ours = device_boxes.beta_quantile(device_boxes.beta_table(alpha), torch.from_numpy(draws))
    assert np.abs(ours.numpy() - betaincinv(alpha, alpha, draws)).max() < 1e-5


def test_inside_a_box() -> None:
    boxes = torch.tensor([[1, 2, 3, 1], [0, 0, 0, 0]])
    expected = torch.zeros(2, 1, 5, 4, dtype=torch.bool)
    expected[0, 0, 1:4, 2:3] = True
    assert torch.equal(device_boxes.inside(boxes, 5, 4), expected)


def test_a_compiled_table_is_the_same() -> None:
    """Inductor's vectorised minimum of uint8 is 0 (torch 2.15 on a processor): levels are reduced as
    floats."""
    if not has_compiler():
        pytest.skip("no C++ compiler here")
    torch._dynamo.reset()

    def stretch(x: torch.Tensor) -> torch.Tensor:
        return device_operations.stretched(x.round().to(torch.uint8))

    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 150 + 50
    assert torch.equal(torch.compile(stretch, fullgraph=True)(images), stretch(images))
