"""HEIC, the photographs of telephones: read by pillow-heif if installed, which the first of them imports."""

from importlib.util import find_spec

from vitreous.errors import DataError

ENDINGS = frozenset({".heic", ".heif", ".hif"})
BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
"""Brands of a file's first box. `mif1` may also be AVIF, which is recognised by its list of brands."""
REMEDY = "pip install pillow-heif, or convert to JPEG"


def is_installed() -> bool:
    """Tell whether HEIC can be read here; nothing is imported."""
    return find_spec("pillow_heif") is not None


def is_heif(data: bytes) -> bool:
    """Tell from its first bytes whether a file is HEIC, and not AVIF, which Pillow reads by itself."""
    if data[4:8] != b"ftyp" or data[8:12] not in BRANDS:
        return False
    return b"avif" not in data[16 : min(int.from_bytes(data[:4]), 256)]


def register() -> None:
    """Teach Pillow to open HEIC: the picture alone, without the thumbnails and depth maps beside it."""
    if not is_installed():
        raise DataError(f"HEIC can't be read here: {REMEDY}")
    import pillow_heif  # pyright: ignore[reportMissingImports]

    pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)
