"""A batch takes parts of itself; several views of an image are there, differ, and depend on nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data_images import make_folder, own_cache
from vitreous.config import Augment, Preprocessing
from vitreous.data import Batch, SmallViews, Split, make_loader, open_data
from vitreous.data import draws as drawing
from vitreous.errors import DataError

__all__ = ["own_cache"]

SIZE = Preprocessing(image_size=(24, 24))
VARIED = Augment(crop_scale=(0.3, 0.8), randaugment=(1, 9), color_jitter=0.3, erase=0.5)


def numbered(count: int, views: int = 1, *, mask: bool = True) -> Batch:
    """A batch in which every pixel tells its view and its image."""
    rows = torch.cat([torch.arange(count) + 100 * view for view in range(views)]).float()
    images = rows[:, None, None, None].expand(-1, 3, 2, 2)
    shown = rows[:, None].expand(-1, 4) % 2 == 0 if mask else None
    return Batch(images, torch.arange(count) * 10, torch.arange(count) + 7, shown, views)


@pytest.mark.parametrize("views", [1, 3])
def test_a_part_has_the_rows_of_its_images_in_all_views(views: int) -> None:
    part = numbered(5, views).part(1, 3)
    assert len(part) == 2 and part.views == views
    assert part.images[:, 0, 0, 0].tolist() == [100 * view + k for view in range(views) for k in (1, 2)]
    assert part.targets.tolist() == [10, 20] and part.indices.tolist() == [8, 9]
    assert part.mask is not None and part.mask[:, 0].tolist() == [False, True] * views
    assert numbered(5, views, mask=False).part(1, 3).mask is None


@pytest.mark.parametrize("views", [1, 2])
def test_parts_make_up_the_batch(views: int) -> None:
    batch = numbered(7, views)
    parts = batch.parts(3)
    assert [len(part) for part in parts] == [3, 3, 1]
    assert torch.equal(torch.cat([part.indices for part in parts]), batch.indices)
    joined = torch.cat([part.images.unflatten(0, (views, -1)) for part in parts], 1).flatten(0, 1)
    assert torch.equal(joined, batch.images)
    assert batch.parts(7) == [batch] and batch.parts(100)[0] is batch


def test_an_empty_batch_is_one_part() -> None:
    for views in (1, 2):
        empty = numbered(3, views).part(0, 0)
        assert len(empty) == 0 and empty.images.shape == (0, 3, 2, 2) and empty.parts(4) == [empty]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    root = make_folder(tmp_path_factory.mktemp("images"), {"a": 14, "b": 13}, format="jpg")
    return open_data(root, carve=False).splits["train"]


def batches(split: Split, **options: Any) -> list[Batch]:
    settings: dict[str, Any] = {"preprocessing": SIZE, "augment": VARIED, "batch_size": 9, "cache": None}
    return list(make_loader(split, **(settings | options)).epoch(2))


def digits(**options: Any) -> list[Batch]:
    gray = Preprocessing(image_size=(8, 8), mean=(0.5,), std=(0.5,))
    return batches(open_data("digits").splits["train"], preprocessing=gray, batch_size=500, **options)


def test_views_are_of_the_same_images_and_all_differ(split: Split) -> None:
    for got in (batches(split, views=3), digits(views=3)):
        for batch in got:
            size = len(batch)
            assert batch.views == 3 and len(batch.images) == 3 * size
            assert len(batch.targets) == len(batch.indices) == size
            views = batch.images.unflatten(0, (3, size))
            for a, b in ((0, 1), (0, 2), (1, 2)):
                same = (views[a] == views[b]).flatten(1).all(1)
                assert same.float().mean() < 0.02  # of an 8x8 digit two crops may be equal


def test_views_show_their_own_image(split: Split) -> None:
    """With nothing random the views are equal: each row belongs to the image that its place says."""
    still = Augment(crop_scale=None, flip=0.0)
    for read in (lambda **o: batches(split, **o), digits):
        for several, one in zip(read(augment=still, views=2), read(augment=still), strict=True):
            assert torch.equal(several.images.unflatten(0, (2, -1))[0], one.images)
            assert torch.equal(several.images.unflatten(0, (2, -1))[1], one.images)
            assert torch.equal(several.targets, one.targets) and torch.equal(several.indices, one.indices)


def test_the_first_view_is_what_one_view_would_be(split: Split) -> None:
    """Copy numbers are 0 to V - 1, so asking for more views changes none of the others' draws."""
    for read in (lambda **o: batches(split, **o), digits):
        whole = read(views=3)
        for views in (1, 2):
            for fewer, more in zip(read(views=views), whole, strict=True):
                kept = more.images.unflatten(0, (3, -1))[:views].flatten(0, 1)
                assert torch.equal(fewer.images, kept)


