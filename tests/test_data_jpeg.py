"""JPEGs that the device decodes give the host's batches, and what it can't decode the host does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.data_images import encoded, make_folder, own_cache, picture
from tests.test_data_device import EVERYTHING, OPTIONS, folder, levels_apart, on_host
from vitreous.config import Augment
from vitreous.data import Batch, Split, jpeg, make_loader, open_data
from vitreous.data.host import HostLoader
from vitreous.errors import DataError

__all__ = ["folder", "own_cache"]

CROP = Augment(crop_scale=(0.2, 1.0))


def decoding(split: Split, **options: Any) -> HostLoader:
    loader = make_loader(split, pixels="decode", **(OPTIONS | options))
    assert isinstance(loader, HostLoader)
    return loader


def decoded(split: Split, epoch: int = 1, start: int = 0, **options: Any) -> list[Batch]:
    return list(decoding(split, **options).epoch(epoch, start))


def with_file(root: Path, data: bytes) -> Split:
    """Return a split of sixteen JPEGs and one more file."""
    make_folder(root, {"a": 9, "b": 7}, format="jpg")
    (root / "a" / "x.jpg").write_bytes(data)
    return open_data(root, carve=False).splits["train"]


def test_the_device_gets_files_and_shows_the_hosts_crops(folder: Split) -> None:
    raw = decoding(folder, augment=CROP).pipeline[1, 0]
    assert raw.encoded is not None and len(raw.encoded.rows) == 8 and len(raw.images) == 0
    for epoch in (0, 3):
        apart = levels_apart(decoded(folder, epoch, augment=CROP), on_host(folder, epoch, augment=CROP))
        # The host decodes large photographs at a part of their size, and rounds their crops to its pixels
        assert apart.mean(1).median() < 0.5 and apart.mean() < 1.5
        assert (apart.mean(1) < 6).all()


def test_operations_erasing_and_mixing_come_after(folder: Split) -> None:
    augment = replace(EVERYTHING, randaugment=(0, 0), three_augment=False, geometry=0.0)
    apart = levels_apart(decoded(folder, augment=augment), on_host(folder, augment=augment))
    assert apart.mean(1).median() < 1
    plain = decoded(folder, augment=replace(augment, color_jitter=0.0))
    assert levels_apart(plain, decoded(folder, augment=augment)).mean() > 3


@pytest.mark.parametrize("options", [{"views": 2}, {"rank": 1, "world_size": 2}, {"workers": 2}])
def test_views_ranks_and_workers(folder: Split, options: dict[str, Any]) -> None:
    ours = decoded(folder, augment=CROP, **options)
    apart = levels_apart(ours, on_host(folder, augment=CROP, **(options | {"workers": 0})))
    assert apart.mean(1).median() < 0.5 and (apart.mean(1) < 6).all()


def test_many_images_are_decoded_in_parts(folder: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = decoded(folder, augment=CROP)
    monkeypatch.setattr(jpeg, "DECODED", 3000)  # an image of 48 x 36 has 1,728 pixels, the largest 60,000
    assert len(list(decoding(folder, augment=CROP).pipeline[1, 0].encoded._parts())) > 4
    assert levels_apart(decoded(folder, augment=CROP), whole).max() == 0


def exif(orientation: int) -> Image.Exif:
    block = Image.Exif()
    block[0x0112] = orientation
    return block


@pytest.mark.parametrize(
    "data",
    [
        encoded(picture(90, (70, 50))),
        encoded(picture(91, (70, 50)), "JPEG", exif=exif(6)),
        encoded(picture(92, (70, 50)), "JPEG", exif=exif(3)),
        encoded(picture(93, (70, 50)).convert("CMYK"), "JPEG"),
        encoded(picture(94, (70, 50)), "JPEG", keep_rgb=True),
        encoded(picture(95, (70, 50)), "JPEG") + b"more",
    ],
    ids=["png", "turned", "upside down", "cmyk", "rgb", "trailing bytes"],
)
def test_what_only_the_host_decodes(tmp_path: Path, data: bytes) -> None:
    assert jpeg.find_sizes(data, 35) is None
    split = with_file(tmp_path, data)
    ours, theirs = (list(each.epoch(1)) for each in (decoding(split, augment=CROP), host(split)))
    assert levels_apart(ours, theirs).mean(1).median() < 0.5
    row = [int(i) for batch in theirs for i in batch.indices].index(split.images.names.index("a/x.jpg"))
    assert levels_apart(ours, theirs)[row].max() < 1e-3


def host(split: Split) -> HostLoader:
    loader = make_loader(split, augment=CROP, cache=None, **OPTIONS)
    assert isinstance(loader, HostLoader)
    return loader


def test_gray_files_and_progressive_ones_are_decoded_on_the_device(tmp_path: Path) -> None:
    for number, data in enumerate(
        [encoded(picture(96).convert("L"), "JPEG"), encoded(picture(97), "JPEG", progressive=True)]
    ):
        assert jpeg.find_sizes(data, 35) == ((36, 48), (36, 48))
        split = with_file(tmp_path / str(number), data)
        assert levels_apart(decoded(split, augment=CROP), on_host(split, augment=CROP)).mean() < 1


@pytest.mark.parametrize("cut", ["end", "middle"])
def test_a_broken_file_is_found_and_replaced_as_on_the_host(tmp_path: Path, cut: str) -> None:
    """One that ends early, and one that only the decoder can tell: header and end are those of a JPEG."""
    data = encoded(picture(98, (90, 60)), "JPEG")
    start = data.index(b"\xff\xda")
    broken = data[: len(data) // 2] if cut == "end" else data[:start] + b"\xff\xd9"
    split = with_file(tmp_path, broken)
    ours, theirs = decoding(split, augment=CROP, batch_size=17), on_host(split, augment=CROP, batch_size=17)
    got = list(ours.epoch(1))
    assert levels_apart(got, theirs).mean() < 1
    assert [reason.split(":")[0] for reason in ours.bad.values()] == ["a/x.jpg"]
    assert split.images.names.index("a/x.jpg") not in torch.cat([batch.indices for batch in got])


def test_too_many_broken_files_stop_the_training(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"a": 9, "b": 7}, format="jpg")
    for name in ("x", "y", "z"):
        (root / "a" / f"{name}.jpg").write_bytes(encoded(picture(ord(name)), "JPEG")[:300] + b"\xff\xd9")
    split = open_data(root, carve=False).splits["train"]
    with pytest.raises(DataError, match="3 of 19"):
        for epoch in range(3):
            decoded(split, epoch, augment=CROP)


@pytest.mark.parametrize("interpolation", ["nearest", "lanczos"])
def test_other_filters_are_the_hosts(folder: Split, interpolation: Any) -> None:
    settings = {"preprocessing": replace(OPTIONS["preprocessing"], interpolation=interpolation)}
    assert decoding(folder, augment=CROP, **settings).pipeline[1, 0].encoded is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize(("subsampling", "most"), [(0, 1.5), (2, 6.0)])
def test_a_cuda_device_decodes(tmp_path: Path, subsampling: int, most: float) -> None:
    """Where colours are stored at half the resolution, nvJPEG repeats them and libjpeg interpolates: on the
    strong colours of these pictures that shows."""
    for number in range(16):
        path = tmp_path / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(picture(number, (96, 72)), "JPEG", quality=90, subsampling=subsampling))
    split = open_data(tmp_path, carve=False).splits["train"]
    there = decoded(split, augment=CROP, device="cuda", workers=2)
    ours = [replace(each, images=each.images.cpu(), targets=each.targets.cpu()) for each in there]
    assert levels_apart(ours, on_host(split, augment=CROP)).mean() < most
