"""What is shown and journalled of the steps: means over steps, when they are due, and how fast it went."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.runs import records
from tests.training.test_budget import Time
from vitreous import parallel
from vitreous.config import TrainConfig
from vitreous.training import journal, log
from vitreous.training.log import Log

ALONE = parallel.World(device=torch.device("cpu"))


def opened(folder: Path, **changes: Any) -> Log:
    settings: dict[str, Any] = {"step": 0, "steps": 250, "images": 20, "per_epoch": 40, "about": {}}
    return Log(folder, TrainConfig(), ALONE, **{**settings, **changes})


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    yield Time(monkeypatch)


def take(book: Log, steps: range, total: int = 250, **figures: float) -> None:
    """Tell the log of steps whose loss is their number."""
    for step in steps:
        found = {"loss": float(step), "gradient_norm": 2.5, "refused": 0.0, **figures}
        book.step(step, found, steps=total, lr=step / 1000)


def test_records_come_with_epochs_and_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as book:
        take(book, range(1, 251), accuracy=0.5)
    rows = records(tmp_path, "train")
    assert [row["step"] for row in rows] == [40, 80, 120, 160, 200, 240, 250]
    assert [row["epoch"] for row in rows] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 6.25]
    assert [row["batches"] for row in rows] == [40] * 6 + [10]
    means = [(low + 1 + high) / 2 for low, high in zip([0, 40, 80], [40, 80, 120], strict=True)]
    assert [row["loss"] for row in rows[:3]] == means  # of the steps since the record before
    assert {row["accuracy"] for row in rows} == {0.5}
    assert rows[0]["lr"] == 0.04 and rows[0]["gradient_norm"] == 2.5
    assert "refused" not in rows[0]


def test_a_long_epoch_is_recorded_by_the_hundred(tmp_path: Path) -> None:
    with opened(tmp_path, per_epoch=140) as book:
        take(book, range(1, 251))
    rows = records(tmp_path, "train")
    assert [(row["step"], row["batches"]) for row in rows] == [(100, 100), (200, 100), (250, 50)]


def test_speed_leaves_out_what_is_no_training(tmp_path: Path, now: Time) -> None:
    with opened(tmp_path) as book:
        assert book.images_per_second is None
        now.now += 10.0
        paused = book.pause()
        now.now += 30.0  # an evaluation
        book.go_on(paused)
        take(book, range(1, 41))
        now.now += 5.0
        take(book, range(41, 81))
        assert book.images_per_second == pytest.approx(80 * 20 / 15.0)
    assert [row["images_per_second"] for row in records(tmp_path, "train")] == [80.0, 160.0]


def test_speed_leaves_out_the_steps_that_compile(tmp_path: Path, now: Time) -> None:
    with opened(tmp_path, warm=3, per_epoch=2) as book:
        now.now += 60.0
        take(book, range(1, 4))  # a record after the second, which tells of the slow start
        now.now += 1.0
        take(book, range(4, 7))
        assert book.images_per_second == pytest.approx(3 * 20 / 1.0)
    rows = records(tmp_path, "train")
    assert rows[0]["images_per_second"] == pytest.approx(40 / 60.0, abs=0.1)
    assert [row["batches"] for row in rows] == [2, 2, 2]  # their losses count as all others


def test_a_run_that_ends_while_it_is_cold_has_a_speed_too(tmp_path: Path, now: Time) -> None:
    with opened(tmp_path, warm=2) as book:
        now.now += 2.0
        take(book, range(1, 3), total=2)
        assert book.images_per_second == pytest.approx(20.0)


def test_nothing_is_shown_before_there_is_something_to_show(
    tmp_path: Path, now: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []
    with opened(tmp_path) as book:
        monkeypatch.setattr(book.bar, "update", lambda done, *_, **__: shown.append(done))
        now.now += 60.0
        book.show(1, 250, 60.0)  # launched, and its outcome not here yet: "4 hours left" would be wrong
        take(book, range(1, 2))
        now.now += 1.0
        book.show(2, 250, 0.5)
    assert shown == [2]


def test_going_back_forgets_records_and_sums(tmp_path: Path) -> None:
    with opened(tmp_path) as book:
        take(book, range(1, 60))
        book.rewind(20)
        assert records(tmp_path) == []
        take(book, range(21, 41))
    (row,) = records(tmp_path, "train")
    assert row["step"] == 40 and row["loss"] == 30.5  # steps 21 to 40


def test_a_step_that_was_left_out_counts_nowhere(tmp_path: Path) -> None:
    with opened(tmp_path, per_epoch=4) as book:
        take(book, range(1, 4))
        book.step(4, {}, steps=250, lr=0.1)  # the record of its epoch is due all the same
        for step in range(5, 9):
            book.step(step, {}, steps=250, lr=0.1)
    (row,) = records(tmp_path, "train")
    assert (row["step"], row["loss"], row["gradient_norm"]) == (4, 2.0, None)


def test_a_norm_that_is_no_number_is_none(tmp_path: Path) -> None:
    with opened(tmp_path, per_epoch=1) as book:
        take(book, range(1, 2), gradient_norm=float("inf"))
        book.evaluation(1, "val", {"loss": 0.12345678, "count": 30.0})
    row, evaluation = journal.read(tmp_path / "metrics.jsonl")
    assert row["gradient_norm"] is None
    assert evaluation == {"step": 1, "split": "val", "loss": 0.123457, "count": 30.0}


def test_the_bar_shows_means_and_speed(tmp_path: Path, now: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[Any, ...]] = []
    with opened(tmp_path) as book:
        monkeypatch.setattr(book.bar, "update", lambda *given, left: shown.append((*given, left)))
        book.show(1, 250, 0.5)  # too early: a few times a second are enough
        assert shown == []
        take(book, range(1, 4), accuracy=0.25)
        now.now += 1.0
        book.show(3, 250, 0.5)
        book.show(250, 250, 0.5)  # the end is always shown
    assert shown[0] == (3, 250, "loss 2.000, accuracy 25.0%, 60 images/s", 247 * 0.5)
    assert shown[1][0] == 250 and len(shown) == 2


def test_three_files_are_named_and_the_rest_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Reader:
        def __init__(self) -> None:
            self.bad = {number: f"{number}.png: broken" for number in range(3)}

    reader = Reader()
    with opened(tmp_path) as book:
        book.unreadable(reader)  # type: ignore[arg-type]
        assert capsys.readouterr().err.count("warning: left out: ") == 3
        book.unreadable(reader)  # type: ignore[arg-type]
        assert capsys.readouterr().err == ""  # said once
        reader.bad |= {number: f"{number}.png: broken" for number in range(3, 8)}
        book.unreadable(reader)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said.count("broken") == 3 and "left out: 2 more files" in said


def test_sinks_are_those_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    class Spy(journal.Journal):
        def __init__(self, folder: Path, **given: Any) -> None:
            asked.append(given)
            super().__init__(folder, step=given["step"])

    monkeypatch.setattr(log, "Journal", Spy)
    for name in ("tensorboard", "wandb", "mlflow"):
        options = TrainConfig(**{name: True})
        settings = {"step": 7, "evaluated": 5, "steps": 9, "images": 1, "per_epoch": 1, "about": {"lr": 1}}
        Log(tmp_path, options, ALONE, **settings).journal.close()
    names = ("tensorboard", "wandb", "mlflow")
    common = {"step": 7, "evaluated": 5, "about": {"lr": 1}}
    assert asked == [{**common, **{n: n == name for n in names}} for name in names]


def test_a_mean_goes_on_after_a_resume_bit_for_bit(tmp_path: Path, now: Time) -> None:
    with opened(tmp_path / "whole") as book:
        take(book, range(1, 41), accuracy=1 / 3)
    with opened(tmp_path / "stopped") as book:
        take(book, range(1, 20), accuracy=1 / 3)
        running = json.loads(json.dumps(book.running()))
        take(book, range(20, 30), accuracy=1 / 3)  # lost
    with opened(tmp_path / "stopped", step=19) as book:
        book.go_on_with(running)
        now.now += 1.0
        take(book, range(20, 41), accuracy=1 / 3)
    (whole,), (stopped,) = (records(tmp_path / name, "train") for name in ("whole", "stopped"))
    assert stopped.pop("images_per_second") == 21 * 20  # of this process's steps alone
    whole.pop("images_per_second")
    assert stopped == whole


def test_other_numbers_of_ranks_go_on_with_the_total(tmp_path: Path) -> None:
    with opened(tmp_path) as book:
        book.go_on_with({"steps": 2, "sums": [{"loss": 1.0}, {"loss": 2.0}]})
        assert book.sums == {"loss": 3.0}
        book.go_on_with({})  # a checkpoint of an earlier version
        assert book.sums == {}
