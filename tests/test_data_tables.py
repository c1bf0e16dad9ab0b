"""DATA as CSV: paths, labels and splits; every fault is named with its row."""

import csv
import os
from pathlib import Path

import pytest

from tests.data_images import own_cache
from tests.data_sources import CLASSES, expected, seen, table_rows
from vitreous.data import open_data
from vitreous.errors import DataError

__all__ = ["own_cache"]


def write_table(tmp_path: Path, rows: list[tuple[str, ...]], header: str = "path,label") -> Path:
    path = tmp_path / "data.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([tuple(header.split(",")), *rows])
    return path


def test_csv_paths_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_table(tmp_path, table_rows(tmp_path))
    monkeypatch.chdir("/")
    assert seen(open_data(path, carve=False)) == {"train": expected(CLASSES)}


def test_csv_with_splits_and_numbers(tmp_path: Path) -> None:
    rows = [
        (p, {"cat": "2", "dog": "10", "emu": "0"}[c], "valid" if p.endswith("1.png") else "Train")
        for p, c in table_rows(tmp_path)
    ]
    data = open_data(write_table(tmp_path, rows, "File_Name,Label,Split"), carve=False)
    assert data.labels == ["0", "2", "10"]
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 6, "val": 3}


@pytest.mark.parametrize("mark", ["|", ";"])
def test_csv_with_several_labels(tmp_path: Path, mark: str) -> None:
    rows = [(p, f"animal{mark} {c}" if c != "emu" else "") for p, c in table_rows(tmp_path)]
    data = open_data(write_table(tmp_path, rows), carve=False)
    assert data.multilabel and data.labels == ["animal", "cat", "dog"]
    targets = data.splits["train"].targets
    assert targets.dtype == bool and targets.sum(0).tolist() == [7, 4, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\n", "no rows"),
        ("a,b\n1,2\n", "no column of paths"),
        ("path,b\n1,2\n", "no column of labels"),
        ("path,label\nx.png,\n", "row 2 has no label"),
        ("path,label\n,cat\n", "row 2 has no path"),
        ("path,label\nx.png,cat,3\n", "row 2 has 3 fields"),
        ("path,label,split\nx.png,cat,holiday\n", "'holiday'"),
    ],
)
def test_csv_faults_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        open_data(tmp_path / "bad.csv")


def test_a_table_in_another_encoding_says_what_to_do(tmp_path: Path) -> None:
    text = "path,label\n" + "".join(f"{p},caf\xe9 {c}\n" for p, c in table_rows(tmp_path))
    (tmp_path / "latin.csv").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"the label caf\\xe9 cat is not in UTF-8: save the file as UTF-8"):
        open_data(tmp_path / "latin.csv")
    (tmp_path / "wide.csv").write_text(text, encoding="utf-16")
    with pytest.raises(DataError, match="it is in UTF-16: save it as UTF-8"):
        open_data(tmp_path / "wide.csv")


def test_a_table_names_files_of_any_bytes_beside_text_of_any_length(tmp_path: Path) -> None:
    rows = table_rows(tmp_path)
    first, label = rows[0]
    (tmp_path / first).rename(tmp_path / os.fsdecode(b"caf\xe9.png"))
    lines = [b"path,label,note", b"caf\xe9.png," + label.encode() + b"," + 200_000 * b"x"]
    lines += [f"{p},{c},".encode() for p, c in rows[1:]]
    (tmp_path / "data.csv").write_bytes(b"\n".join(lines))
    split = open_data(tmp_path / "data.csv", carve=False).splits["train"]
    assert len(split) == len(rows) and split.name(0) == r"caf\xe9.png"
    assert [split.read(i).size for i in range(2)]
