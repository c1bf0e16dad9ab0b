"""Before the loop: what is measured of the data, what is chosen from the machine, and how it is said."""

import json
import os
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.runs import OPTIONS, plan_of, run
from vitreous import parallel
from vitreous.config import TrainConfig
from vitreous.data import open_data
from vitreous.errors import DataError, OptionError
from vitreous.report.run import from_run
from vitreous.training import setup, train

CPU = parallel.World(device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("epochs", (0, -1), 1),
        ("batch_size", (0, -8), 1),
        ("micro_batch", (0, -3), 1),
        ("save_every", (0, -5), 1),
        ("keep", (0, -1), 1),
        ("repeats", (0, -1), 1),
        ("seed", (-1,), 0),
        ("lr", (0.0, -1.0, float("nan"), float("inf")), 1e-9),
        ("warmup", (-0.1, 1.1, float("nan")), 1.0),
        ("weight_decay", (-0.1, float("nan")), 0.0),
        ("clip", (-1.0, float("inf")), 0.0),
        ("thumbnails", (-1, 17), 16),
    ],
)
def test_numbers_that_no_training_can_use(
    name: str, wrong: tuple[float, ...], right: float, data: str, tmp_path: Path
) -> None:
    for value in wrong:
        with pytest.raises(OptionError, match=f"--{name.replace('_', '-')} {value} is out of range: "):
            train(data, replace(OPTIONS, out=str(tmp_path / "run"), **{name: value}))
    assert not (tmp_path / "run").exists()
    setup.check_options(TrainConfig(**{name: right}))


def test_facts_of_pictures_are_their_medians(tmp_path: Path) -> None:
    sizes = [(40, 30), (60, 50), (80, 20)]
    for number, (width, height) in enumerate(sizes):
        for split in ("train", "val"):
            path = tmp_path / split / f"class{number}" / "a.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (width, height), (number, 0, 0)).save(path)
    facts = setup.measure_facts(open_data(tmp_path), CPU)
    assert facts.size == (30, 60)  # height and width, each its own median
    assert (facts.images, facts.classes, facts.channels, facts.multilabel) == (3, 3, 3, False)
    assert facts.device == "cpu" and facts.cores == setup.cores() and facts.mirror


def test_facts_of_arrays(data: str, pairs: Path) -> None:
    facts = setup.measure_facts(open_data(data), CPU)
    assert (facts.size, facts.channels, facts.images, facts.classes) == ((8, 8), 1, 96, 3)
    assert setup.measure_facts(open_data(pairs), CPU).multilabel


def test_processors_are_shared_among_local_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {0: set(range(12))}  # 0: this process
    monkeypatch.setattr(os, "sched_getaffinity", own.__getitem__, raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert setup.cores() == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert setup.cores() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "50")
    assert setup.cores() == 1
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.delattr(os, "sched_getaffinity")
    for found, expected in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda found=found: found)
        assert setup.cores() == expected


@pytest.mark.parametrize(
    ("asked", "device", "expected"),
    [
        ("auto", "cpu", "none"),
        ("auto", "cuda", "blocks"),
        ("whole", "cpu", "whole"),
        ("none", "cuda", "none"),
    ],
)
def test_gpus_are_compiled_for(asked: Any, device: str, expected: str) -> None:
    world = parallel.World(device=torch.device(device))
    assert setup.compile_mode(TrainConfig(compile=asked), world) == expected


def test_the_seed_that_data_is_split_by(data: str, tmp_path: Path) -> None:
    assert setup.seed(TrainConfig()) == 0 and setup.seed(TrainConfig(seed=4)) == 4
    run(data, tmp_path, epochs=1, seed=7)
    assert setup.seed(TrainConfig(recipe=str(tmp_path))) == 7
    assert setup.seed(TrainConfig(recipe=str(tmp_path), seed=4)) == 4
    assert setup.seed(TrainConfig(recipe="modern")) == 0


def test_choices_are_said_with_their_reasons(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(data, replace(OPTIONS, out=str(tmp_path), epochs=1, augment=None, patch_size=None))
    said = dict(re.findall(r"^(\w+): (.*) \(.*\)$", capsys.readouterr().err, re.MULTILINE))
    plan = plan_of(tmp_path)
    assert said.keys() >= {
        "model",
        "image_size",
        "patch_size",
        "weight_decay",
        "loss",
        "augment",
        "precision",
    }
    assert re.fullmatch(r"ViT of [\d,]+ parameters", said["model"])
    assert said["image_size"] == "8x8" and said["weight_decay"] == "0.05" and said["loss"] == "softmax"
    assert said["augment"] == f"mixup {plan.augment.mixup:g}"
    assert not {"lr", "ema", "batch_size", "epochs"} & said.keys()  # given, not chosen


def test_data_without_training_images_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "only.npz"
    np.savez(path, test_images=np.zeros((4, 8, 8, 1), np.uint8), test_labels=np.array([0, 1, 0, 1]))
    with pytest.raises(DataError, match=r"only\.npz has no training images: a train split is needed"):
        run(str(path), tmp_path / "run")
    empty: Any = SimpleNamespace(splits={"train": ()})
    with pytest.raises(DataError, match="nothing has no training images"):
        setup.agree_on_plan(tmp_path / "run", "nothing", empty, OPTIONS, CPU)


def test_data_that_is_mostly_broken_is_refused_before_a_plan(pictures: str, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(pictures, tmp_path / "broken"))
    for path in list((broken / "train").rglob("*.png"))[:20]:
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="20 of "):
        run(str(broken), tmp_path / "run", workers=0)
    assert not (tmp_path / "run" / "config.json").exists()


def test_what_is_left_out_is_said_and_reported(
    pictures: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(pictures, tmp_path / "littered"))
    (root / "train" / "notes.bak").write_bytes(b"x")
    (root / "train" / "empty").mkdir()
    dataset, said = open_data(root), ""
    for _ in range(2):  # a run that goes on says it again
        setup.agree_on_plan(tmp_path / "run", str(root), dataset, OPTIONS, CPU)
        said = capsys.readouterr().err
        assert "left out: " in said and "files ending in .bak: 1 (train/notes.bak)" in said
    page = from_run(tmp_path / "run", dataset)
    assert page.check["left out"] == next(
        line.removeprefix("left out: ") for line in said.splitlines() if line.startswith("left out: ")
    )
    assert "folders without pictures: 1 (train/empty)" in page.check["left out"]
    assert page.check["images"].startswith(f"{len(dataset.splits['train'])} train, ")


def test_the_command_and_the_data_are_written_down(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is one that does the same, also where Python was the caller."""
    monkeypatch.setattr(sys, "argv", ["a_notebook.py", "--its", "flags"])
    run(data, tmp_path, epochs=1, data_root=str(tmp_path))
    stored = json.loads((tmp_path / "config.json").read_text())
    words = shlex.split(stored["command"])
    assert words[:3] == ["vitreous", "train", data] and words[words.index("--epochs") + 1] == "1"
    assert "--its" not in words
    assert stored["data"] == data and stored["data_root"] == str(tmp_path)
    assert stored["options"]["epochs"] == 1 and "out" not in stored["options"]
    assert stored["options"]["data"] == open_data(data).fingerprint
