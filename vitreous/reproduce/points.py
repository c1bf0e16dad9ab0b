"""One point of an experiment: an ordinary run through the public training code, and its row."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from vitreous import files, training
from vitreous.config import DistillConfig, FinetuneConfig, PretrainConfig, ReproduceConfig, TrainConfig
from vitreous.data import keep_classes, limit_training, open_data
from vitreous.models import architecture, cost
from vitreous.options import from_keywords
from vitreous.reproduce.experiment import Point, Row

PASSES = 3
"""Cost of a step in forward passes: one forward, and a backward of twice as much."""
MEASURED = "measured.json"
"""The file beside a run's own results with what the experiment measured of its model."""


def folder_of(experiment: Path, name: str, seed: int) -> Path:
    """Return the run folder of a point."""
    return experiment / "points" / f"{name}-seed{seed}"


def is_done(point: Point, run: Path) -> bool:
    """Tell whether a point has all of its figures."""
    return (run / "results.json").exists() and (point.measure is None or (run / MEASURED).exists())


def execute(point: Point, experiment: Path, data: str, seed: int, options: ReproduceConfig) -> None:
    """Start or resume the run of a point, and measure its model."""
    run = folder_of(experiment, point.name, seed)
    if not (run / "results.json").exists():
        with _notes(run.with_name(f"{run.name}.log")):
            _train(point, experiment, run, data, seed, options)
    if point.measure is not None:
        files.write_json(run / MEASURED, point.measure(run))


@contextmanager
def _notes(path: Path) -> Iterator[None]:
    """Send a run's messages to a file: those of ten runs would be too many for the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file, redirect_stderr(file):
        yield


def _train(
    point: Point, experiment: Path, run: Path, data: str, seed: int, options: ReproduceConfig
) -> training.Result:
    common = {"out": str(run), "seed": seed, "data_root": options.data_root, "device": options.device}
    given: dict[str, Any] = {**point.options, **common}
    if point.verb == "pretrain":
        config = from_keywords(PretrainConfig, given, "pretrain")
        return training.pretrain(data, config, shape=point.shape)
    dataset = open_data(data, data_root=options.data_root, seed=seed)
    if point.half is not None:
        count = len(dataset.labels)
        halves = {"first": range(count // 2), "second": range(count // 2, count)}
        dataset = keep_classes(dataset, halves[point.half])
    if point.images is not None:
        dataset = limit_training(dataset, point.images, seed)
    if point.verb == "train":
        config = from_keywords(TrainConfig, given, "train")
        return training.train(data, config, dataset=dataset, shape=point.shape)
    assert point.source is not None
    source = str(folder_of(experiment, point.source, seed) / "best.safetensors")
    if point.verb == "finetune":
        return training.finetune(source, data, from_keywords(FinetuneConfig, given, "finetune"), dataset)
    config = from_keywords(DistillConfig, given, "distill")
    return training.distill(source, data, config, dataset, shape=point.shape)


def row_of(point: Point, experiment: Path, data: str, seed: int) -> Row:
    """Return the row of a finished point, from what its run recorded."""
    run = folder_of(experiment, point.name, seed)
    results, plan = _read(run / "results.json"), _read(run / "config.json")["plan"]
    model = architecture.from_dict(plan["architecture"])
    flops = cost.training_flops(model)
    test = results.get("test") or results["val"]
    row: Row = {
        "point": point.name,
        "seed": seed,
        **point.columns,
        "accuracy": test.get("accuracy"),  # a run without labels has none
        "test_images": int(test["count"]) if "count" in test else None,
        "data": data,
        "parameters": cost.parameters(model),
        "multiply_adds": flops,
        "training_flops": 2 * PASSES * flops * results["steps"] * plan["batch_size"],
        "seconds": results["seconds"],
    }
    return {**row, **_read(run / MEASURED)} if point.measure is not None else row


def source_of(run: Path) -> tuple[str, str | None]:
    """Return the data of a run, and the folder of data sets that are given by name."""
    stored = _read(run / "config.json")
    return stored["data"], stored["data_root"]


def _read(path: Path) -> Any:
    return json.loads(path.read_bytes())
