"""DATA as Parquet and as local Hugging Face folders: paths, or the images inside."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data_images import encoded, own_cache, picture
from tests.data_sources import CLASSES, expected, seen, table_rows
from vitreous.data import open_data
from vitreous.errors import DataError

__all__ = ["own_cache"]


def test_parquet_of_paths(tmp_path: Path) -> None:
    files, labels = zip(*table_rows(tmp_path), strict=True)
    pq.write_table(pa.table({"path": list(files), "label": list(labels)}), tmp_path / "data.parquet")
    assert seen(open_data(tmp_path / "data.parquet", carve=False)) == {"train": expected(CLASSES)}


def hub_table(first: int = 0) -> pa.Table:
    """A table as Hugging Face writes it: struct of bytes and path, class names in the schema's metadata."""
    names = list(CLASSES)
    seeds = iter(range(first, 1000))
    rows = [(encoded(picture(next(seeds))), k) for k, name in enumerate(names) for _ in range(CLASSES[name])]
    images = pa.array(
        [{"bytes": data, "path": None} for data, _ in rows],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    info = {
        "info": {"features": {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}}
    }
    table = pa.table({"image": images, "label": pa.array([k for _, k in rows], pa.int64())})
    return table.replace_schema_metadata({"huggingface": json.dumps(info)})


def test_parquet_with_images_inside(tmp_path: Path) -> None:
    pq.write_table(hub_table(), tmp_path / "data.parquet", row_group_size=2)
    before = os.listdir(tmp_path)
    for _ in range(2):  # the second time from the flat copy
        assert seen(open_data(tmp_path / "data.parquet", carve=False)) == {"train": expected(CLASSES)}
    assert os.listdir(tmp_path) == before


def test_hub_snapshot_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(hub_table(), tmp_path / "data" / "train-00000-of-00001.parquet")
    pq.write_table(hub_table(100), tmp_path / "data" / "test-00000-of-00002.parquet")
    pq.write_table(hub_table(200), tmp_path / "data" / "test-00001-of-00002.parquet")
    (tmp_path / "README.md").write_text("---\n---\n")
    found = seen(open_data(tmp_path, carve=False))
    assert found == {
        "train": expected(CLASSES),
        "test": sorted(expected(CLASSES, 100) + expected(CLASSES, 200)),
    }


def test_hub_folder_saved_to_disk(tmp_path: Path) -> None:
    for split, first in (("train", 0), ("validation", 100)):
        folder = tmp_path / split
        folder.mkdir()
        (folder / "state.json").write_text("{}")
        table = hub_table(first)
        with (
            pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as writer,
        ):
            writer.write_table(table)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    assert seen(open_data(tmp_path)) == {"train": expected(CLASSES), "val": expected(CLASSES, 100)}


def test_a_tables_path_never_leads_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(encoded(picture()))
    (tmp_path / "data").mkdir()
    images = pa.array(
        [{"bytes": None, "path": "../secret.png"}] * 2,
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    pq.write_table(pa.table({"image": images, "label": ["a", "b"]}), tmp_path / "data" / "x.parquet")
    with pytest.raises(DataError, match="empty"):
        open_data(tmp_path / "data" / "x.parquet", carve=False).splits["train"].read(0)
