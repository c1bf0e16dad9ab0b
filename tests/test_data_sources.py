"""Every kind of DATA opens to the same images and labels, or is refused in one line that says why."""

import csv
import gzip
import io
import json
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.data_images import encoded, make_folder, own_cache, picture
from vitreous.data import Dataset, open_data
from vitreous.data.sources.arrays import pixels, read_idx
from vitreous.errors import DataError

__all__ = ["own_cache"]


def seen(data: Dataset) -> dict[str, list[tuple[bytes, str]]]:
    """Return for each split the pixels and label of every image, sorted."""
    found = {}
    for name, split in data.splits.items():
        rows = [(split.read(i).tobytes(), data.labels[split.targets[i]]) for i in range(len(split))]
        found[name] = sorted(rows)
    return found


def expected(classes: dict[str, int], first: int = 0) -> list[tuple[bytes, str]]:
    seeds = iter(range(first, 1000))
    return sorted(
        (picture(next(seeds)).tobytes(), name) for name, count in classes.items() for _ in range(count)
    )


CLASSES = {"cat": 4, "dog": 3, "emu": 2}


def test_folder_without_splits(tmp_path: Path) -> None:
    data = open_data(make_folder(tmp_path, CLASSES), carve=False)
    assert data.labels == ["cat", "dog", "emu"] and not data.multilabel
    assert seen(data) == {"train": expected(CLASSES)}
    assert data.splits["train"].name(0) == "cat/000.png"


@pytest.mark.parametrize("validation", ["val", "valid", "validation", "Validation"])
def test_folder_with_splits(tmp_path: Path, validation: str) -> None:
    make_folder(tmp_path / "train", CLASSES)
    make_folder(tmp_path / validation, CLASSES, first=100)
    make_folder(tmp_path / "test", {"dog": 2}, first=200)
    data = open_data(tmp_path)
    assert seen(data) == {
        "train": expected(CLASSES),
        "val": expected(CLASSES, 100),
        "test": expected({"dog": 2}, 200),
    }
    assert data.carved == ()


def test_nested_classes_mixed_case_endings_and_other_files(tmp_path: Path) -> None:
    for number, name in enumerate(["birds/emu/A.PNG", "birds/kiwi/b.Jpg", "cats/c.jpeg", "cats/d.TIFF"]):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(number)))  # the content decides, not the ending
    (tmp_path / "cats" / "notes.txt").write_text("not an image")
    (tmp_path / "cats" / ".hidden.png").write_bytes(b"x")
    (tmp_path / ".git" / "x").mkdir(parents=True)
    data = open_data(tmp_path, carve=False)
    assert data.labels == ["birds/emu", "birds/kiwi", "cats"]
    assert len(data.splits["train"]) == 4


def test_a_class_may_be_called_test(tmp_path: Path) -> None:
    data = open_data(make_folder(tmp_path, {"test": 3, "control": 3}), carve=False)
    assert data.labels == ["control", "test"] and list(data.splits) == ["train"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no images found"),
        (["a.png"], "outside a class folder"),
        (["only/a.png", "only/b.png"], "one class"),
        (["val/a/1.png", "valid/a/1.png", "train/a/1.png", "train/b/1.png"], "two folders are the val split"),
    ],
)
def test_folders_that_are_no_data(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encoded(picture()))
    with pytest.raises(DataError, match=message):
        open_data(tmp_path)


def write_table(tmp_path: Path, rows: list[tuple[str, ...]], header: str = "path,label") -> Path:
    path = tmp_path / "data.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([tuple(header.split(",")), *rows])
    return path


def table_rows(root: Path) -> list[tuple[str, str]]:
    make_folder(root / "images", CLASSES)
    return [(f"images/{c}/{i:03d}.png", c) for c, n in CLASSES.items() for i in range(n)]


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


