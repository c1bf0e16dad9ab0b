"""What a run leaves behind says one thing: results, sealed files, card, `evaluate` and the report agree."""

import html
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tests.training.conftest import stripes
from tests.training.runs import OPTIONS, assert_same_weights, plan_of, records, run, weights
from vitreous import checkpoint, cli, parallel
from vitreous.config import EvaluateConfig
from vitreous.data import Batch, Dataset, Loader, open_data
from vitreous.data.host import HostLoader
from vitreous.errors import TrainingError
from vitreous.evals.outputs import Inference
from vitreous.evaluate import evaluate
from vitreous.models import cost
from vitreous.models.weights import Model
from vitreous.objectives import Objective, supervised
from vitreous.training import Result, results, train
from vitreous.training.plan import Plan


@pytest.mark.parametrize(
    "changes",
    [{"label_smoothing": 0.3}, {"balance": "loss"}, {"loss": "sigmoid"}, {"several": True}],
    ids=str,
)
def test_one_loss_everywhere(data: str, pairs: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Smoothing, class weights and the sum over labels belong to the training loss, not to the figures."""
    several = changes.pop("several", False)
    source = str(pairs) if several else data
    result = run(source, tmp_path, epochs=1, batch_size=64, **changes)
    sealed = checkpoint.read(tmp_path / "best.safetensors").about["results"]
    card = (tmp_path / "model_card.md").read_text()
    for split in [name for name in ("val", "test") if name in result.figures]:
        options = EvaluateConfig(split=split, device="cpu")
        measured = evaluate(str(tmp_path / "best.safetensors"), source, options)
        (row,) = re.findall(rf"^\| {split} \| (.*) \|$", card, re.MULTILINE)
        accuracy, loss, images = (float(re.sub("[%,]", "", cell)) for cell in row.split(" | "))
        headline = "mean_average_precision" if several else "accuracy"
        assert images == measured["count"]
        assert accuracy == pytest.approx(100 * measured[headline], abs=0.006)
        assert loss == pytest.approx(measured["loss"], abs=6e-5)
        for figures in (result.figures[split], sealed[split]):
            assert figures["loss"] == pytest.approx(measured["loss"], abs=1e-5)
            assert figures[headline] == pytest.approx(measured[headline], abs=1e-6)
        assert records(tmp_path, split)[-1]["loss"] == pytest.approx(measured["loss"], abs=1e-5)


def test_the_evaluation_of_a_run_is_the_document_of_evaluate(data: str, undisturbed: Result) -> None:
    """The same figures, with names of labels and files, wherever they are read."""
    ours = json.loads((undisturbed.folder / "evaluation.json").read_text())
    theirs = evaluate(str(undisturbed.folder / "best.safetensors"), data, EvaluateConfig(device="cpu"))
    assert ours["labels"] == ["rows", "columns", "flat"] and ours["split"] == theirs["split"] == "test"
    shared = theirs.keys() - {"checkpoint", "data", "bad_files"}
    assert shared <= ours.keys()
    for name in ("confusion", "per_class", "accuracy", "count", "accuracy_interval", "confused"):
        assert ours[name] == theirs[name], name
    assert [row["count"] for row in ours["reliability"]] == [row["count"] for row in theirs["reliability"]]
    assert [(row["file"], row["truth"], row["guess"]) for row in ours["worst"]] == [
        (row["file"], row["truth"], row["guess"]) for row in theirs["worst"]
    ]


class Brightness(Objective):
    """A task without classes: the first output is the image's mean brightness."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        error = self.model(batch.images)[:, 0] - batch.images.mean((1, 2, 3))
        return error.square().mean(), {"distance": error.detach().abs().mean()}


def brightness(model: Model, plan: Plan, dataset: Dataset) -> Objective:
    return Brightness(model)


def test_a_task_without_accuracy_trains_to_its_end(data: str, tmp_path: Path) -> None:
    options = replace(OPTIONS, out=str(tmp_path), epochs=4, augment="none")
    result = train(data, options, make_objective=brightness)
    losses = [record["loss"] for record in records(tmp_path, "val")]
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert result.figures["val"]["loss"] == pytest.approx(min(losses), abs=1e-6)  # the best was kept
    assert result.figures["test"].keys() == {"loss", "distance", "count"}
    assert result.figures["test"]["count"] == 31
    assert all("distance" in record for record in records(tmp_path))
    card = (tmp_path / "model_card.md").read_text()
    assert "| split | loss | images |" in card and f"{result.figures['test']['loss']:.4f} | 31 |" in card
    assert "It has no classes" in card
    document = json.loads((tmp_path / "evaluation.json").read_text())
    assert document["loss"] == result.figures["test"]["loss"]


def test_without_a_test_split_val_is_measured_once(tmp_path: Path) -> None:
    data = stripes(tmp_path / "two.npz", train=48, val=18)
    result = run(data, tmp_path / "run", epochs=2)
    assert "test" not in result.figures
    assert {"loss", "accuracy", "top5", "mean_per_class_accuracy", "count"} == result.figures["val"].keys()
    assert [record["step"] for record in records(tmp_path / "run", "val")] == [3, 6]
    sealed = checkpoint.read(tmp_path / "run" / "best.safetensors").about["results"]
    assert sealed == {"val": result.figures["val"]}
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["split"] == "val"


def test_without_images_to_choose_with_the_last_weights_are_the_best(tmp_path: Path) -> None:
    data = stripes(tmp_path / "one.npz", train=48)
    options = replace(OPTIONS, out=str(tmp_path / "run"), epochs=1)
    result = train(data, options, dataset=open_data(data, carve=False))
    assert not {"val", "test"} & result.figures.keys()
    assert_same_weights(weights(result.folder, "best"), weights(result.folder, "last"))
    assert result.classifier.labels == ["rows", "columns", "flat"]
    assert "Carved" not in (result.folder / "model_card.md").read_text()


def test_the_card_says_what_was_carved_and_is_a_table(tmp_path: Path) -> None:
    data = stripes(tmp_path / "one.npz", train=96)
    result = run(data, tmp_path / "run", epochs=1)
    card = (tmp_path / "run" / "model_card.md").read_text()
    carved = [name for name in ("val", "test") if name in result.figures]
    assert f"Carved from the training images: {', '.join(carved)}." in card and carved
    assert "| split | accuracy | loss | images |\n|---|---|---|---|\n| val | " in card


def test_speed_is_measured_against_all_ranks(undisturbed: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiply-add is two operations, backward twice forward; each rank brings a matrix unit."""
    monkeypatch.setattr(parallel, "matrix_rate", lambda *_: 1e9)
    monkeypatch.setattr(parallel, "gather", lambda value, world: [10, 30][: world.size])
    plan = plan_of(undisturbed.folder)

    def speed(
        ranks: int, pace: float | None, waited: float = 2.0, steps: float = 8.0, whole: bool = True
    ) -> dict[str, Any]:
        world = parallel.World(device=torch.device("cpu"), size=ranks)
        log = SimpleNamespace(images_per_second=pace, seconds=steps)
        clock = SimpleNamespace(start=None if pace is None else 1.264, waited=waited)
        objective = SimpleNamespace(whole_passes=whole)
        about = {"world": world, "plan": plan, "log": log, "clock": clock, "objective": objective}
        training = SimpleNamespace(**about, seconds=12.34)
        return results._speed(training)  # type: ignore[arg-type]

    used = 3 * 2 * cost.flops(plan.architecture) * 100.04 / 1e9
    alone, both = speed(1, 100.04), speed(2, 100.04)
    assert alone["mfu"] == pytest.approx(used, abs=1e-4) and both["mfu"] == pytest.approx(used / 2, abs=1e-4)
    assert (alone["peak_memory_bytes"], both["peak_memory_bytes"], both["ranks"]) == (10, 30, 2)
    assert (both["images_per_second"], both["seconds"], both["start_seconds"]) == (100.0, 12.3, 1.26)
    assert (alone["waited_for_data"], alone["bottleneck"]) == (0.25, "model")
    starved = speed(1, 100.04, waited=9.0)
    assert (starved["waited_for_data"], starved["bottleneck"]) == (1.0, "loader")
    assert speed(1, 100.04, whole=False)["mfu"] is None  # of a task that does not see whole images
    short = speed(1, None, steps=0.0)  # too short to tell
    unknown = ("images_per_second", "mfu", "start_seconds", "waited_for_data", "bottleneck")
    assert all(short[name] is None for name in unknown)


def test_what_sets_the_pace_is_named(
    data: str, tmp_path: Path, undisturbed: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model, unless most of the time is spent waiting for batches; the start counts for neither."""
    assert undisturbed.figures["bottleneck"] == "model" and undisturbed.figures["waited_for_data"] < 0.5
    assert 0 < undisturbed.figures["start_seconds"] < undisturbed.figures["seconds"]
    epoch = HostLoader.epoch

    def slow(self: HostLoader, *arguments: Any, **options: Any) -> Iterator[Batch]:
        for batch in epoch(self, *arguments, **options):
            time.sleep(0.6 if self.augment else 0.0)
            yield batch

    monkeypatch.setattr(HostLoader, "epoch", slow)
    figures = run(data, tmp_path / "slow", epochs=1).figures
    assert figures["bottleneck"] == "loader" and 0.5 < figures["waited_for_data"] <= 1.0


def test_every_evaluation_uses_the_workers_of_the_run(
    pictures: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[int] = []
    create = DataLoader.__init__

    def watched(self: Any, *arguments: Any, num_workers: int = 0, **options: Any) -> None:
        workers.append(num_workers)
        create(self, *arguments, num_workers=num_workers, **options)

    monkeypatch.setattr(DataLoader, "__init__", watched)
    run(pictures, tmp_path, epochs=1, workers=1)
    assert workers == [1, 1, 1, 1]  # train, val, test, a sample of train


def test_a_run_is_told_what_is_wrong_with_it(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a step that moves anything, no image is recognised but those of one class."""
    flags = ["--epochs", "1", "--batch-size", "16", "--patch-size", "4", "--lr", "1e-12", "--device", "cpu"]
    flags += [
        "--initialization",
        "mimetic",
    ]  # of the paper's start, a head next to zero tells these images apart
    assert cli.main(["train", data, *flags, "--out", str(tmp_path / "run")]) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["train"]["count"] == 96 and results["train"]["accuracy"] < 0.8
    assert any(line.startswith("underfitting (") for line in results["advice"])
    assert any(line.endswith(", after one epoch): try --epochs 3") for line in results["advice"])
    assert all(line in capsys.readouterr().err.replace("\n", " ") for line in results["advice"][:1])
    page = html.unescape((tmp_path / "run" / "report.html").read_text())
    assert all(f"<li>{line[0].upper()}{line[1:]}.</li>" in page for line in results["advice"])


def test_the_report_does_not_evaluate_again(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass over val, test and the training images, in a run of one epoch and its report."""
    counts: list[int] = []
    batches = Inference.batches

    def counted(self: Inference, loader: Loader, compute: Any) -> Any:
        counts.append(len(loader.split))
        return batches(self, loader, compute)

    monkeypatch.setattr(Inference, "batches", counted)
    flags = ["--epochs", "1", "--batch-size", "16", "--patch-size", "4", "--device", "cpu"]
    assert cli.main(["train", data, *flags, "--out", str(tmp_path / "run")]) == 0
    assert counts == [30, 31, 96]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Confusion, on " in page and "Reliability, on " in page


def test_a_last_evaluation_that_is_not_a_number_ends_the_run(data: str, tmp_path: Path) -> None:
    """In one line; `results.json` is not written, and what is sealed stays."""

    def overflowing(model: Model, plan: Plan, dataset: Dataset) -> Objective:
        objective = supervised.build(model, plan, dataset)
        evaluate = objective.evaluate

        def evaluated(loader: Loader, inference: Inference) -> Any:
            found: Any = evaluate(loader, inference)
            if loader.split is dataset.splits["test"]:
                found.answers.losses[0] = float("inf")
            return found

        objective.evaluate = evaluated  # type: ignore[method-assign]
        return objective

    given = replace(OPTIONS, epochs=1, out=str(tmp_path / "run"))
    with pytest.raises(TrainingError, match=r"on the test images is not finite \(loss\): lower --lr in anot"):
        train(data, given, make_objective=overflowing)
    assert (tmp_path / "run" / "best.safetensors").exists()
    assert not (tmp_path / "run" / "results.json").exists()
