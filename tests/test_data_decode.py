"""Every odd image kind is decoded right or refused by name, and nothing dangerous is decoded at all."""

import io
import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from tests.data_images import encoded, picture
from vitreous.data.decode import FORMATS, decode
from vitreous.errors import DataError


@pytest.mark.parametrize("format", FORMATS)
def test_reads_every_allowed_format(format: str) -> None:
    image = picture(1)
    if format == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    decoded = decode(encoded(image, format))
    assert decoded.mode == "RGB" and decoded.size == image.size
    lossless = format in ("PNG", "BMP", "TIFF")
    difference = np.abs(np.asarray(decoded).astype(int) - np.asarray(image)).mean()
    assert difference == 0 if lossless else difference < 30


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_turns_exif_rotated_images_upright(orientation: int, format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(2), format, exif=exif)
    with Image.open(io.BytesIO(data)) as raw:
        expected = ImageOps.exif_transpose(raw).convert("RGB")
    assert decode(data).size == expected.size
    assert np.array_equal(np.asarray(decode(data)), np.asarray(expected))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_broken_exif_block_says_nothing() -> None:
    assert decode(encoded(picture(), "JPEG", exif=b"Exif\0\0MM\0*garbage")).size == (48, 36)


def test_gray_becomes_rgb_and_back() -> None:
    gray = picture(mode="L")
    assert np.array_equal(np.asarray(decode(encoded(gray)))[..., 1], np.asarray(gray))
    assert decode(encoded(picture()), channels=1).mode == "L"
    assert decode(encoded(picture(mode="1")), channels=1).mode == "L"


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    for format in ("PNG", "TIFF"):
        decoded = np.asarray(decode(encoded(Image.fromarray(ramp), format), channels=1))
        assert np.array_equal(decoded, np.rint(ramp / 257).astype(np.uint8))


def test_palette_and_transparency_are_seen_on_white() -> None:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))  # red that nobody sees
    image.putpixel((0, 0), (0, 0, 255, 255))
    for data in (encoded(image), encoded(image.quantize(4)), encoded(image, "WEBP", lossless=True)):
        pixels = np.asarray(decode(data))
        assert pixels[0, 0].tolist() == [0, 0, 255]
        assert pixels[3, 3].tolist() == [255, 255, 255]
    gray = Image.new("LA", (2, 2), (10, 0))
    assert np.asarray(decode(encoded(gray))).min() == 255


def test_palette_without_transparency_keeps_its_colours() -> None:
    image = picture(3).quantize(16)
    assert np.array_equal(np.asarray(decode(encoded(image))), np.asarray(image.convert("RGB")))


def test_cmyk_becomes_rgb() -> None:
    image = picture(4)
    decoded = np.asarray(decode(encoded(image.convert("CMYK"), "JPEG", quality=95)))
    assert np.abs(decoded.astype(int) - np.asarray(image)).mean() < 12


def test_gif_gives_its_first_frame() -> None:
    first, second = picture(5, mode="P"), picture(6, mode="P")
    data = encoded(first, "GIF", save_all=True, append_images=[second])
    assert np.array_equal(np.asarray(decode(data)), np.asarray(first.convert("RGB")))


def test_float_pixels_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="32-bit float pixels"):
        decode(encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"))
    with pytest.raises(DataError, match="32-bit integer pixels"):
        decode(encoded(Image.fromarray(np.full((4, 4), 1 << 20, np.int32)), "TIFF"))


@pytest.mark.parametrize("keep", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_half_a_file_is_refused(format: str, keep: float) -> None:
    data = encoded(picture(7, (200, 150)), format)
    with pytest.raises(DataError):
        decode(data[: int(len(data) * keep)])


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"hello", b"\xff\xd8\xff", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n"):
        with pytest.raises(DataError, match=r"a\.jpg: "):
            decode(data, name="a.jpg")
    with pytest.raises(DataError, match="No such file"):
        decode(tmp_path / "missing.jpg")
    with pytest.raises(DataError, match=r"regular file|directory"):
        decode(tmp_path)


def test_a_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(DataError, match="not a regular file"):
        decode(tmp_path / "pipe.jpg")


def test_formats_outside_the_list_are_never_opened() -> None:
    for format in ("PPM", "ICO", "TGA", "PCX"):
        with pytest.raises(DataError, match="not a readable image"):
            decode(encoded(picture(), format))


def _bomb(width: int, height: int) -> bytes:
    """A small PNG that decodes to width × height gray pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1 + (width + 7) // 8) * height, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [12_000, 30_000])
def test_a_small_file_of_many_pixels_costs_nothing(side: int) -> None:
    data = _bomb(side, side)
    assert len(data) < 200_000
    tracemalloc.start()
    with pytest.raises(DataError, match="more than the limit of 80,000,000"):
        decode(data)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_the_limit_can_be_set() -> None:
    with pytest.raises(DataError, match="limit of 1,000"):
        decode(encoded(picture()), max_pixels=1000)


def test_large_jpegs_can_be_decoded_scaled() -> None:
    data = encoded(picture(8, (1600, 1200)), "JPEG")
    small = decode(data, shortest=140)
    assert small.size == (200, 150)
    whole = decode(data).resize(small.size, Image.Resampling.BOX)
    assert np.abs(np.asarray(small).astype(int) - np.asarray(whole)).mean() < 3
    assert decode(data, shortest=1201).size == (1600, 1200)


def test_other_channel_counts_are_refused() -> None:
    with pytest.raises(DataError, match="5 channels"):
        decode(encoded(picture()), channels=5)


def test_the_remedy_for_a_large_image_exists() -> None:
    """The server's limit has an option; that of data sets is fixed, and names none."""
    image = encoded(Image.new("1", (200, 100)))
    with pytest.raises(DataError, match=r"limit of 10,000: scale the image down, or raise --max-pixels$"):
        decode(image, max_pixels=10_000)
    with pytest.raises(DataError, match=r"limit of 80,000,000: scale the image down$"):
        decode(encoded(Image.new("1", (10_000, 8_001))))