def make_shard(path: Path, first: int = 0, *, numbers: bool = True, nested: bool = False) -> None:
    with tarfile.open(path, "w") as archive:
        seed = first
        for k, (name, count) in enumerate(CLASSES.items()):
            for _ in range(count):
                stem = f"{'sub/' if nested else ''}{seed:05d}"
                for ending, data in (
                    ("png", encoded(picture(seed))),
                    ("cls", (str(k) if numbers else name).encode()),
                ):
                    member = tarfile.TarInfo(f"{stem}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
                seed += 1


@pytest.mark.parametrize("nested", [False, True])
def test_tar_shards(tmp_path: Path, nested: bool) -> None:
    make_shard(tmp_path / "train-000.tar", nested=nested)
    make_shard(tmp_path / "train-001.tar", 50, nested=nested)
    make_shard(tmp_path / "val-000.tar", 100, nested=nested)
    (tmp_path / "labels.txt").write_text("cat\ndog\nemu\n")
    for _ in range(2):  # the second time from the remembered index
        found = seen(open_data(tmp_path))
        assert found == {
            "train": sorted(expected(CLASSES) + expected(CLASSES, 50)),
            "val": expected(CLASSES, 100),
        }


def test_one_shard_with_names(tmp_path: Path) -> None:
    make_shard(tmp_path / "x.tar", numbers=False)
    assert seen(open_data(tmp_path / "x.tar", carve=False)) == {"train": expected(CLASSES)}


def test_a_changed_shard_is_indexed_again(tmp_path: Path) -> None:
    make_shard(tmp_path / "x.tar", numbers=False)
    open_data(tmp_path / "x.tar")
    make_shard(tmp_path / "x.tar", 300, numbers=False)
    os.utime(tmp_path / "x.tar", ns=(1, 1))
    assert seen(open_data(tmp_path / "x.tar", carve=False)) == {"train": expected(CLASSES, 300)}


def test_compressed_or_broken_shards_are_refused(tmp_path: Path) -> None:
    make_shard(tmp_path / "x.tar")
    data = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(gzip.compress(data))
    with pytest.raises(DataError, match="uncompressed tar"):
        open_data(tmp_path / "x.tar")
    (tmp_path / "x.tar").write_bytes(data[:30_000])
    with pytest.raises(DataError):
        split = open_data(tmp_path / "x.tar", carve=False).splits["train"]
        for i in range(len(split)):
            split.read(i)


def test_a_sample_without_a_label_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        member = tarfile.TarInfo("a/7.png")
        archive.addfile(member)
    with pytest.raises(DataError, match="sample a/7 has no label"):
        open_data(tmp_path / "x.tar")


@pytest.mark.parametrize(
    "keys",
    [
        ("images", "labels", None, None),
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ],
)
def test_npz(tmp_path: Path, keys: tuple[str, str, str | None, str | None]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), np.uint8)
    arrays = {keys[0]: images, keys[1]: np.arange(20) % 4}
    if keys[2] and keys[3]:
        arrays |= {keys[2]: images[:5], keys[3]: np.arange(5)[:, None] % 4}
    np.savez(tmp_path / "x.npz", **arrays)  # pyright: ignore[reportArgumentType]
    data = open_data(tmp_path / "x.npz", carve=False)
    assert data.labels == ["0", "1", "2", "3"]
    assert np.array_equal(np.asarray(data.splits["train"].read(7)), images[7])
    assert list(data.splits) == (["train", "test"] if keys[2] else ["train"])


def test_npz_with_names_and_several_labels(tmp_path: Path) -> None:
    targets = np.array([[1, 0], [1, 1], [0, 0]])
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 4, 4), np.uint8), labels=targets, class_names=["a", "b"])
    data = open_data(tmp_path / "x.npz", carve=False)
    assert data.multilabel and data.labels == ["a", "b"]
    assert np.array_equal(data.splits["train"].targets, targets.astype(bool))


def test_arrays_of_every_kind_become_bytes_or_are_refused() -> None:
    assert pixels(np.full((2, 3, 8, 8), 7, np.uint8), "x").shape == (2, 8, 8, 3)
    assert pixels(np.ones((2, 8, 8), bool), "x").max() == 255
    assert pixels(np.full((2, 8, 8), 65535, np.uint16), "x").max() == 255
    assert pixels(np.full((2, 8, 8, 1), 0.5, np.float32), "x").max() == 128
    assert pixels(np.full((2, 8, 8, 13), 200, np.int64), "x").shape[-1] == 13
    for array, message in (
        (np.full((2, 8, 8), -1.0), "from -1"),
        (np.full((2, 8, 8), 300, np.int32), "300"),
        (np.zeros((2, 8), np.uint8), "shape"),
    ):
        with pytest.raises(DataError, match=message):
            pixels(array, "x")


