"""Data that a program has in memory: torch's and Hugging Face's datasets, pairs, and these by split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

import vitreous
from vitreous import parallel
from vitreous.data import InMemory, open_data
from vitreous.data.images import ArrayImages, EncodedImages
from vitreous.data.sources import memory
from vitreous.errors import CallbackError, DataError

RNG = np.random.default_rng(0)
GRAYS = RNG.integers(0, 255, (40, 8, 8), dtype=np.uint8)
LABELS = np.arange(40) % 3


class Pictures(Dataset):
    """As torchvision's: a Pillow image and a number, with names for the numbers."""

    classes = ["rows", "columns", "flat"]

    def __init__(self, count: int = 40, vary: bool = False) -> None:
        self.count, self.vary = count, vary

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Image.Image, int]:
        image = Image.fromarray(GRAYS[number])
        return image.resize((8 + number, 9)) if self.vary else image, int(LABELS[number])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def opened(given: Any, **options: Any) -> Any:
    return open_data(InMemory(given), **options)


def test_pictures_of_one_size_are_arrays_with_labels_and_names() -> None:
    data = opened(Pictures(), carve=False)
    assert data.labels == ["rows", "columns", "flat"] and not data.multilabel
    split = data.splits["train"]
    assert isinstance(split.images, ArrayImages)
    np.testing.assert_array_equal(split.images.pixels[..., 0], GRAYS)
    np.testing.assert_array_equal(split.targets, LABELS)
    assert split.name(7) == "train#7"


def test_pictures_of_many_sizes_are_kept_in_one_file(cache: Path) -> None:
    split = opened(Pictures(vary=True), carve=False).splits["train"]
    assert isinstance(split.images, EncodedImages)
    for number in (0, 5, 39):
        expected = Pictures(vary=True)[number][0]
        np.testing.assert_array_equal(np.asarray(split.read(number, 1)), np.asarray(expected))
    opened(Pictures(vary=True))
    assert [path.suffix for path in (cache / "memory").iterdir()] == [".bytes"]  # the same content once


def test_more_than_memory_should_hold_goes_into_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_ARRAYS", 640)
    split = opened(Pictures(), carve=False).splits["train"]
    assert isinstance(split.images, EncodedImages) and len(split) == 40
    np.testing.assert_array_equal(np.asarray(split.read(39, 1)), GRAYS[39])


@pytest.mark.parametrize(
    "given",
    [
        [(image, int(label)) for image, label in zip(GRAYS, LABELS, strict=True)],
        TensorDataset(torch.from_numpy(GRAYS)[:, None], torch.from_numpy(LABELS)),
        TensorDataset(torch.from_numpy(GRAYS)[:, None] / 255, torch.from_numpy(LABELS)),
        [{"image": image, "label": np.int64(label)} for image, label in zip(GRAYS, LABELS, strict=True)],
        Subset(Pictures(), range(40)),
    ],
    ids=["pairs", "tensors", "floats", "rows", "subset"],
)
def test_the_same_pictures_in_any_form_are_the_same_data(given: Any) -> None:
    data, npz = opened(given), opened(Pictures())
    assert data.splits.keys() == {"train", "val", "test"} == npz.splits.keys()
    for name, split in data.splits.items():
        np.testing.assert_array_equal(split.digests, npz.splits[name].digests)
        np.testing.assert_array_equal(split.targets, npz.splits[name].targets)
    if isinstance(given, Subset):
        assert data.fingerprint == npz.fingerprint


def test_splits_and_several_labels() -> None:
    hot = torch.zeros(40, 3, dtype=torch.int64)
    hot[torch.arange(40), torch.from_numpy(LABELS)] = 1
    hot[::2, 0] = 1
    several = TensorDataset(torch.from_numpy(GRAYS)[:, None], hot)
    data = opened({"training": several, "validation": Subset(several, range(10)), "test": several})
    assert data.multilabel and list(data.splits) == ["train", "val", "test"]
    np.testing.assert_array_equal(data.splits["train"].targets, hot.numpy().astype(bool))
    named = opened([(GRAYS[0], ["a", "b"]), (GRAYS[1], ["b"])], carve=False)
    assert (named.labels, named.multilabel) == (["a", "b"], True)


def test_an_array_of_one_number_is_that_class() -> None:
    """MedMNIST gives `np.array([0])`; for several labels an image may still have a list of one name."""
    for count in (2, 3):
        numbers = np.arange(40) % count
        rows = [(image, np.array([number])) for image, number in zip(GRAYS, numbers, strict=True)]
        data = opened(rows, carve=False)
        assert (data.labels, data.multilabel) == ([str(number) for number in range(count)], False)
        np.testing.assert_array_equal(data.splits["train"].targets, numbers)
    named = opened([(GRAYS[0], np.array(["cat"])), (GRAYS[1], torch.tensor([1]))], carve=False)
    assert (named.labels, named.multilabel) == (["1", "cat"], False)
    several = opened([(GRAYS[0], ["cat"]), (GRAYS[1], ["dog"])], carve=False)
    assert (several.labels, several.multilabel) == (["cat", "dog"], True)


@dataclass
class ClassLabel:
    names: list[str]


class ImageFeature:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


ImageFeature.__name__ = "Image"


