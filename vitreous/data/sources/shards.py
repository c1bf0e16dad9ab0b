"""DATA as WebDataset tar shards: indexed once, then read by byte range in any order. Nothing is ever
unpacked to disk, and no picture of a damaged shard is silently left out."""

import json
import os
import re
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from vitreous.data.content import digest, stamp
from vitreous.data.decode import SUFFIXES
from vitreous.data.images import EncodedImages, Images
from vitreous.data.pictures import Tally, why_not
from vitreous.data.sources.found import LONGEST_NUMBER, Found, Label, split_name
from vitreous.data.sources.tar import DamagedError, Member, read_members
from vitreous.data.store import load_arrays, write_whole
from vitreous.errors import DataError
from vitreous.files import cache_root

INDEX_VERSION = 3
NO_PICTURE = "samples without a picture"
LABEL_ENDINGS = frozenset({"cls", "txt", "json"})
LISTED = 10
LABELS_FILE = "labels.txt"


def find_shards(path: Path) -> dict[str, list[Path]]:
    """Return the shards of each split: in split folders, or named as in `train-000.tar`; else all are
    training."""
    shards = [path] if path.is_file() else sorted([*path.glob("*.tar"), *path.glob("*/*.tar")])
    splits: dict[str, list[Path]] = {}
    for shard in shards:
        words = re.split(r"[-_.]", shard.stem)
        split = next(filter(None, map(split_name, words)), None) or split_name(shard.parent.name) or "train"
        splits.setdefault(split, []).append(shard)
    return splits


def open_source(path: Path) -> Found:
    """Open one shard or a folder of shards; `labels.txt` beside them names the classes, one per line."""
    found = find_shards(path)
    _require_whole([shard for shards in found.values() for shard in shards])
    splits: dict[str, tuple[Images, list[Label]]] = {split: _open_split(found[split]) for split in found}
    if not any(len(images) for images, _ in splits.values()):
        raise DataError(f"{path}: no samples in its shards: expected members such as 0001.jpg with 0001.cls")
    tally = Tally()
    for shard in (shard for shards in found.values() for shard in shards):
        for name in shard_index(shard)["left_out"].tolist():
            known = os.path.splitext(name)[1][1:].lower() not in LABEL_ENDINGS
            tally.add(
                (why_not(os.path.basename(name)) if known else None) or NO_PICTURE, f"{shard.name}:{name}"
            )
    return Found(splits, _class_names(path if path.is_dir() else path.parent), left_out=tally.found())


def _require_whole(shards: Sequence[Path]) -> None:
    """Index all shards, and refuse the data if any is damaged: what they lost can't be known for sure."""
    damaged = []
    for shard in shards:
        try:
            shard_index(shard)
        except DamagedError as error:
            damaged.append(str(error))
    if damaged:
        more = f"; and {len(damaged) - LISTED} more shards" if len(damaged) > LISTED else ""
        raise DataError(f"{'; '.join(damaged[:LISTED])}{more}: copy the shard again, or remove it")


def _class_names(folder: Path) -> list[str] | None:
    file = folder / LABELS_FILE
    if not file.is_file():
        return None
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line]


def _open_split(shards: Sequence[Path]) -> tuple[EncodedImages, list[Label]]:
    names: list[str] = []
    labels: list[Label] = []
    owners, offsets, sizes = [], [], []
    for number, shard in enumerate(shards):
        index = shard_index(shard)
        names += [f"{shard.name}:{name}" for name in index["names"].tolist()]
        labels += [json.loads(text) for text in index["labels"].tolist()]
        owners.append(np.full(len(index["offsets"]), number, np.int32))
        offsets.append(index["offsets"])
        sizes.append(index["sizes"])
    images = EncodedImages(
        [str(shard) for shard in shards],
        names,
        owner=np.concatenate(owners),
        offsets=np.concatenate(offsets),
        sizes=np.concatenate(sizes),
    )
    return images, labels