def test_npz_never_runs_pickles(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "trapped"),))

    np.savez(tmp_path / "x.npz", images=np.array([Trap()], object), labels=np.zeros(1, np.int64))
    with pytest.raises(DataError):
        open_data(tmp_path / "x.npz")
    assert not (tmp_path / "trapped").exists()


def test_npz_faults_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", weights=np.zeros(3))
    with pytest.raises(DataError, match="holds weights; expected images and labels"):
        open_data(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 4, 4), np.uint8), labels=np.zeros(2, np.int64))
    with pytest.raises(DataError, match="3 train images but 2 labels"):
        open_data(tmp_path / "x.npz")
    (tmp_path / "y.npz").write_bytes(b"PK\x03\x04broken")
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        open_data(tmp_path / "y.npz")


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def make_idx(folder: Path, *, packed: bool = False) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(1).integers(0, 256, (30, 28, 28), np.uint8)
    labels = (np.arange(30) % 10).astype(np.uint8)
    for stem, part in (("train", slice(0, 20)), ("t10k", slice(20, 30))):
        for kind, array in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            data = idx(array)
            (folder / f"{stem}-{kind}-ubyte{'.gz' if packed else ''}").write_bytes(
                gzip.compress(data) if packed else data
            )
    return images


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(tmp_path: Path, packed: bool) -> None:
    images = make_idx(tmp_path, packed=packed)
    data = open_data(tmp_path, carve=False)
    assert np.array_equal(np.asarray(data.splits["test"].read(3, channels=1)), images[23])
    assert data.splits["train"].targets.tolist() == [i % 10 for i in range(20)]


def test_idx_files_that_lie_are_refused(tmp_path: Path) -> None:
    whole = idx(np.zeros((3, 4, 4), np.uint8))
    for data in (
        whole[:-1],
        whole + b"x",
        b"\0\0\x0d\x01" + bytes(8),
        b"",
        bytes([0, 0, 8, 3]) + b"\xff" * 12,
    ):
        (tmp_path / "f").write_bytes(data)
        with pytest.raises(DataError, match=r"idx|truncated|limit"):
            read_idx(tmp_path / "f")


def test_named_mnist_below_the_data_root(tmp_path: Path) -> None:
    make_idx(tmp_path / "MNIST" / "raw")
    data = open_data("mnist", data_root=tmp_path)
    assert data.labels == [str(i) for i in range(10)]
    assert not data.splits["train"].mirror  # a mirrored digit is another sign
    assert data.carved == ("val",)


def test_named_set_without_network_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import urllib.request
    from urllib.error import URLError

    def refuse(*_: object, **__: object) -> object:
        raise URLError("no network here")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    for name in ("fashion-mnist", "cifar10", "flowers102"):
        with pytest.raises(DataError, match=f"{name} is not below .* can't be downloaded .*--data-root"):
            open_data(name, data_root=tmp_path)


def make_cifar(folder: Path, extra: object = None) -> np.ndarray:
    folder.mkdir(parents=True)
    images = np.random.default_rng(2).integers(0, 256, (6, 10, 3072), np.uint8)
    for k, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        batch = {"data": images[k], "labels": [i % 10 for i in range(10)], "extra": extra}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "batches.meta").write_bytes(
        pickle.dumps({"label_names": [f"class {i}" for i in range(10)]}, protocol=2)
    )
    return images


def test_cifar_is_read_without_running_its_pickles(tmp_path: Path) -> None:
    images = make_cifar(tmp_path / "cifar-10-batches-py")
    data = open_data("cifar10", data_root=tmp_path, carve=False)
    expected_image = images[0, 3].reshape(3, 32, 32).transpose(1, 2, 0)
    assert np.array_equal(np.asarray(data.splits["train"].read(3)), expected_image)
    assert len(data.splits["train"]) == 50 and len(data.splits["test"]) == 10