def test_views_depend_on_neither_workers_nor_ranks(split: Split) -> None:
    whole = batches(split, views=2)
    for other, expected in zip(batches(split, views=2, workers=2), whole, strict=True):
        assert torch.equal(other.images, expected.images)
    parts = [batches(split, views=2, rank=rank, world_size=2) for rank in range(2)]
    for step, expected in enumerate(whole):
        views = [part[step].images.unflatten(0, (2, -1)) for part in parts]
        assert torch.equal(torch.cat(views, 1).flatten(0, 1), expected.images)


def test_repeats_and_views_go_together(split: Split) -> None:
    augment = Augment(crop_scale=(0.2, 0.6), repeats=3)
    for batch in batches(split, views=2, augment=augment):
        images = batch.images.unflatten(0, (2, -1))
        for index in batch.indices.unique():
            shown = images[:, batch.indices == index].flatten(0, 1)
            assert len(shown) == 6 and len({image.numpy().tobytes() for image in shown}) == 6


def test_padded_views_have_masks(split: Split) -> None:
    settings = Preprocessing(image_size=(32, 32), resize="pad")
    for batch in batches(split, views=2, preprocessing=settings, mask_step=8):
        assert batch.mask is not None and batch.mask.shape == (2 * len(batch), 16)
        assert torch.equal(*batch.mask.unflatten(0, (2, -1)))


def test_an_image_is_decoded_once_for_all_its_views(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    original = type(split.images).read
    monkeypatch.setattr(
        type(split.images), "read", lambda self, i, *a, **k: reads.append(i) or original(self, i, *a, **k)
    )
    got = batches(split, views=3)
    assert len(reads) == sum(map(len, got))


def test_a_broken_file_is_replaced_by_one_image_in_all_views(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"a": 10, "b": 10})
    (root / "b" / "003.png").write_bytes(b"broken")
    split = open_data(root, carve=False).splits["train"]
    batch = batches(split, views=2, augment=Augment(crop_scale=None, flip=0.0), batch_size=20)[0]
    assert 13 not in batch.indices and len(batch.indices.unique()) == 19
    assert torch.equal(*batch.images.unflatten(0, (2, -1)))
    varied = batches(split, views=2, batch_size=20)[0]
    twice = varied.indices.mode().values
    shown = varied.images.unflatten(0, (2, -1))[:, varied.indices == twice].flatten(0, 1)
    assert len({image.numpy().tobytes() for image in shown}) == 4  # a substitute's views differ from its own


SMALL = SmallViews(3, (12, 16), (0.1, 0.3))


def test_small_views_are_smaller_crops_and_change_no_other(split: Split) -> None:
    for read in (lambda **o: batches(split, **o), digits):
        for pixels in ("host", "device"):
            plain = read(views=2, pixels=pixels)
            for more, fewer in zip(read(views=2, small=SMALL, pixels=pixels), plain, strict=True):
                assert torch.equal(more.images, fewer.images) and fewer.small is None
                assert more.small is not None and more.small.shape[2:] == (12, 16)
                shown = more.small.unflatten(0, (3, len(more)))
                assert all(len({row.numpy().tobytes() for row in shown[:, k]}) > 1 for k in range(len(more)))


