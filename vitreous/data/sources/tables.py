"""DATA as a table: CSV, or Parquet, of path and label; Parquet may also hold the images themselves."""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitreous import files
from vitreous.data.images import EncodedImages, Images, is_utf8
from vitreous.data.sources.found import Found, Label, split_name
from vitreous.errors import DataError
from vitreous.written import encodable

PATH_COLUMNS = ("path", "file", "filename", "file_name", "image_path", "filepath", "image", "img")
LABEL_COLUMNS = ("label", "labels", "class", "target", "category", "tags", "y")
SPLIT_COLUMNS = ("split", "set", "subset", "fold", "partition")
SEPARATORS = ("|", ";")
UTF_16 = ("\udcff\udcfe", "\udcfe\udcff")


def open_csv(path: Path) -> Found:
    """Open a CSV: a column of paths (relative to the CSV), one of labels, optionally one of splits."""
    try:
        # Names of files may be of any bytes; `surrogateescape` is how the system's functions take them
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            sample = file.read(65536)
            file.seek(0)
            delimiter = max(",\t;", key=sample.split("\n", 1)[0].count)
            files.allow_long_fields()
            rows = list(csv.reader(file, delimiter=delimiter))
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: not a readable CSV: {error}") from None
    if sample.startswith(UTF_16):
        raise DataError(f"{path}: not a readable CSV: it is in UTF-16: save it as UTF-8")
    rows = [row for row in rows if row]
    if len(rows) < 2:
        raise DataError(f"{path}: no rows; expected a header such as path,label and one row per image")
    header = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise DataError(
                f"{path}: row {number} has {len(row)} fields, the header {len(header)}: quote commas inside "
                f"a field"
            )
    columns = {name: [row[k].strip() for row in rows[1:]] for k, name in enumerate(header)}
    return from_columns(path, columns)


def from_columns(path: Path, columns: Mapping[str, Sequence[Any]], names: list[str] | None = None) -> Found:
    """Turn a table's columns, whose paths are relative to the table's folder, into a `Found`."""
    file_column = column(path, columns, PATH_COLUMNS, "paths")
    label_column = column(path, columns, LABEL_COLUMNS, "labels")
    odd = next((text for text in columns[label_column] if isinstance(text, str) and not is_utf8(text)), None)
    if odd is not None:
        raise DataError(f"{path}: the label {encodable(odd)} is not in UTF-8: save the file as UTF-8")
    labels = parse_labels(columns[label_column], path)
    files = [str(file) for file in columns[file_column]]
    missing = [number for number, file in enumerate(files) if not file]
    if missing:
        raise DataError(f"{path}: row {missing[0] + 2} has no path: fill it in or delete the row")
    rows = split_rows(path, columns, len(files))
    splits: dict[str, tuple[Images, list[Label]]] = {}
    for split, chosen in rows.items():
        paths = [os.path.join(path.parent, files[i]) for i in chosen]
        splits[split] = (EncodedImages(paths, [files[i] for i in chosen]), [labels[i] for i in chosen])
    return Found(splits, names)


def column(path: Path, columns: Iterable[str], known: Sequence[str], what: str) -> str:
    """Return the first column with a known name."""
    lowered = {name.lower(): name for name in columns}
    for name in known:
        if name in lowered:
            return lowered[name]
    raise DataError(f"{path}: no column of {what} among {', '.join(lowered)}: call it {known[0]!r}")


def split_rows(path: Path, columns: Mapping[str, Sequence[Any]], count: int) -> dict[str, list[int]]:
    """Return the rows of each split; without a column of splits all are training rows."""
    lowered = {name.lower(): name for name in columns}
    found = next((lowered[name] for name in SPLIT_COLUMNS if name in lowered), None)
    if found is None:
        return {"train": list(range(count))}
    rows: dict[str, list[int]] = {}
    for i, text in enumerate(columns[found]):
        split = split_name(str(text))
        if split is None:
            raise DataError(f"{path}: row {i + 2} is of split {text!r}: train, val or test")
        rows.setdefault(split, []).append(i)
    return rows


def parse_labels(values: Sequence[Any], path: Path) -> list[Label]:
    """Read the label of each row, or several: a list, or a text with `|` or `;` between them."""
    if any(isinstance(value, list | tuple) for value in values):
        return [[str(label) for label in (value or [])] for value in values]
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return list(values)
    texts = ["" if value is None else str(value).strip() for value in values]
    separator = next((mark for mark in SEPARATORS if any(mark in text for text in texts)), None)
    if separator is not None:
        return [[part.strip() for part in text.split(separator) if part.strip()] for text in texts]
    empty = next((i for i, text in enumerate(texts) if not text), None)
    if empty is not None:
        raise DataError(f"{path}: row {empty + 2} has no label: fill it in or delete the row")
    return list(texts)
