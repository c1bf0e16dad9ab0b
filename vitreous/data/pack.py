"""Write a data set as WebDataset tar shards: the image bytes as they are, labels beside them; never over old
shards."""

import io
import json
import tarfile
from pathlib import Path

from vitreous import files
from vitreous.data.images import ArrayImages
from vitreous.data.sources.shards import LABELS_FILE
from vitreous.data.split import Dataset, Split
from vitreous.errors import DataError

SHARD_BYTES = 512 << 20
SHARD_IMAGES = 10_000


def pack(data: Dataset, folder: str | Path, *, skip: set[tuple[str, str]] | None = None) -> list[Path]:
    """Write `folder/<split>-<number>.tar` and `labels.txt`; leave out files that `skip` names as (split,
    file)."""
    folder = Path(folder)
    require_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any("\n" in label or not label for label in data.labels):
        raise DataError("a class name is empty or has a line break: rename the class before packing")
    written: list[Path] = []
    for name, split in data.splits.items():
        chosen = [i for i in range(len(split)) if (name, split.name(i)) not in (skip or set())]
        written += _pack_split(name, split, chosen, data, folder)
    files.write_text(folder / LABELS_FILE, "".join(f"{label}\n" for label in data.labels))
    return written


def require_new(folder: Path) -> None:
    """Refuse a folder that holds anything."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not empty: name a new folder for the shards")


def _pack_split(name: str, split: Split, chosen: list[int], data: Dataset, folder: Path) -> list[Path]:
    shards: list[Path] = []
    position = 0
    while position < len(chosen):
        path = folder / f"{name}-{len(shards):06d}.tar"
        with (
            files.atomic(path) as temporary,
            tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as archive,
        ):
            size = count = 0
            while position < len(chosen) and size < SHARD_BYTES and count < SHARD_IMAGES:
                size += _add_sample(archive, f"{position:09d}", split, chosen[position], data)
                position, count = position + 1, count + 1
        shards.append(path)
    return shards


def _add_sample(archive: tarfile.TarFile, stem: str, split: Split, index: int, data: Dataset) -> int:
    """Add an image and its label as members of one stem; return the image's size in bytes."""
    content, ending = _encoded(split, index)
    _add(archive, f"{stem}.{ending}", content)
    if data.multilabel:
        labels = [data.labels[k] for k, on in enumerate(split.targets[index]) if on]
        _add(archive, f"{stem}.json", json.dumps({"labels": labels}).encode())
    else:
        _add(archive, f"{stem}.cls", str(int(split.targets[index])).encode())
    return len(content)


def _encoded(split: Split, index: int) -> tuple[bytes, str]:
    """Return an image's own bytes and ending; pixels of an array become a PNG, which loses nothing."""
    if isinstance(split.images, ArrayImages):
        if split.images.pixels.shape[-1] not in (1, 3, 4):
            raise DataError(
                f"arrays of {split.images.pixels.shape[-1]} channels can't be packed as images: keep the .npz"
            )
        buffer = io.BytesIO()
        split.images.read(index, split.images.pixels.shape[-1]).save(buffer, "PNG")
        return buffer.getvalue(), "png"
    content = split.images.data(index)
    return content, _ending(content)


def _ending(content: bytes) -> str:
    """Tell the format by its first bytes: names lie, and Parquet has none."""
    signatures = (
        (b"\xff\xd8", "jpg"),
        (b"\x89PNG", "png"),
        (b"GIF8", "gif"),
        (b"BM", "bmp"),
        (b"II*\0", "tif"),
        (b"MM\0*", "tif"),
    )
    for start, ending in signatures:
        if content.startswith(start):
            return ending
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    return "avif" if content[4:12] in (b"ftypavif", b"ftypavis") else "jpg"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