def test_small_views_show_as_much_as_was_asked_for(tmp_path: Path) -> None:
    """Of an image whose colour is its column, the span of a crop's colours is the part of the width."""
    ramp = np.tile(np.arange(0, 250, 2, dtype=np.uint8)[None, :, None], (125, 1, 3))
    arrays = {"train_images": np.stack([ramp] * 20), "train_labels": np.zeros(20, int)}
    np.savez(tmp_path / "ramp.npz", **arrays)
    ramps = open_data(tmp_path / "ramp.npz", carve=False).splits["train"]
    plain = Augment(crop_scale=(0.9, 1.0), crop_ratio=(1.0, 1.0), flip=0.0)
    square = SmallViews(4, (12, 12), (0.16, 0.16))
    (batch,) = batches(ramps, augment=plain, small=square, batch_size=20)
    assert batch.small is not None
    for images, side in ((batch.images, 0.97), (batch.small, 0.4)):
        span = (images.amax((1, 2, 3)) - images.amin((1, 2, 3))) * 127.5 / 250
        assert (span.mean() - side).abs() < 0.05, span.mean()


def test_small_views_depend_on_neither_workers_ranks_nor_device(split: Split) -> None:
    whole = batches(split, views=2, small=SMALL)
    for other, expected in zip(batches(split, views=2, small=SMALL, workers=2), whole, strict=True):
        assert torch.equal(other.small, expected.small)  # type: ignore[arg-type]
    parts = [batches(split, views=2, small=SMALL, rank=rank, world_size=2) for rank in range(2)]
    for step, expected in enumerate(whole):
        views = [part[step].small.unflatten(0, (3, -1)) for part in parts]  # type: ignore[union-attr]
        assert torch.equal(torch.cat(views, 1).flatten(0, 1), expected.small)  # type: ignore[arg-type]
        words = [part[step].words.unflatten(0, (2, -1)) for part in parts]  # type: ignore[union-attr]
        assert torch.equal(torch.cat(words, 1).flatten(0, 1), expected.words)  # type: ignore[arg-type]
    crops = Augment(crop_scale=(0.3, 0.8))
    there = batches(split, augment=crops, small=SMALL, pixels="device")
    for device, host in zip(there, batches(split, augment=crops, small=SMALL), strict=True):
        assert torch.equal(device.words, host.words)  # type: ignore[arg-type]
        assert device.small is not None and host.small is not None
        assert (device.small - host.small).abs().mean() < 0.02


def test_a_part_has_the_small_views_and_words_of_its_images() -> None:
    batch = numbered(5, 2)
    batch.words = torch.arange(10)
    batch.small = torch.arange(15)[:, None, None, None].float()
    part = batch.part(1, 3)
    assert part.words is not None and part.words.tolist() == [1, 2, 6, 7]
    assert part.small is not None and part.small.flatten().tolist() == [1, 2, 6, 7, 11, 12]


def test_words_are_of_the_image_the_epoch_and_the_view(split: Split) -> None:
    (first, *_), seed = batches(split, views=2, seed=5), 5
    assert first.words is not None
    for view in range(2):
        expected = drawing.words(seed, 2, first.indices, view)
        assert torch.equal(first.words.unflatten(0, (2, -1))[view], expected)
    for pixels in ("host", "device"):
        once = batches(split, training=False, pixels=pixels)
        again = batches(split, training=False, batch_size=4, pixels=pixels)
        ours, theirs = (torch.cat([each.words for each in got]) for got in (once, again))  # type: ignore[misc]
        assert torch.equal(ours, theirs) and len(ours.unique()) == len(split)


def test_small_views_need_crops(split: Split) -> None:
    with pytest.raises(DataError, match="give a --crop-scale"):
        batches(split, augment=Augment(crop_scale=None), small=SMALL)
