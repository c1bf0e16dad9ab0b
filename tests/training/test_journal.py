"""The journal: what is written can be read, what came after a checkpoint is forgotten, sinks get it too."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from vitreous.errors import MissingDependencyError
from vitreous.training.journal import Journal, read


def fill(folder: Path, steps: range, **options: Any) -> None:
    book = Journal(folder, **options)
    for step in steps:
        book.write({"step": step, "split": "train", "loss": 1.0 / step, "note": "x"})
    book.close()


def test_records_come_back(tmp_path: Path) -> None:
    fill(tmp_path, range(1, 4))
    assert read(tmp_path / "metrics.jsonl") == [
        {"step": step, "split": "train", "loss": 1.0 / step, "note": "x"} for step in (1, 2, 3)
    ]
    assert read(tmp_path / "nothing.jsonl") == []


def test_going_on_forgets_what_came_after(tmp_path: Path) -> None:
    fill(tmp_path, range(1, 9))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "spl')  # cut by a kill
    assert len(read(tmp_path / "metrics.jsonl")) == 8
    fill(tmp_path, range(6, 8), step=5)
    assert [record["step"] for record in read(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6, 7]
    fill(tmp_path, range(2, 4))  # from the start
    assert [record["step"] for record in read(tmp_path / "metrics.jsonl")] == [2, 3]


def test_damaged_lines_stop_nothing_and_are_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped bit, or a file that is not ours."""
    path = tmp_path / "metrics.jsonl"
    written = b'{"step": 1}\nsomething else\n[2]\n{"step": 2, "loss\xff": 1}\n{"step": "3"}\n{"step": 4}\n'
    path.write_bytes(written)
    assert [record["step"] for record in read(path)] == [1, 2, 4]
    Journal(tmp_path, step=4).close()
    assert "3 damaged lines are left out; the file is kept as metrics.damaged" in capsys.readouterr().err
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 4]
    assert (tmp_path / "metrics.damaged").read_bytes() == written


def test_no_number_that_json_lacks_is_written(tmp_path: Path) -> None:
    book = Journal(tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        book.write({"step": 1, "loss": float("nan")})
    book.close()


@pytest.mark.parametrize("sink", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str) -> None:
    monkeypatch.setitem(sys.modules, sink, None)
    with pytest.raises(
        MissingDependencyError, match=rf"--{sink} needs the package {sink}: pip install 'vitreous"
    ):
        Journal(tmp_path, **{sink: True})


def test_other_sinks_get_numbers_by_split_and_name(tmp_path: Path) -> None:
    class Sink:
        def __init__(self) -> None:
            self.written: list[tuple[dict[str, float], int]] = []
            self.closed = False

        def write(self, figures: dict[str, float], step: int) -> None:
            self.written.append((figures, step))

        def close(self) -> None:
            self.closed = True

    book, sink = Journal(tmp_path), Sink()
    book._sinks.append(sink)
    book.write({"step": 3, "split": "val", "loss": 0.5, "count": 2, "note": "x", "flag": True})
    book.write({"step": 4, "loss": 0.25, "lr": None})
    book.close()
    assert sink.written == [({"val/loss": 0.5, "val/count": 2.0}, 3), ({"loss": 0.25}, 4)]
    assert sink.closed


def _need(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed (an extra)")


@pytest.mark.filterwarnings("ignore")  # the packages' own
def test_tensorboard_gets_the_figures(tmp_path: Path) -> None:
    _need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )

    fill(tmp_path, range(1, 9), tensorboard=True)
    fill(tmp_path, range(6, 8), step=5, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["train/loss"]
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert found == [(step, pytest.approx(1.0 / step)) for step in range(1, 8)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _need("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    fill(tmp_path, range(1, 5), mlflow=True, about={"lr": 0.1})
    fill(tmp_path, range(5, 7), step=4, mlflow=True)
    import mlflow  # pyright: ignore[reportMissingImports]

    client = mlflow.MlflowClient(f"file:{tmp_path / 'store'}")
    identity = (tmp_path / "mlflow-run").read_text().strip()
    history = client.get_metric_history(identity, "train/loss")
    assert [entry.step for entry in history] == [1, 2, 3, 4, 5, 6]  # one run, gone on with


@pytest.mark.filterwarnings("ignore")
def test_wandb_gets_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _need("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    fill(tmp_path, range(1, 5), wandb=True, about={"lr": 0.1})
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_an_evaluation_that_will_be_made_again_is_dropped(tmp_path: Path) -> None:
    """A run that was killed after an evaluation, before a checkpoint knew of it, makes it again."""
    book = Journal(tmp_path)
    for step, split in ((2, "val"), (3, "train"), (4, "train"), (4, "val"), (4, "test"), (5, "train")):
        book.write({"step": step, "split": split, "loss": 0.0})
    book.close()
    Journal(tmp_path, step=4, evaluated=2).close()
    kept = [(row["step"], row["split"]) for row in read(tmp_path / "metrics.jsonl")]
    assert kept == [(2, "val"), (3, "train"), (4, "train")]