class HubDataset:
    """What of Hugging Face's `Dataset` matters here; docs/python.md says which version it was tried with."""

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, Any]) -> None:
        self.rows, self.features = rows, features

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        assert not self.features["img"].decode, "pictures are decoded here, and encoded again"
        return self.rows[number]

    def cast_column(self, name: str, feature: Any) -> "HubDataset":
        return HubDataset(self.rows, {**self.features, name: feature})


def test_a_hub_dataset_gives_its_encoded_bytes_and_class_names(tmp_path: Path) -> None:
    rows = []
    for number in range(6):
        path = tmp_path / f"{number}.png"
        Image.fromarray(GRAYS[number]).save(path)
        picture = (
            {"bytes": path.read_bytes(), "path": None} if number % 2 else {"bytes": None, "path": str(path)}
        )
        rows.append({"img": picture, "label": number % 2})
    features = {"img": ImageFeature(), "label": ClassLabel(["cat", "dog"])}
    data = opened({"train": HubDataset(rows, features)}, carve=False)
    assert data.labels == ["cat", "dog"]
    split = data.splits["train"]
    assert isinstance(split.images, EncodedImages)
    assert split.images.data(3) == (tmp_path / "3.png").read_bytes()
    np.testing.assert_array_equal(np.asarray(split.read(4, 1)), GRAYS[4])


class Restless(Pictures):
    def __getitem__(self, number: int) -> tuple[Any, int]:
        return RNG.integers(0, 255, (8, 8), dtype=np.uint8), 0


class Broken(Pictures):
    def __getitem__(self, number: int) -> tuple[Any, int]:
        if number == 3:
            raise ZeroDivisionError("no such\npicture")
        return super().__getitem__(number)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            Restless(),
            r"memory:restless \(train\): item 0 is another picture each time: leave random transforms",
        ),
        (Broken(), r"item 3 can't be read: ZeroDivisionError: no such$"),
        (
            [(GRAYS[0].astype(np.float32), 0)],
            r"floats from 3 to 247: give pictures before they are normalised",
        ),
        ([(GRAYS[0], 0.5)], r"item 0: its label 0.5 is no class: give a whole number"),
        ([(GRAYS[0], torch.tensor([2, 0]))], r"its label \[2, 0\] is not a 0 or 1"),
        ([GRAYS[0]], "item 0 has no label: give pairs"),
        ([("a.png", 0)], "a str is no picture"),
        ([(7, 0)], "an int is no picture"),
        ([{"sound": 1, "label": 0}], "no picture among sound, label: call it 'image'"),
        ({"odd": Pictures()}, "'odd' is not a split of its own: name datasets train, val and test"),
        ({"val": Pictures(), "valid": Pictures()}, "'valid' is not a split of its own"),
        ({}, "an empty dictionary is no data"),
        (iter([1]), "list_iterator is no data: give a path, a name, or a dataset with a length"),
        (5, "int is no data"),
        ([], "it has no images"),
    ],
)
def test_what_is_no_data_is_named(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        opened(given)


def test_unlabelled_pictures_where_labels_take_no_part() -> None:
    assert opened(list(GRAYS), labelled=False).labels == [""]


SMALL: dict[str, Any] = {"epochs": 2, "patch_size": 4, "batch_size": 8, "device": "cpu"}


def test_the_verbs_take_it_and_a_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], blank_figures: None
) -> None:
    monkeypatch.setattr(parallel, "matrix_rate", lambda *_, **__: 1e12)
    seen: list[dict[str, Any]] = []
    with pytest.raises(
        CallbackError, match=r"the callback on_evaluation raised KeyError at step 3: 'nothing'"
    ):
        vitreous.train(Pictures(), on_step=seen.append, on_evaluation=lambda row: row["nothing"], **SMALL)
    assert [row["step"] for row in seen] == [1, 2, 3]
    judged: list[dict[str, Any]] = []
    run = vitreous.train(Pictures(), on_step=seen.append, on_evaluation=judged.append, **SMALL)
    assert "going on from step 0 of 6" in capsys.readouterr().err
    assert run.folder == Path("runs/pictures") and run.report is not None
    assert [row["step"] for row in seen[3:]] == [1, 2, 3, 4, 5, 6]
    assert seen[:3] == seen[3:6]  # the same steps, the same figures
    assert seen[0].keys() == {"step", "steps", "epoch", "lr", "loss", "accuracy", "gradient_norm"}
    assert [(row["step"], row["split"]) for row in judged] == [(3, "val"), (6, "val"), (6, "test")]
    assert judged[-1]["accuracy"] == run.test.accuracy
    again = vitreous.train({"train": Pictures()}, **SMALL)
    assert again.folder == run.folder and again.to_dict() == run.to_dict()
    found = vitreous.evaluate(run.folder, Pictures(), split="test")
    assert (found.accuracy, found.data) == (run.test.accuracy, "memory:pictures")
    assert vitreous.evaluate(run.folder, {"test": Pictures()}).count == 40
    assert vitreous.probe(run.folder, Pictures(), method="knn").knn.features.train == 30
    tuned = vitreous.finetune(run.folder, Pictures(), epochs=1, tune="head", device="cpu")
    assert tuned.folder == Path("runs/pictures-2")
    assert vitreous.check(Pictures()).images.train == 40
    with pytest.raises(DataError, match="memory:pictures was given to a Python function as an object"):
        vitreous.evaluate(run.folder, "memory:pictures")