class Trap:
    """What a tampered file would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("touch /tmp/vitreous-trapped",))


def test_a_tampered_cifar_is_refused(tmp_path: Path) -> None:
    make_cifar(tmp_path / "cifar-10-batches-py", extra=Trap())
    with pytest.raises(DataError, match="tampered"):
        open_data("cifar10", data_root=tmp_path)
    assert not Path("/tmp/vitreous-trapped").exists()


def test_named_files_come_through_torchvision(tmp_path: Path) -> None:
    from scipy.io import savemat

    base = tmp_path / "flowers-102"
    (base / "jpg").mkdir(parents=True)
    for i in range(1, 10):
        (base / "jpg" / f"image_{i:05d}.jpg").write_bytes(encoded(picture(i), "JPEG"))
    savemat(base / "imagelabels.mat", {"labels": np.array([[1, 2, 3] * 3])})
    savemat(
        base / "setid.mat",
        {"trnid": np.array([[1, 2, 3]]), "valid": np.array([[4, 5, 6]]), "tstid": np.array([[7, 8, 9]])},
    )
    from vitreous.data.sources.named import _by_torchvision

    found = _by_torchvision("flowers102", tmp_path)
    if found is None:
        import torchvision.datasets

        with pytest.MonkeyPatch.context() as patch:  # its checksums are of the real files
            patch.setattr(torchvision.datasets.Flowers102, "_check_integrity", lambda self: True)
            found = _by_torchvision("flowers102", tmp_path)
    assert found is not None
    images, labels = found.splits["val"]
    assert labels == [0, 1, 2] and images.name(0) == "flowers-102/jpg/image_00004.jpg"


def test_svhn_is_read_as_torchvision_reads_it(tmp_path: Path) -> None:
    import torchvision.datasets
    from scipy.io import savemat

    with pytest.raises(DataError, match="svhn is not below"):
        open_data("svhn", data_root=tmp_path)
    generator = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 5)):
        pixels = generator.integers(0, 256, (32, 32, 3, count), np.uint8)
        targets = np.arange(count)[:, None] % 10 + 1  # 10 is the digit 0
        savemat(tmp_path / f"{split}_32x32.mat", {"X": pixels, "y": targets.astype(np.uint8)})
    data = open_data("svhn", data_root=tmp_path, carve=False)
    with pytest.MonkeyPatch.context() as patch:  # its checksums are of the real files
        patch.setattr(torchvision.datasets.SVHN, "_check_integrity", lambda self: True)
        peer = torchvision.datasets.SVHN(str(tmp_path), "train")
    split = data.splits["train"]
    assert split.targets.tolist() == peer.labels.tolist() and not split.mirror
    for row in range(12):
        assert split.read(row).tobytes() == peer[row][0].tobytes()
    (tmp_path / "test_32x32.mat").write_bytes(b"no matrix")
    with pytest.raises(DataError, match="not a readable file of SVHN"):
        open_data("svhn", data_root=tmp_path)


def test_caltech_has_its_classes_and_not_the_background(tmp_path: Path) -> None:
    base = tmp_path / "caltech101" / "101_ObjectCategories"
    for name in ("BACKGROUND_Google", "ant", "emu"):
        (base / name).mkdir(parents=True)
        for number in (1, 2):
            (base / name / f"image_{number:04d}.jpg").write_bytes(encoded(picture(number), "JPEG"))
    import torchvision.datasets

    data = open_data("caltech101", data_root=tmp_path, carve=False)
    peer = torchvision.datasets.Caltech101(str(tmp_path))
    assert data.labels == peer.categories == ["ant", "emu"]
    assert data.splits["train"].targets.tolist() == peer.y
    assert data.splits["train"].read(3).tobytes() == peer[3][0].tobytes()


def test_sun_and_clevr_come_through_torchvision(tmp_path: Path) -> None:
    for name, number in (("a/abbey", 1), ("a/abbey", 2), ("z/zoo", 3)):
        path = tmp_path / "SUN397" / name / f"sun_{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(number), "JPEG"))
    (tmp_path / "SUN397" / "ClassName.txt").write_text("/a/abbey\n/z/zoo\n")
    data = open_data("sun397", data_root=tmp_path, carve=False)
    assert data.labels == ["abbey", "zoo"] and sorted(data.splits["train"].targets.tolist()) == [0, 0, 1]
    base = tmp_path / "clevr" / "CLEVR_v1.0"
    (base / "scenes").mkdir(parents=True)
    for split, counts in (("train", [3, 5]), ("val", [4])):
        (base / "images" / split).mkdir(parents=True)
        scenes = []
        for number, count in enumerate(counts):
            name = f"CLEVR_{split}_{number:06d}.png"
            (base / "images" / split / name).write_bytes(encoded(picture(number)))
            scenes.append({"image_filename": name, "objects": [{}] * count})
        (base / "scenes" / f"CLEVR_{split}_scenes.json").write_text(json.dumps({"scenes": scenes}))
    data = open_data("clevr", data_root=tmp_path, carve=False)
    counted = {name: [data.labels[target] for target in split.targets] for name, split in data.splits.items()}
    assert counted == {"train": ["3", "5"], "test": ["4"]}


def test_patch_camelyon_is_read_from_hdf5(tmp_path: Path) -> None:
    import h5py

    (tmp_path / "pcam").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 96, 96, 3), np.uint8)
    for part in ("train", "valid", "test"):
        for letter, key, values in (
            ("x", "x", pixels),
            ("y", "y", np.array([0, 1, 1, 0]).reshape(4, 1, 1, 1)),
        ):
            name = f"camelyonpatch_level_2_split_{part}_{letter}.h5"
            with h5py.File(tmp_path / "pcam" / name, "w") as file:
                file[key] = values
    data = open_data("pcam", data_root=tmp_path)
    assert list(data.splits) == ["train", "val", "test"] and data.labels == ["normal", "tumor"]
    assert data.splits["val"].targets.tolist() == [0, 1, 1, 0]
    assert np.array_equal(np.asarray(data.splits["test"].read(2)), pixels[2])


def test_all_splits_can_be_measured_as_one(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", CLASSES)
    make_folder(tmp_path / "test", CLASSES, first=100)
    data = open_data(tmp_path, carve=False)
    name, whole = data.part("all")
    assert name == "all" and len(whole) == 18
    rows = [(whole.read(i).tobytes(), data.labels[whole.targets[i]]) for i in range(18)]
    assert sorted(rows) == sorted([*expected(CLASSES), *expected(CLASSES, 100)])
    assert whole.name(0) == "train/cat/000.png" and whole.name(9) == "test/cat/000.png"
    assert data.part(None)[0] == "test"
    with pytest.raises(DataError, match="no split 'dev': it has train, test"):
        data.part("dev")
    digits = open_data("digits")
    _, whole = digits.part("all")
    parts = [split.name(i) for split in digits.splits.values() for i in range(len(split))]
    assert [whole.name(i) for i in range(len(whole))] == parts and len(set(parts)) == 1797
    assert whole.select(np.array([1700])).name(0) == parts[1700]


def test_unknown_data_is_named_with_a_guess() -> None:
    with pytest.raises(DataError, match=r"no data at 'digit'.*did you mean digits"):
        open_data("digit")


def test_unknown_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"")
    with pytest.raises(DataError, match=r"\.csv, \.tsv, \.parquet, \.tar or \.npz"):
        open_data(tmp_path / "x.zip")


def test_digits_are_real_and_always_split_the_same_way() -> None:
    from sklearn.datasets import load_digits

    data = open_data("digits")
    assert data.fingerprint == "a7614d133eb3b4e931fca1e516b420b0"
    assert {name: len(split) for name, split in data.splits.items()} == {
        "train": 1258,
        "val": 180,
        "test": 359,
    }
    bunch: Any = load_digits()
    totals = sum(np.bincount(split.targets, minlength=10) for split in data.splits.values())
    assert np.array_equal(totals, np.bincount(bunch.target))
    image = np.asarray(data.splits["val"].read(0, channels=1))
    assert image.shape == (8, 8) and image.max() == 255
    assert any(np.array_equal(np.rint(digit * 255 / 16), image) for digit in bunch.images)


def test_an_image_kind_that_a_store_cannot_show() -> None:
    from vitreous.data.images import ArrayImages

    store = ArrayImages(np.zeros((2, 4, 4, 13), np.uint8), "x")
    with pytest.raises(DataError, match="13 channels"):
        store.read(0)
    with pytest.raises(DataError, match="set the model's channels to 13"):
        store.array(3)
    assert store.array(13).shape == (2, 4, 4, 13)
    color = ArrayImages(np.asarray(picture())[None], "x")
    assert np.array_equal(color.array(1)[0, ..., 0], np.asarray(picture().convert("L")))
    assert isinstance(color.read(0), Image.Image)