def shard_index(shard: Path) -> dict[str, np.ndarray]:
    """Return where each sample of a shard lies and what its label is; remembered until the shard changes."""
    readable = ",".join(sorted(SUFFIXES)).encode()  # what is a picture depends on what is installed
    key = digest(stamp(str(shard)) + b"shard%d" % INDEX_VERSION + readable).hex()
    remembered = cache_root() / "shards" / f"{key}.npz"
    arrays = load_arrays(remembered)
    if arrays is None or not {"names", "labels", "offsets", "sizes", "left_out"} <= arrays.keys():
        count = (
            cache_root()
            / "shards"
            / f"{digest(os.path.abspath(shard).encode('utf-8', 'surrogateescape')).hex()}.npz"
        )
        try:
            found = arrays = _scan(shard)
        except DamagedError as error:
            raise DamagedError(f"{shard}: {error}{_missing(error, count)}", error.before) from None
        write_whole(remembered, lambda file: np.savez(file, **found))  # pyright: ignore[reportArgumentType]
        write_whole(count, lambda file: np.savez(file, samples=np.array(len(found["names"]))))
    return arrays


def _missing(error: DamagedError, count: Path) -> str:
    """Return how many samples a damaged shard has left and had before, as far as that is known."""
    text = f": {_images(member.name for member in error.before):,} samples before that can be read"
    if error.after:
        text += f", {_images(error.after):,} after"
    earlier = load_arrays(count)
    if earlier is not None and "samples" in earlier:
        text += f"; when it was last whole it had {int(earlier['samples']):,} samples"
    return text


def _images(names: Iterable[str]) -> int:
    return sum(os.path.splitext(name)[1].lower() in SUFFIXES for name in names)


def _scan(shard: Path) -> dict[str, np.ndarray]:
    """Read a shard's headers: members with one stem are one sample."""
    samples: dict[str, dict[str, Member]] = {}
    try:
        for member in read_members(shard):
            folder, _, file = member.name.rpartition("/")
            stem, _, kind = file.partition(".")
            ending = kind.lower().rpartition(".")[2]
            samples.setdefault(f"{folder}/{stem}", {})[ending] = member
    except tarfile.TarError as error:
        raise DataError(f"{shard}: not a readable, uncompressed tar shard: {error}") from None
    except OSError as error:
        raise DataError(f"{shard}: {error.strerror or error}") from None
    names, labels, offsets, sizes, left_out = [], [], [], [], []
    with open(shard, "rb") as file:
        for stem, parts in samples.items():
            image = next((parts[ending] for ending in parts if f".{ending}" in SUFFIXES), None)
            if image is None:
                others = [member for ending, member in parts.items() if ending not in LABEL_ENDINGS]
                left_out.append((others or list(parts.values()))[0].name)
                continue
            label = _label(file, parts)
            if label is None:
                raise DataError(
                    f"{shard}: sample {stem.strip('/')} has no label: add a .cls, .txt or .json member"
                )
            names.append(image.name)
            offsets.append(image.offset)
            sizes.append(image.size)
            labels.append(json.dumps(label))
    return {
        "names": np.array(names, str),
        "labels": np.array(labels, str),
        "offsets": np.array(offsets, np.int64),
        "sizes": np.array(sizes, np.int64),
        "left_out": np.array(left_out, str),
    }


def _label(file: IO[bytes], parts: dict[str, Member]) -> Label | None:
    """Read a sample's label: a number or a name in .cls or .txt, or label, labels or cls in .json."""
    for ending in ("cls", "txt", "json"):
        if ending not in parts:
            continue
        _, offset, size = parts[ending]
        file.seek(offset)
        text = file.read(min(size, 1 << 20)).decode("utf-8", "replace").strip()
        if ending != "json":
            return int(text) if text.isdecimal() and len(text) <= LONGEST_NUMBER else text
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if isinstance(document, dict):
            keys = ("labels", "label", "cls", "class")
            label = next((document[key] for key in keys if key in document), None)
            several = label if isinstance(label, list) else [label]
            return label if all(isinstance(each, str | int) for each in several) else None
    return None
