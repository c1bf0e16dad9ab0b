"""Pictures that are made to cost more than they should cost themselves only, wherever they are read."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from tests.data_images import encoded, make_folder, own_cache, picture
from tests.hostile import pictures
from vitreous import cli
from vitreous.config import Preprocessing
from vitreous.data import make_loader, open_data
from vitreous.data.augment import CUT_FROM, EvaluationTransform
from vitreous.data.decode import MAX_ASPECT, decode, open_header, to_channels
from vitreous.data.jpeg import find_sizes
from vitreous.errors import DataError
from vitreous.models import zoo
from vitreous.predict import Classifier, Prediction, load
from vitreous.predict.inputs import find
from vitreous.predict.stream import Failure, predict_all

__all__ = ["own_cache"]

SIZE = Preprocessing(image_size=(32, 32))
SLIVERS = [
    pictures.sliver(9000),
    pictures.sliver(25_000_000),
    pictures.sliver(30_000, upright=True),
    pictures.sliver_jpeg(16_384),
]


@pytest.fixture(autouse=True)
def resized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pixels that each call of Pillow's resize made; none may make many."""
    made: list[int] = []
    resize = Image.Image.resize

    def counted(self: Image.Image, size: tuple[int, int], *args: Any, **options: Any) -> Image.Image:
        made.append(size[0] * size[1])
        assert made[-1] < 10_000_000, f"a picture of {size} was about to be made"
        return resize(self, size, *args, **options)

    monkeypatch.setattr(Image.Image, "resize", counted)
    return made


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small classifier's sealed file."""
    config = {"image_size": 32, "patch_size": 8, "width": 32, "depth": 1, "heads": 4, "mlp_width": 64}
    model = zoo.create_model("ViT-B/16", **config, num_classes=2)
    return Classifier(model, EvaluationTransform(SIZE, (8, 8)), ["a", "b"]).save(tmp_path / "model")


@pytest.mark.parametrize("data", SLIVERS, ids=["wide", "very wide", "tall", "jpeg"])
def test_a_picture_too_long_for_its_width_is_refused_by_its_header(data: bytes) -> None:
    assert len(data) < 200_000
    for read in (decode, open_header):
        with pytest.raises(DataError, match=rf"a.png: \S+ pixels: .* more than {MAX_ASPECT} times"):
            read(data, name="a.png")


def test_the_longest_allowed_picture_is_read() -> None:
    assert decode(pictures.sliver(MAX_ASPECT)).size == (MAX_ASPECT, 1)
    with pytest.raises(DataError):
        decode(pictures.sliver(MAX_ASPECT + 1))


@pytest.mark.parametrize("size", [(2, 200), (200, 2), (1, 2_000_000), (40, 4000)])
@pytest.mark.parametrize("target", [(32, 32), (32, 48)])
@pytest.mark.parametrize("resize_size", [None, (36, 36), (20, 20)])
def test_cover_makes_no_more_than_it_shows(
    size: tuple[int, int], target: tuple[int, int], resize_size: tuple[int, int] | None, resized: list[int]
) -> None:
    preprocessing = Preprocessing(image_size=target, resize_size=resize_size)
    shown = EvaluationTransform(preprocessing).pixels(np.full((*size, 3), 77, np.uint8))
    assert shown.shape == (*target, 3)
    values = set(np.unique(shown).tolist())
    assert values == {77} or (values == {0, 77} and resize_size is not None)  # a smaller one leaves a border
    assert max(resized) <= CUT_FROM * 48 * 48


