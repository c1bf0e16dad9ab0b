"""DATA as Parquet or Arrow: tables of paths, and Hugging Face data sets with the images inside.

Random reads inside Parquet would unpack a row group for every image, so image bytes are copied once, as they
are, into one flat file in the cache; the table itself is never changed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from vitreous.data.content import digest, stamp
from vitreous.data.images import EncodedImages, Images
from vitreous.data.sources.found import Found, Label, split_name
from vitreous.data.sources.tables import LABEL_COLUMNS, column, from_columns, parse_labels, split_rows
from vitreous.data.store import load_arrays, write_whole
from vitreous.errors import DataError, MissingDependencyError
from vitreous.files import cache_root

if TYPE_CHECKING:
    import pyarrow

BATCH = 256


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError(
            "reading Parquet or Arrow needs pyarrow: pip install 'vitreous[parquet]'"
        ) from None
    return pyarrow


def open_parquet(path: Path) -> Found:
    """Open one Parquet file: of paths and labels, or of images and labels."""
    schema = _schema(path)
    if image_column(schema) is None:
        rows = {name: _values(path, name) for name in schema.names}
        return from_columns(path, rows, class_names(schema, rows))
    return open_tables({"train": [path]}, one_file=True)


def is_hub_folder(folder: Path) -> bool:
    """Tell whether a folder is a local Hugging Face data set: saved by `save_to_disk`, or a snapshot of
    Parquet files."""
    return bool(_tables(folder))


def open_hub_folder(folder: Path) -> Found:
    """Open a local Hugging Face data set."""
    return open_tables(_tables(folder))


def _tables(folder: Path) -> dict[str, list[Path]]:
    saved = [folder] if (folder / "state.json").is_file() else []
    saved += [child for child in sorted(folder.iterdir()) if (child / "state.json").is_file()]
    tables: dict[str, list[Path]] = {}
    for child in saved:
        split = split_name(child.name) or "train"
        tables.setdefault(split, []).extend(sorted(child.glob("*.arrow")))
    if tables:
        return tables
    for path in sorted([*folder.glob("*.parquet"), *folder.glob("*/*.parquet")]):
        first = path.stem.replace(".", "-").replace("_", "-").split("-")[0]
        split = split_name(first) or split_name(path.parent.name) or "train"
        tables.setdefault(split, []).append(path)
    return tables


def open_tables(tables: dict[str, list[Path]], *, one_file: bool = False) -> Found:
    """Open tables that hold images, grouped by split."""
    splits: dict[str, tuple[Images, list[Label]]] = {}
    names: list[str] | None = None
    for split, paths in tables.items():
        parts = [_open_table(path) for path in paths]
        names = names or next((part_names for _, _, part_names, _ in parts if part_names), None)
        images = join([part for part, _, _, _ in parts])
        labels = [label for _, part_labels, _, _ in parts for label in part_labels]
        splits[split] = (images, labels)
        if one_file:
            rows = parts[0][3]
            splits = {
                s: (images.select(np.array(c, np.int64)), [labels[i] for i in c]) for s, c in rows.items()
            }
    return Found(splits, names)


def _open_table(path: Path) -> tuple[EncodedImages, list[Label], list[str] | None, dict[str, list[int]]]:
    schema = _schema(path)
    found = image_column(schema)
    if found is None:
        raise DataError(
            f"{path}: no column of images among {', '.join(schema.names)}: expected a struct of bytes and "
            f"path"
        )
    label_column = column(path, schema.names, LABEL_COLUMNS, "labels")
    plain = {name: _values(path, name) for name in schema.names if name != found}
    labels = parse_labels(plain[label_column], path)
    images = _unpacked(path, found, len(labels))
    return images, labels, class_names(schema, plain), split_rows(path, plain, len(labels))


def image_column(schema: "pyarrow.Schema") -> str | None:
    """Return the column that holds image bytes: binary, or Hugging Face's struct of bytes and path."""
    arrow = _arrow()
    for field in schema:
        kind = field.type
        if arrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            return field.name
        if arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind):
            return field.name
    return None


