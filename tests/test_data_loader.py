"""The same batches come with any number of workers and ranks, from the cache and after a resume."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data_batches import EVERYTHING, SIZE, assert_same, batches, split
from tests.data_images import encoded, own_cache, picture
from vitreous.config import Augment, Preprocessing
from vitreous.data import Split, make_loader, open_data
from vitreous.data.augment import evaluation_transform
from vitreous.data.host import HostLoader
from vitreous.errors import DataError

__all__ = ["own_cache", "split"]


def test_the_cache_changes_nothing_but_speed(split: Split, tmp_path: Path) -> None:
    expected = [batches(split, epoch) for epoch in range(3)]
    loader = make_loader(
        split, preprocessing=SIZE, augment=EVERYTHING, batch_size=12, seed=5, cache=tmp_path, workers=2
    )
    for epoch in range(3):
        assert_same(list(loader.epoch(epoch)), expected[epoch])
    assert list(tmp_path.rglob("*.pixels"))
    other = make_loader(split, preprocessing=SIZE, augment=EVERYTHING, batch_size=12, seed=5, cache=tmp_path)
    assert_same(list(other.epoch(2)), expected[2])
    held = make_loader(split, preprocessing=SIZE, batch_size=9, training=False, cache=tmp_path)
    plain = batches(split, 0, training=False, batch_size=9)
    assert_same(list(held.epoch()), plain)
    assert_same(list(held.epoch()), plain)


def test_the_cache_decodes_once(split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    original = type(split.images).read
    monkeypatch.setattr(
        type(split.images), "read", lambda self, i, *a, **k: reads.append(i) or original(self, i, *a, **k)
    )
    loader = make_loader(split, preprocessing=SIZE, augment="light", batch_size=12, cache=tmp_path)
    for epoch in range(4):
        list(loader.epoch(epoch))
    assert len(reads) == len(set(reads)) <= len(split)


def test_large_photographs_are_cached_small(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(number, (1600, 1200)), "JPEG"))
    split = open_data(tmp_path / "data", carve=False).splits["train"]
    loader = make_loader(split, preprocessing=SIZE, augment="light", batch_size=4, cache=tmp_path / "cache")
    list(loader.epoch())
    assert sum(f.stat().st_size for f in (tmp_path / "cache").rglob("*.pixels")) < 4 * 100 * 100 * 3


@pytest.mark.filterwarnings("ignore:This DataLoader will create 7 worker")
@pytest.mark.parametrize("workers", [1, 7])
def test_workers_change_nothing(split: Split, workers: int) -> None:
    assert_same(batches(split, workers=workers), batches(split))


def test_workers_live_over_epochs_and_broken_off_ones(split: Split) -> None:
    options = {"preprocessing": SIZE, "augment": EVERYTHING, "batch_size": 12, "cache": None}
    many, none = make_loader(split, workers=2, **options), make_loader(split, **options)
    next(many.epoch(0))
    for epoch in (1, 2):
        assert_same(list(many.epoch(epoch)), list(none.epoch(epoch)))
    assert not torch.equal(next(none.epoch(1)).images, next(none.epoch(2)).images)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world=st.integers(1, 4),
    start=st.integers(0, 2),
    epoch=st.integers(0, 3),
    batch_size=st.integers(4, 13),
    repeats=st.integers(1, 3),
    sampler=st.sampled_from(["uniform", "balanced"]),
)
def test_ranks_and_resume_change_nothing(
    split: Split, world: int, start: int, epoch: int, batch_size: int, repeats: int, sampler: str
) -> None:
    """The property: any rank count, resumed at any step, gives the global batches of one rank that began at
    0."""
    augment = replace(EVERYTHING, repeats=repeats)
    options: dict[str, Any] = {"augment": augment, "batch_size": batch_size, "sampler": sampler}
    whole = batches(split, epoch, **options)
    parts = [batches(split, epoch, start, rank=rank, world_size=world, **options) for rank in range(world)]
    for step, expected in enumerate(whole[start:]):
        step_parts = [part[step] for part in parts]
        assert torch.equal(torch.cat([part.indices for part in step_parts]), expected.indices)
        assert torch.equal(torch.cat([part.targets for part in step_parts]), expected.targets)
        assert torch.equal(torch.cat([part.images for part in step_parts]), expected.images)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_takes_each_image_once_in_order(split: Split, world: int, workers: int) -> None:
    parts = [
        batches(split, 0, training=False, batch_size=9, rank=rank, world_size=world, workers=workers)
        for rank in range(world)
    ]
    assert len({len(part) for part in parts}) == 1
    seen = torch.cat([part[step].indices for step in range(len(parts[0])) for part in parts])
    assert seen.tolist() == list(range(len(split)))
    transform = evaluation_transform(SIZE)
    for batch in parts[0]:
        for image, target, index in zip(batch.images, batch.targets, batch.indices.tolist(), strict=True):
            assert torch.allclose(image, transform(split.read(index)), atol=1e-6)
            assert target == split.targets[index]


def test_pad_gives_masks(split: Split) -> None:
    settings = Preprocessing(image_size=(32, 32), resize="pad")
    kinds: list[dict[str, Any]] = [{"training": False}, {"augment": "light"}]
    for options in kinds:
        for batch in batches(split, preprocessing=settings, mask_step=8, **options):
            assert batch.mask is not None and batch.mask.shape == (len(batch), 16)
            assert (
                batch.mask.view(-1, 4, 4)[:, :3].all() and not batch.mask.view(-1, 4, 4)[:, 3].any()
            )  # 48x36 → 32x24
    assert batches(split)[0].mask is None


def test_mixed_targets_are_soft_and_others_are_not(split: Split) -> None:
    assert batches(split, augment="light")[0].targets.dtype == torch.int64
    soft = batches(split)[0].targets
    assert soft.shape == (12, 3) and torch.allclose(soft.sum(1), torch.ones(12), atol=1e-5)
    assert ((soft > 0.01) & (soft < 0.99)).any()


def test_several_labels_are_floats(tmp_path: Path) -> None:
    targets = np.random.default_rng(0).integers(0, 2, (20, 4))
    np.savez(tmp_path / "x.npz", images=np.zeros((20, 24, 24, 3), np.uint8), labels=targets)
    split = open_data(tmp_path / "x.npz", carve=False).splits["train"]
    batch = batches(split, augment="none", batch_size=20)[0]
    assert batch.targets.dtype == torch.float32
    assert np.array_equal(batch.targets.numpy(), targets[batch.indices.numpy()])


def test_many_channels(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 24, 24, 13), np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(20) % 2)
    split = open_data(tmp_path / "x.npz", carve=False).splits["train"]
    settings = Preprocessing(image_size=(24, 24), mean=(0.5,) * 13, std=(0.5,) * 13)
    assert batches(split, preprocessing=settings, augment="strong")[0].images.shape == (12, 13, 24, 24)
    with pytest.raises(DataError, match="need 1 or 3 channels"):
        batches(split, preprocessing=settings, augment=EVERYTHING)


def test_another_seed_gives_another_order_and_other_augmentation(split: Split) -> None:
    one, other = (batches(split, seed=seed, batch_size=37)[0] for seed in (5, 6))
    assert not torch.equal(one.indices, other.indices)
    fixed = Augment(crop_scale=(0.2, 0.6))
    one, other = (batches(split, seed=seed, batch_size=37, augment=fixed)[0] for seed in (5, 6))
    same = [torch.equal(one.images[one.indices == i], other.images[other.indices == i]) for i in range(37)]
    assert not any(same)


def test_a_small_split_of_files_gets_a_gentler_crop(tmp_path: Path) -> None:
    """The rule for tiny images holds for files as it does for arrays; photographs are cropped as usual."""
    crops = {}
    for name, size in (("tiny", (40, 30)), ("photos", (200, 150))):
        for number in range(6):
            path = tmp_path / name / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(picture(number, size)))
        split = open_data(tmp_path / name, carve=False).splits["train"]
        loader = make_loader(split, preprocessing=SIZE, augment="light", batch_size=6, cache=None)
        assert isinstance(loader, HostLoader) and loader.augment is not None
        crops[name] = loader.augment.crop_scale
    assert crops == {"tiny": (0.5, 1.0), "photos": (0.08, 1.0)}


def test_the_global_generator_is_left_alone(split: Split) -> None:
    torch.manual_seed(0)
    expected = torch.get_rng_state()
    batches(split, workers=2)
    batches(split)
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_small_split_is_one_batch(split: Split) -> None:
    few = split.select(np.arange(5))
    loader = make_loader(
        few, preprocessing=SIZE, augment=replace(EVERYTHING, repeats=3), batch_size=64, cache=None
    )
    assert loader.steps_per_epoch == 1
    assert len(next(loader.epoch())) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch size 0"),
        ({"batch_size": 2, "world_size": 3}, "3 ranks"),
        ({"rank": 2, "world_size": 2}, "rank 2"),
        ({"workers": -1}, "-1 workers"),
        ({"sampler": "random"}, "uniform or balanced"),
        ({"views": 0}, "0 views"),
        ({"views": 2, "training": False}, "2 views of an image: 1 or more in training, 1 in evaluation"),
        ({"views": 2, "augment": "strong"}, r"Mixup \(0.8\) and CutMix \(0\)"),
        ({"augment": "heavy"}, "none, mix, light, medium, strong"),
        ({"augment": Augment(randaugment=(2, 31))}, "0 to 30"),
    ],
)
def test_wrong_settings_are_named(split: Split, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        batches(split, **options)


def test_an_empty_split_is_named(split: Split) -> None:
    with pytest.raises(DataError, match="no images"):
        batches(split.select(np.arange(0)))
