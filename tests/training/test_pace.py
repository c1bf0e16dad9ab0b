"""What is timed before a plan is made: in the precision of the run, and reading as well as computing."""

import time
from typing import Any

import pytest
import torch

import vitreous
from tests.training.test_initial import FRUITS
from vitreous.config import Precision, TrainConfig
from vitreous.data import open_data
from vitreous.training import defaults, pace
from vitreous.training.facts import Facts

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_the_rate_is_that_of_the_runs_precision(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vitreous.create_model("vit_tiny_patch16_224", num_classes=3, image_size=32)
    halves: list[bool] = []
    model.register_forward_hook(lambda *_: halves.append(torch.is_autocast_enabled("cpu")))
    monkeypatch.setattr(pace, "SECONDS", 0.0)
    assert pace.forward_rate(model, CPU, precision) > 0
    assert halves and set(halves) == {precision == "bf16"}


def test_reading_is_timed_for_each_image_and_shared_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    split = open_data(FRUITS).splits["train"]
    preprocessing = vitreous.load("tiny").preprocess.preprocessing
    clock = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    make = pace.make_loader

    def slow(*given: Any, **how: Any) -> Any:
        loader = make(*given, **how)
        clock[0] = -2.0 * how["batch_size"]  # reading will have taken two seconds an image
        monkeypatch.setattr(type(loader), "epoch", lambda *_: [clock.__setitem__(0, 0.0)])
        return loader

    monkeypatch.setattr(pace, "make_loader", slow)
    assert pace.reading_seconds(split, preprocessing, CPU) == pytest.approx(2.0)
    monkeypatch.setattr(pace, "reading_workers", lambda *_: 4)
    assert pace.reading_seconds(split, preprocessing, CPU) == pytest.approx(0.5)


def test_it_takes_no_longer_than_it_must() -> None:
    split = open_data(FRUITS).splits["train"]
    started = time.perf_counter()
    each = pace.reading_seconds(split, vitreous.load("tiny").preprocess.preprocessing, CPU)
    assert 0 < each <= (time.perf_counter() - started) / min(pace.READ, len(split))


@pytest.mark.parametrize(
    ("asked", "bf16", "width", "expected"),
    [
        ("auto", True, 64, "bf16"),
        ("auto", True, 16, "float32"),
        ("auto", False, 192, "float32"),
        ("bf16", False, 16, "bf16"),
        ("float32", True, 192, "float32"),
    ],
)
def test_the_precision_is_known_before_the_plan(asked: Any, bf16: bool, width: int, expected: str) -> None:
    facts = Facts(
        images=9, classes=3, multilabel=False, size=(64, 64), channels=3, device="cpu", bf16=bf16, cores=2
    )
    model = vitreous.create_model(
        "vit_tiny_patch16_224", num_classes=3, image_size=128, width=width, heads=1
    ).config
    assert defaults.precision(TrainConfig(precision=asked), facts, model)[0] == expected