def class_names(schema: "pyarrow.Schema", columns: Mapping[str, Sequence[Any]]) -> list[str] | None:
    """Return the class names in Hugging Face's metadata of the label column, if there are any."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        label = next(features[name] for name in features if name.lower() in LABEL_COLUMNS)
        names = (label.get("feature") or label)["names"]
    except (KeyError, StopIteration, ValueError, TypeError, AttributeError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def _schema(path: Path) -> "pyarrow.Schema":
    arrow = _arrow()
    try:
        if path.suffix == ".arrow":
            with arrow.memory_map(str(path)) as file:
                return _stream(file).schema
        return arrow.parquet.read_schema(path)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path}: not a readable table: {error}") from None


def _stream(file: Any) -> Any:
    """Open Arrow's stream format, which `save_to_disk` writes, or its file format."""
    arrow = _arrow()
    try:
        return arrow.ipc.open_stream(file)
    except arrow.ArrowInvalid:
        file.seek(0)
        return arrow.ipc.open_file(file)


def _batches(path: Path, name: str) -> Iterator[Any]:
    """Read one column in small pieces, so that a table larger than the memory can be read."""
    arrow = _arrow()
    try:
        if path.suffix == ".arrow":
            with arrow.memory_map(str(path)) as file:
                reader = _stream(file)
                whole = reader.read_all()
                for batch in whole.select([name]).to_batches(max_chunksize=BATCH):
                    yield batch.column(0)
            return
        with arrow.parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=BATCH, columns=[name]):
                yield batch.column(0)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path}: not a readable table: {error}") from None


def _values(path: Path, name: str) -> list[Any]:
    return [value for batch in _batches(path, name) for value in batch.to_pylist()]


def _unpacked(path: Path, name: str, count: int) -> EncodedImages:
    """Copy a table's image bytes into one flat file, once, and return their ranges in it."""
    key = digest(stamp(str(path)) + name.encode()).hex()
    blob, index = (cache_root() / "tables" / f"{key}.{ending}" for ending in ("bytes", "npz"))
    arrays = load_arrays(index)
    if arrays is None or not _holds(blob, arrays.get("sizes", np.empty(0)), count):
        sizes: list[int] = []

        def write(file: IO[bytes]) -> None:
            sizes.clear()
            for batch in _batches(path, name):
                for value in batch.to_pylist():
                    data = _image_bytes(value, path)
                    sizes.append(len(data))
                    file.write(data)

        if not write_whole(blob, write):
            raise DataError(
                f"{path}: its images can't be copied to {blob.parent}: make room there, or set VITREOUS_CACHE"
            )
        arrays = {"sizes": np.array(sizes, np.int64)}
        write_whole(index, lambda file: np.savez(file, sizes=np.array(sizes, np.int64)))
    sizes_read = arrays["sizes"]
    offsets = np.concatenate([[0], np.cumsum(sizes_read)[:-1]]) if len(sizes_read) else sizes_read
    names = [f"{path.name}#{i}" for i in range(len(sizes_read))]
    return EncodedImages(
        [str(blob)], names, owner=np.zeros(len(names), np.int32), offsets=offsets, sizes=sizes_read
    )


def _holds(blob: Path, sizes: np.ndarray, count: int) -> bool:
    """Tell whether a copy of image bytes is whole."""
    return len(sizes) == count and blob.is_file() and blob.stat().st_size == int(sizes.sum())


def _image_bytes(value: Any, path: Path) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, dict):
        return b""  # no image: decoding will name the row
    if value.get("bytes") is not None:
        return bytes(value["bytes"])
    file = path.parent / str(value.get("path") or "")
    inside = file.resolve().is_relative_to(
        path.parent.resolve()
    )  # a table's path never leads out of its folder
    return file.read_bytes() if inside and file.is_file() else b""


def join(parts: list[EncodedImages]) -> EncodedImages:
    """Return several stores of ranges as one."""
    if len(parts) == 1:
        return parts[0]
    owners = [
        part.owner + shift
        for part, shift in zip(parts, _shifts(parts), strict=True)
        if part.owner is not None
    ]
    return EncodedImages(
        [path for part in parts for path in part.paths],
        [name for part in parts for name in part.names],
        owner=np.concatenate(owners),
        offsets=np.concatenate([part.offsets for part in parts if part.offsets is not None]),
        sizes=np.concatenate([part.sizes for part in parts if part.sizes is not None]),
    )


def _shifts(parts: list[EncodedImages]) -> list[int]:
    return np.cumsum([0, *(len(part.paths) for part in parts[:-1])]).tolist()
