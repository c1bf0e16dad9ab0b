"""From the bytes of an image file to a Pillow image in the right mode; the only place where files are
decoded.

Nothing is decoded before its format, its number of pixels and its aspect are known from the header, and
formats outside the allow-list (EPS and its friends among them) are never opened.
"""

import io
import os
import stat
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, features

from vitreous.data import dear, headers, heif
from vitreous.errors import DataError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", *(("AVIF",) if features.check("avif") else ()))
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
    | ({".avif"} if "AVIF" in FORMATS else set())
    | (heif.ENDINGS if heif.is_installed() else set())
)
JPEGS = ("JPEG", "MPO")
MAX_PIXELS = 80_000_000
"""An 80-megapixel image takes 240 MB decoded; Pillow's own limit of 89 megapixels would only warn."""
MAX_BYTES = 1 << 30
STRIP = 1 << 20
"""Pixels that are converted at a time."""
MAX_ASPECT = 100
"""Long side over short side, at most: of a longer picture a model would see less than a hundredth."""

# Our own limit is lower and is an error; Pillow's warning would be a second, vaguer line about the same file.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# Photographs with a damaged EXIF block are common, and nothing can be done about them; what matters raises.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

ORIENTATION_TAG = 0x0112
TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = frozenset({5, 6, 7, 8})
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def decode(
    source: bytes | str | Path,
    channels: int = 3,
    *,
    max_pixels: int = MAX_PIXELS,
    shortest: int | None = None,
    name: str | None = None,
    guarded: bool = False,
) -> Image.Image:
    """Decode one image fully: upright (EXIF), 8 bits, gray (1 channel), RGB (3) or RGBA (4).

    What may take long is decoded in a process that is ended after a minute; `guarded`: this is one already.
    With `shortest`, a JPEG may be decoded at a half, a quarter or an eighth of its size, as long as its
    shorter side keeps that many pixels: several times faster for photographs.
    """
    if channels not in MODES:
        raise DataError(
            f"{channels} channels can't be read from an image file: use 1, 3 or 4, or an .npz of arrays"
        )
    if not isinstance(source, bytes):
        name = name or str(source)
        source = read_file(source)
    name = name or "image"
    image = open_header(source, max_pixels=max_pixels, name=name)
    try:
        apart = not guarded and dear.is_dear(image, source)
        if shortest is not None and image.format in JPEGS:
            image.draft(None, draft_size(image.size, shortest))
        return dear.in_process(lambda: _load(image, channels)) if apart else _load(image, channels)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def _load(image: Image.Image, channels: int) -> Image.Image:
    try:
        image.load()
        return to_channels(upright(image), channels)
    except DataError:
        raise
    except Exception as error:  # hostile bytes: whatever the decoder raises, the file is at fault
        raise DataError(_reason(error)) from None


def open_header(data: bytes, *, max_pixels: int = MAX_PIXELS, name: str = "image") -> Image.Image:
    """Read format and size alone, and refuse what must not be decoded."""
    if not data:
        raise DataError(f"{name}: the file is empty")
    try:
        headers.check_structure(data)
        formats = FORMATS
        if heif.is_heif(data):
            heif.register()
            formats = ("HEIF",)
        image = Image.open(io.BytesIO(data), formats=formats)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{name}: {_too_large(str(error), max_pixels)}") from None
    except Exception as error:
        raise DataError(
            f"{name}: not a readable image: {_reason(error)}; allowed: {', '.join(FORMATS)}"
        ) from None
    width, height = image.size
    if width * height > max_pixels:
        raise DataError(f"{name}: {_too_large(f'{width}x{height} pixels', max_pixels)}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise DataError(
            f"{name}: {width}x{height} pixels: one side is more than {MAX_ASPECT} times the other: crop it"
        )
    if image.format in JPEGS:
        try:
            headers.check_scans(data, width * height, max_pixels)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
    return image


def read_file(path: str | Path) -> bytes:
    """Read a regular file's bytes; pipes and devices, which may never end, are refused."""
    try:
        with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{path}: not a regular file")
            if status.st_size > MAX_BYTES:
                raise DataError(f"{path}: {status.st_size:,} bytes are more than the limit of {MAX_BYTES:,}")
            return file.read()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in a path
        raise DataError(f"{str(path)!r}: not a file path: {error}") from None


def _open_without_waiting(path: str, flags: int) -> int:
    # A named pipe would wait for its writer for ever
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def draft_size(size: tuple[int, int], shortest: int) -> tuple[int, int]:
    """Return the size to ask libjpeg for: the smallest scale that keeps `shortest` pixels on the shorter
    side."""
    scale = max(1.0, min(size) / shortest)
    return max(1, int(size[0] / scale)), max(1, int(size[1] / scale))


def upright(image: Image.Image) -> Image.Image:
    """Turn an image upright by its EXIF orientation; a broken EXIF block is ignored."""
    method = TRANSPOSES.get(orientation(image))
    return image if method is None else image.transpose(method)


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return the height and width that an image will have when it is upright; its header is enough."""
    turned = orientation(image) in SIDEWAYS
    return (image.width, image.height) if turned else (image.height, image.width)


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation: 1 for an upright image, and where nothing can be read."""
    if "exif" not in image.info and image.format not in ("TIFF", "MPO"):
        return 1
    try:
        return image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:
        return 1


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    """Convert any mode to gray, RGB or RGBA; transparent pixels are put on white, as viewers show them."""
    mode = image.mode
    if mode == MODES[channels]:
        return image
    if mode == "F":
        raise DataError("32-bit float pixels have no known range: save it as 8 or 16 bits, or as an .npz")
    if mode == "I" or mode.startswith("I;16"):
        image = _from_16_bits(image)
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return image if channels == 4 else _on_white(image, MODES[channels])
    return image.convert(MODES[channels])


def _on_white(image: Image.Image, mode: str) -> Image.Image:
    """Return an RGBA image on white, made in strips: as a whole it would be in memory four times."""
    result = Image.new(mode, image.size)
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        part = image.crop((0, top, image.width, min(top + rows, image.height)))
        white = Image.new("RGBA", part.size, (255, 255, 255, 255))
        result.paste(Image.alpha_composite(white, part).convert(mode), (0, top))
    return result


def _from_16_bits(image: Image.Image) -> Image.Image:
    """Scale 16 bits to 8 (Pillow's own conversion would clip everything above 255 to white)."""
    pixels = np.asarray(image)
    if pixels.min(initial=0) < 0 or pixels.max(initial=0) > 65535:
        raise DataError("32-bit integer pixels have no known range: save it as 8 or 16 bits, or as an .npz")
    scaled = np.empty(pixels.shape, np.uint8)
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):  # in strips: as a whole it would be held several times
        part = pixels[top : top + rows].astype(np.uint32)
        scaled[top : top + rows] = (part + 128) // 257
    return Image.fromarray(scaled)


def _too_large(what: str, max_pixels: int) -> str:
    option = "" if max_pixels == MAX_PIXELS else ", or raise --max-pixels"  # the server's; ours is fixed
    return f"{what} are more than the limit of {max_pixels:,}: scale the image down{option}"


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return "cannot identify image file" if text.startswith("cannot identify image file") else text
