"""DATA by name: the bundled digits, and sets that torchvision knows, held against it."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data_images import encoded, own_cache, picture
from tests.data_sources import make_idx
from vitreous.data import open_data
from vitreous.errors import DataError

__all__ = ["own_cache"]


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
