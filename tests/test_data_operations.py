"""Colour operations: the same as torchvision's, the same on a batch as on one image, drawn with its
distribution."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from tests.data_images import picture
from vitreous.config import Augment
from vitreous.data import lookup, mix, operations, order
from vitreous.data.operations import NAMES, RANDAUGMENT, Operation
from vitreous.data.resample import crop_resize
from vitreous.errors import DataError

PICTURES = [
    picture(1, (64, 64)),
    picture(2, (61, 47)),
    picture(3, (40, 40), "L"),
    Image.new("RGB", (16, 16), (9, 9, 9)),
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (33, 21, 3), np.uint8)),
]


def tensor(image: Image.Image) -> torch.Tensor:
    pixels = np.asarray(image)
    return torch.from_numpy(pixels.copy().reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("magnitude", [0, 9, 15, 20, 30])
def test_each_operation_is_torchvisions(name: str, magnitude: int) -> None:
    theirs = v2.RandAugment()
    strength_of, signed, _ = RANDAUGMENT[name]
    for image in PICTURES:
        magnitudes, their_sign = v2.RandAugment._AUGMENTATION_SPACE[name]
        values = magnitudes(31, image.height, image.width)
        assert signed == their_sign
        for sign in (1, -1) if signed else (1,):
            value = 0.0 if values is None else float(values[magnitude]) * sign
            expected = theirs._apply_image_or_video_transform(
                image, name, value, v2.InterpolationMode.NEAREST, {}
            )  # pyright: ignore[reportArgumentType]
            ours = operations.apply_image(image, [Operation(name, strength_of(magnitude) * sign)])
            assert np.array_equal(np.asarray(ours), np.asarray(expected)), (name, sign, image.size)


def test_the_faster_ones_are_equal_to_the_last_bit() -> None:
    for name, function in lookup.FASTER.items():
        for image in PICTURES:
            for strength in (-0.9, -0.27, 0.0, 0.45, 0.9):
                expected = operations.FUNCTIONS[name](image, strength)
                assert np.array_equal(np.asarray(function(image, strength)), np.asarray(expected)), (
                    name,
                    strength,
                )


@pytest.mark.parametrize("image", PICTURES[:3])
def test_a_batch_does_what_single_images_do(image: Image.Image) -> None:
    """Each image of a batch with its own operation comes out as on its own; Pillow's kernels differ by a
    level."""
    chosen = [
        [Operation(name, RANDAUGMENT[name][0](15) * sign)]
        for name in NAMES
        for sign in (1, -1)[: 1 + RANDAUGMENT[name][1]]
    ]
    chosen += [[Operation("Gray")], [Operation("Half-solarize")], [Operation("Blur", 1.3)], []]
    chosen += [[Operation("Brightness-factor", 1.2)], [Operation("Saturation-factor", 0.7)]]
    batch = operations.apply_batch(torch.stack([tensor(image)] * len(chosen)), chosen)
    for result, operation in zip(batch, chosen, strict=True):
        expected = tensor(operations.apply_image(image, operation)).int()
        if expected.shape[0] != result.shape[0]:
            continue
        difference = (result.int() - expected).abs()
        moved = operation and operation[0].name in operations.GEOMETRIC
        # A nearest pixel may fall on the other side of a tie; a colour may round the other way.
        assert (difference.amax(0) > 0).float().mean() < 0.02 if moved else difference.max() <= 2, operation


def test_operations_come_in_turn() -> None:
    image: Any = PICTURES[0]
    chosen = [Operation("Posterize", 4), Operation("Equalize"), Operation("Rotate", 9.0)]
    expected = F.rotate(F.equalize(F.posterize(image, 4)), 9.0)
    assert np.array_equal(np.asarray(operations.apply_image(image, chosen)), np.asarray(expected))


def test_draws_have_torchvisions_distribution() -> None:
    augment = Augment(randaugment=(2, 9))
    draws = order.uniforms(operations.draws_needed(augment), 0, 0, np.arange(7000))
    chosen = operations.choose(augment, draws)
    counts = Counter(operation.name for row in chosen for operation in row)
    expected = 14_000 / len(NAMES)  # torchvision draws each of them, the identity too, with equal chance
    assert set(counts) == set(NAMES) - {"Identity"}
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
    signs = [operation.strength > 0 for row in chosen for operation in row if operation.name == "Rotate"]
    assert abs(np.mean(signs) - 0.5) < 0.06


def test_every_image_has_its_own_draw() -> None:
    augment = Augment(randaugment=(2, 9), three_augment=True, color_jitter=0.3)
    draws = order.uniforms(operations.draws_needed(augment), 0, 0, np.arange(64))
    assert len({tuple(row) for row in operations.choose(augment, draws)}) > 55


def test_three_augment_and_jitter() -> None:
    augment = Augment(three_augment=True, color_jitter=0.3)
    chosen = operations.choose(
        augment, order.uniforms(operations.draws_needed(augment), 1, 0, np.arange(3000))
    )
    firsts = Counter(row[0].name for row in chosen)
    assert set(firsts) == set(operations.THREE_AUGMENT) and all(
        850 < count < 1150 for count in firsts.values()
    )
    factors = [
        operation.strength for row in chosen for operation in row if operation.name in operations.JITTER
    ]
    assert min(factors) == pytest.approx(0.7) and max(factors) == pytest.approx(1.3)
    sigmas = [row[0].strength for row in chosen if row[0].name == "Blur"]
    assert min(sigmas) == pytest.approx(0.1) and max(sigmas) == pytest.approx(2.0)
    for row in chosen[:20]:
        assert operations.apply_image(PICTURES[0], row).size == PICTURES[0].size


def test_other_channel_counts_are_refused() -> None:
    operations.check_operations(Augment(), 13)
    with pytest.raises(DataError, match="need 1 or 3 channels, not 13"):
        operations.check_operations(Augment(randaugment=(2, 9)), 13)


@pytest.mark.parametrize(
    ("randaugment", "message"),
    [((-1, 9), "RandAugment's -1 operations are out of range"), ((2, 31), "magnitude 31 is out of range")],
)
def test_randaugment_out_of_range_is_refused(randaugment: tuple[int, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        operations.check_operations(Augment(randaugment=randaugment, three_augment=True), 3)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(24, 24), (90, 70)])
def test_batched_crops_equal_pillows(interpolation: str, size: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    images = [picture(seed, (64, 48)) for seed in range(12)]
    boxes = np.stack([[*(random.integers(0, 20, 2)), *(random.integers(5, 28, 2))] for _ in images])
    flips = random.random(12) < 0.5
    method = {
        "bilinear": Image.Resampling.BILINEAR,
        "bicubic": Image.Resampling.BICUBIC,
        "lanczos": Image.Resampling.LANCZOS,
    }
    batch = crop_resize(torch.stack([tensor(i) for i in images]), boxes, size, interpolation, flips)
    for result, image, (top, left, height, width), flip in zip(
        batch, images, boxes.tolist(), flips, strict=True
    ):
        expected = image.crop((left, top, left + width, top + height)).resize(
            (size[1], size[0]), method[interpolation]
        )
        expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else expected
        difference = (result.int() - tensor(expected).int()).abs()
        assert difference.max() <= 2 and (difference > 1).float().mean() < 0.002


def test_nearest_crops_take_whole_pixels() -> None:
    image = picture(1, (32, 32))
    whole = crop_resize(tensor(image)[None], np.array([[0, 0, 32, 32]]), (8, 8), "nearest")[0]
    assert torch.equal(whole, tensor(image.resize((8, 8), Image.Resampling.NEAREST)))


def test_partners_are_neighbours() -> None:
    assert mix.partners(4).tolist() == [1, 0, 3, 2]
    assert mix.partners(5).tolist() == [1, 0, 3, 2, 3]
    assert mix.partners(1).tolist() == [0]


def test_mixup_shares_follow_the_beta_distribution() -> None:
    from scipy.stats import beta, kstest

    own, boxes = mix.mix_shares(
        Augment(mixup=0.4), order.uniforms(mix.MIX_DRAWS, 0, 0, np.arange(4000)), 32, 32
    )
    assert kstest(own, beta(0.4, 0.4).cdf).pvalue > 0.001
    assert not boxes.any()


def test_mixup_and_cutmix_mix_pixels_and_targets_alike() -> None:
    augment = Augment(mixup=0.8, cutmix=1.0)
    count = 64
    own, boxes = mix.mix_shares(augment, order.uniforms(mix.MIX_DRAWS, 0, 1, np.arange(count)), 16, 16)
    cut = boxes[:, 2] * boxes[:, 3] > 0
    assert 15 < cut.sum() < 49
    ones, zeros = torch.ones(count, 1, 16, 16), torch.zeros(count, 1, 16, 16)
    mixed = mix.mix(ones, zeros, own, boxes)
    assert torch.allclose(
        mixed.mean((1, 2, 3)), torch.from_numpy(own).float(), atol=1e-5
    )  # each its own share
    assert set(mixed[torch.from_numpy(cut)].unique().tolist()) == {0.0, 1.0}
    targets = mix.mix_targets(
        torch.eye(2)[torch.zeros(count).long()], torch.eye(2)[torch.ones(count).long()], own
    )
    assert torch.allclose(targets.sum(1), torch.ones(count))
    assert torch.allclose(targets[:, 0], torch.from_numpy(own).float())


def test_mix_probability() -> None:
    own, _ = mix.mix_shares(
        Augment(mixup=0.8, mix_probability=0.25), order.uniforms(mix.MIX_DRAWS, 0, 2, np.arange(4000)), 8, 8
    )
    assert abs((own < 1).mean() - 0.25) < 0.03


def test_erasing() -> None:
    draws = order.uniforms(mix.ERASE_DRAWS, 0, 0, np.arange(2000))
    boxes = mix.erase_boxes(draws, 0.25, 64, 64)
    erased = boxes[:, 2] > 0
    assert abs(erased.mean() - 0.25) < 0.04
    areas = boxes[erased, 2] * boxes[erased, 3] / 64**2
    assert 0.015 < areas.min() and areas.max() < 0.36
    images = torch.full((2, 3, 64, 64), 9.0)
    both = np.array([[3, 4, 10, 20], [0, 0, 0, 0]])
    result = mix.erase(images, both, torch.tensor([5, 6]))
    assert torch.equal(result[1], torch.full((3, 64, 64), 9.0))
    inside = result[0, :, 3:13, 4:24]
    assert abs(inside.mean()) < 0.2 and 0.8 < inside.std() < 1.2
    assert (result[0] != 9).sum() == inside.numel()