@pytest.mark.parametrize("size", [(23, 900), (900, 23), (400, 9000)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_what_is_cut_first_shows_the_same(size: tuple[int, int], interpolation: str) -> None:
    """A panorama beyond the limit is cut before it is scaled; the pixels are those of the other order."""
    image = picture(3, size)
    preprocessing = Preprocessing(image_size=(32, 32), resize_size=(36, 36), interpolation=interpolation)  # type: ignore[arg-type]
    cut = EvaluationTransform(preprocessing)
    height, width = cut.scaled_size(image.height, image.width)
    assert height * width > CUT_FROM * 36 * 36
    whole = image.resize((width, height), getattr(Image.Resampling, interpolation.upper()))
    top, left = round((height - 32) / 2), round((width - 32) / 2)
    expected = np.asarray(whole.crop((left, top, left + 32, top + 32))).astype(int)
    difference = np.abs(cut.pixels(image) - expected)
    assert difference.max() <= (3 if interpolation == "nearest" else 1)


def test_arrays_too_long_for_their_width_are_fitted_in_little_room(tmp_path: Path) -> None:
    """Arrays are fitted in batches on the host: one of 1x4,000 pixels would be scaled to 32x128,000."""
    images = np.random.default_rng(0).integers(0, 256, (12, 1, 4000, 3), np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(12) % 2)
    split = open_data(tmp_path / "x.npz", carve=False).splits["train"]
    options: dict[str, Any] = {"preprocessing": SIZE, "batch_size": 12}
    train = next(make_loader(split, augment="none", **options).epoch())
    shown = next(make_loader(split, training=False, **options).epoch())
    order = train.indices.argsort()
    assert torch.equal(train.images[order], shown.images)


def test_check_predict_and_training_name_a_sliver_and_go_on(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folder(tmp_path / "data", {"a": 10, "b": 10})
    (root / "a" / "long.png").write_bytes(pictures.sliver(25_000_000))
    assert cli.main(["check", str(root), "--json"]) == 0
    bad = json.loads(capsys.readouterr().out)["unreadable"]
    assert [each["file"] for each in bad] == ["a/long.png"] and "times" in bad[0]["reason"]
    split = open_data(root, carve=False).splits["train"]
    for options in ({"augment": "light"}, {"augment": "none"}, {"training": False}, {"pixels": "device"}):
        loader = make_loader(split, preprocessing=SIZE, batch_size=21, cache=None, **options)
        assert sum(len(batch) for batch in loader.epoch()) in (20, 21)
        assert list(loader.bad) == [10]
    files = [str(root / name) for name in ("a/000.png", "a/long.png", "b/000.png")]
    assert cli.main(["predict", str(checkpoint), *files, "--json"]) == 0
    good, long, other = json.loads(capsys.readouterr().out)
    assert "label" in good and "label" in other and "times" in long["error"]


def test_every_maker_makes_a_file_that_is_refused_or_read() -> None:
    for name, make in pictures.MAKERS.items():
        data = make(random.Random(0))
        try:
            image = decode(data, name=name)
        except DataError as error:
            assert str(error).startswith(f"{name}: ")
        else:
            assert encoded(image.resize((8, 8)))


def test_a_file_that_memory_is_too_small_for_fails_alone(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder(tmp_path / "data", {"a": 2})
    fitted = EvaluationTransform.fitted

    def starved(self: EvaluationTransform, image: Image.Image) -> np.ndarray:
        if image.getpixel((0, 0)) == decode(root / "a" / "001.png").getpixel((0, 0)):
            raise MemoryError
        return fitted(self, image)

    monkeypatch.setattr(EvaluationTransform, "fitted", starved)
    good, bad = predict_all(load(checkpoint), find([str(root)]))
    assert isinstance(good, Prediction) and isinstance(bad, Failure) and "memory" in bad.error


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pictures.many_scans(4000), "more than 100 scans"),
        (pictures.many_scans(100, (4096, 4096)), "more than 95 scans"),
        (pictures.many_scans(1000, frame=0xC0), "more than 100 scans"),
        (pictures.padded_jpeg(1_000_000), "filled with empty"),
        (pictures.many_segments(100_000), "filled with empty"),
        (pictures.many_chunks(200_000), "more than 100,000 chunks"),
        (pictures.many_blocks(200_000), "blocks before its first frame"),
        (pictures.long_comment(50_000), "blocks before its first frame"),
        (pictures.overlapping_tags(20_000, 100), "20,000 tags"),
        (pictures.many_strips(200_000), "200,000 strips"),
        (pictures.run_length_bmp(2100, 2100), "a run-length encoded BMP of 2100x2100"),
        (pictures.text_bomb(1 << 26), "too large"),
        (pictures.profile_bomb(1 << 26), "too large"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_of_too_many_parts_is_refused_before_it_is_decoded(
    data: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(_: Image.Image) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", loaded)
    for read in (decode, open_header):
        with pytest.raises(DataError, match=rf"^a: .*{reason}"):
            read(data, name="a")


@pytest.mark.parametrize(
    "data",
    [
        pictures.many_scans(100),
        pictures.hidden_scans(30_000),
        pictures.padded_jpeg(1000),
        pictures.many_segments(1000),
        pictures.many_chunks(1000),
        pictures.many_blocks(100),
        pictures.long_comment(1000),
        pictures.many_frames(5),
        pictures.many_frames(5, "TIFF"),
        pictures.run_length_bmp(300, 200),
        *(encoded(picture(1, (300, 200)), "JPEG", progressive=True, quality=q) for q in (5, 95)),
        encoded(picture(1, (64, 64), "CMYK"), "JPEG", progressive=True),
    ],
)
def test_a_file_within_the_limits_is_read(data: bytes) -> None:
    assert decode(data).width


def test_a_device_does_not_decode_what_has_too_many_scans() -> None:
    with pytest.raises(DataError, match="scans"):
        find_sizes(pictures.many_scans(200), 64)


def test_large_images_are_converted_as_small_ones_are() -> None:
    """Strips join without a seam."""
    transparent = Image.merge("RGBA", [*picture(1, (1500, 1100)).split(), picture(2, (1500, 1100), "L")])
    white = Image.new("RGBA", transparent.size, (255, 255, 255, 255))
    for channels, mode in ((1, "L"), (3, "RGB")):
        expected = Image.alpha_composite(white, transparent).convert(mode)
        assert np.array_equal(np.asarray(to_channels(transparent, channels)), np.asarray(expected))
    deep = np.random.default_rng(0).integers(0, 65536, (1100, 1500)).astype(np.uint16)
    expected = np.rint(deep / 257).astype(np.uint8)
    assert np.array_equal(np.asarray(to_channels(Image.fromarray(deep), 1)), expected)
