"""What `vitreous predict` writes: a table, one JSON document, or CSV that a later run can continue.

Every writer takes entries one by one and forgets them.
"""

import csv
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol, TextIO

import numpy as np

from vitreous import console, files
from vitreous.errors import DataError
from vitreous.predict.classifier import Classifier, Failure, Prediction
from vitreous.predict.identity import identity
from vitreous.written import as_json

COLUMNS = ("file", "label", "probability", "top", "error", "model")
TABLE_ROWS = 500


class Writer(Protocol):
    """Where entries go."""

    def add(self, entry: Prediction | Failure) -> None:
        """Take the next entry."""
        ...

    def close(self) -> None:
        """Write what is still held, and the end."""
        ...


class TableWriter:
    """Tables of up to 500 rows: people read them as they come."""

    def __init__(self) -> None:
        self.rows: list[list[console.Cell]] = []

    def add(self, entry: Prediction | Failure) -> None:
        """Take the next entry."""
        if isinstance(entry, Failure):
            self.rows.append([entry.file or "-", "", None, f"error: {entry.error}"])
        else:
            others = ", ".join(f"{name} {value:.2f}" for name, value in entry.top[1:])
            label = "(abstains)" if entry.label is None else ", ".join(_labels(entry))
            self.rows.append([entry.file or "-", label, entry.probability, others])
        if len(self.rows) == TABLE_ROWS:
            self.close()

    def close(self) -> None:
        """Print the rows that are held."""
        if self.rows:
            console.table(["file", "label", "probability", "next"], self.rows)
            self.rows = []


class JsonWriter:
    """One JSON document, a list, written as its entries come."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream, self.separator = stream or sys.stdout, "["

    def add(self, entry: Prediction | Failure) -> None:
        """Take the next entry."""
        text = as_json(entry.to_dict(), encoding=console.encoding_of(self.stream))
        self.stream.write(f"{self.separator}\n  {text}")
        self.separator = ","

    def close(self) -> None:
        """Write the end of the list."""
        self.stream.write("[]\n" if self.separator == "[" else "\n]\n")


class _Lines:
    """Ends rows with a line feed alone. The writer thinks of both marks, and so quotes names with either."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, row: str) -> int:
        return self.stream.write(row.removesuffix("\r\n") + "\n")


class CsvWriter:
    """Rows of `file, label, probability, top, error, model`; flushed one by one: a kill costs at most one."""

    def __init__(self, stream: IO[str], model: str, *, header: bool = True) -> None:
        self.stream, self.model = stream, model
        self.rows = csv.writer(_Lines(stream))
        if header:
            self.rows.writerow(COLUMNS)

    def add(self, entry: Prediction | Failure) -> None:
        """Take the next entry."""
        if isinstance(entry, Failure):
            row = [entry.file, "", "", "", entry.error, self.model]
        else:
            top = json.dumps([[name, round(value, 6)] for name, value in entry.top], ensure_ascii=False)
            row = [entry.file, "|".join(_labels(entry)), f"{entry.probability:.6f}", top, "", self.model]
        self.rows.writerow(row)
        self.stream.flush()

    def close(self) -> None:
        """Make the rows durable where they are a file."""
        self.stream.flush()
        if self.stream is not sys.stdout:
            os.fsync(self.stream.fileno())
            self.stream.close()


class Finished:
    """The files that an earlier run has answered: eight bytes each, however long their names are."""

    def __init__(self, files: Iterator[str] | Sequence[str] = ()) -> None:
        digests = np.fromiter((_digest(file) for file in files), np.uint64)
        self.digests = np.sort(digests)

    def __len__(self) -> int:
        return len(self.digests)

    def __contains__(self, file: str) -> bool:
        place = int(np.searchsorted(self.digests, np.uint64(_digest(file))))
        return place < len(self.digests) and int(self.digests[place]) == _digest(file)


def resume(path: Path, model: str) -> tuple[CsvWriter, Finished, int]:
    """Open FILE.csv to continue it: return its writer, the files in it, and how many of them had failed.

    A row that a crash left unfinished is cut off; a file that is not ours, or another model's, is refused.
    """
    if path.suffix.lower() != ".csv":
        raise DataError(f"--out {path} is not a .csv file: rows can be continued only there")
    if not path.exists() or path.stat().st_size == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("w", encoding="utf-8", errors="surrogateescape", newline="")
        return CsvWriter(stream, model), Finished(), 0
    rows = _Rows(path, model)
    finished = Finished(iter(rows))
    stream = path.open("r+", encoding="utf-8", errors="surrogateescape", newline="")
    stream.truncate(rows.whole)
    stream.seek(0, os.SEEK_END)
    return CsvWriter(stream, model, header=False), finished, rows.failed


class _Rows:
    """The files of the whole rows of an earlier output, and where the last of them ends."""

    def __init__(self, path: Path, model: str) -> None:
        self.path, self.model = path, model
        self.whole = self.failed = 0

    def __iter__(self) -> Iterator[str]:
        with self.path.open("rb") as file:
            self.read, self.ended = 0, True
            files.allow_long_fields()
            rows = csv.reader(self._lines(file))
            if tuple(next(rows, ())) != COLUMNS:
                raise DataError(f"{self.path} is not an output of vitreous predict: choose another --out")
            self.whole = self.read
            try:
                yield from self._files(rows)
            except csv.Error as error:
                raise self._damaged(str(error)) from None

    def _files(self, rows: Iterator[list[str]]) -> Iterator[str]:
        for row in rows:
            if not row:
                continue  # a blank line, where somebody removed rows
            if len(row) != len(COLUMNS) or not self.ended:
                if self.ended and next(rows, None) is not None:
                    raise self._damaged(f"a row of {len(row)} columns")
                return  # a crash cut this row: its file is predicted again
            if row[-1] != self.model:
                raise DataError(
                    f"{self.path} was made by another model ({row[-1]}, this is {self.model}): "
                    "choose another --out"
                )
            self.whole, self.failed = self.read, self.failed + bool(row[4])
            yield row[0]

    def _damaged(self, what: str) -> DataError:
        return DataError(
            f"{self.path} can't be continued, {what} is not of vitreous predict: choose another --out"
        )

    def _lines(self, file: IO[bytes]) -> Iterator[str]:
        for line in file:
            self.read, self.ended = self.read + len(line), line.endswith(b"\n")
            yield line.decode("utf-8", "surrogateescape")


def fingerprint(classifier: Classifier) -> str:
    """Return twelve digits that change with all that could change an answer, and a lower precision's name."""
    precision = "float32" if classifier.engine is None else classifier.engine.precision
    return identity(classifier)[:12] + ("" if precision == "float32" else f"-{precision}")


def _labels(entry: Prediction) -> list[str]:
    if entry.labels is not None:
        return entry.labels
    return [] if entry.label is None else [entry.label]


def _digest(file: str) -> int:
    data = file.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())
