"""`vitreous probe`: how good frozen features are, on one data set or on a suite of them."""

import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import console
from vitreous.config import ProbeConfig
from vitreous.data import Dataset, Split, open_data
from vitreous.data.store import cache_root
from vitreous.errors import DataError, VitreousError
from vitreous.evals import features, fewshot, knn, linear
from vitreous.evals.accuracy import bootstrap
from vitreous.predict import Classifier, load

VTAB = Path(__file__).parent / "evals" / "vtab.toml"
VTAB_IMAGES = 1000
Part = tuple[np.ndarray, np.ndarray]


def probe(source: str, data: str, options: ProbeConfig) -> dict[str, Any]:
    """Return the JSON document of `vitreous probe`: an object by method."""
    classifier = load(source, device=options.device)
    return probe_data(classifier, open_data(data, data_root=options.data_root, seed=options.seed), options)


def probe_data(classifier: Classifier, dataset: Dataset, options: ProbeConfig) -> dict[str, Any]:
    """Judge a classifier's features on a data set: learn on train, choose on val, measure on test."""
    if dataset.multilabel:
        raise DataError("probes need one label an image: this data has several")
    started = time.perf_counter()
    train, val, test = (_part(classifier, split, options) for split in _splits(dataset, options))
    found: dict[str, Any] = {
        "features": {
            "width": train[0].shape[1],
            "train": len(train[0]),
            "val": len(val[0]),
            "test": len(test[0]),
            "seconds": time.perf_counter() - started,
        }
    }
    classes = len(dataset.labels)
    methods = {
        "knn": lambda: knn.evaluate(train, val, test, classes),
        "fewshot": lambda: fewshot.evaluate(
            train, val, test, classes, shots=options.shots, seeds=options.seeds, seed=options.seed
        ),
        "linear": lambda: linear.evaluate(train, val, test, classes),
    }
    for name, method in methods.items():
        if options.method in (name, "all"):
            started = time.perf_counter()
            figures = method()
            if "correct" in figures:
                figures["interval"] = list(bootstrap(figures.pop("correct").astype(float), options.seed))
            found[name] = {**figures, "seconds": time.perf_counter() - started}
    return found


def suite(source: str, path: Path, options: ProbeConfig) -> dict[str, Any]:
    """Probe every data set of a suite (a TOML file; VTAB's is bundled), with the mean by group.

    Each task is a table with `data`, and optionally `group` and `unavailable` (why it can't be had).
    """
    tasks = read_suite(path)
    options = replace(options, train_limit=options.train_limit or VTAB_IMAGES)
    classifier = load(source, device=options.device)
    rows: list[dict[str, Any]] = []
    for name, task in tasks.items():
        row: dict[str, Any] = {"task": name, "group": task.get("group", "all")}
        try:
            if "unavailable" in task:
                raise DataError(task["unavailable"])
            place = path.parent / task["data"]
            data = str(place) if place.exists() else task["data"]
            dataset = open_data(data, data_root=options.data_root, seed=options.seed)
            row |= _headline(probe_data(classifier, dataset, options))
        except VitreousError as error:
            row["error"] = str(error)
            console.warn(f"{name}: {error}")
        rows.append(row)
    means: dict[str, dict[str, float]] = {}
    for group in dict.fromkeys(row["group"] for row in rows):
        inside = [row for row in rows if row["group"] == group and "error" not in row]
        names = [
            name for name in ("knn", "fewshot", "linear") if inside and all(name in row for row in inside)
        ]
        means[group] = {name: float(np.mean([row[name] for row in inside])) for name in names}
    return {"tasks": rows, "means": means, "train_images": options.train_limit}


def read_suite(path: Path) -> dict[str, dict[str, Any]]:
    """Read the tasks of a suite."""
    try:
        tasks = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a suite: {error}") from None
    for name, task in tasks.items():
        if not isinstance(task, dict) or not {"data", "unavailable"} & task.keys():
            raise DataError(f"{path}: task {name!r} needs `data = ...` (a DATA, relative to the file)")
    return tasks


def summary(document: dict[str, Any]) -> list[list[Any]]:
    """Return the rows of the table that people see."""
    rows: list[list[Any]] = []
    for name in ("knn", "linear"):
        if name in document:
            found = document[name]
            chosen = f"k = {found['k']}" if name == "knn" else f"strength = {found['strength']:.1e}"
            rows.append([name, chosen, found["accuracy"], *found["interval"], found["seconds"]])
    if "fewshot" in document:
        for shots, found in document["fewshot"]["shots"].items():
            seconds = document["fewshot"]["seconds"]
            rows.append(
                [
                    f"{shots}-shot",
                    f"strength = {found['strength']:g}",
                    found["accuracy"],
                    *found["interval"],
                    seconds,
                ]
            )
    return rows


def suite_table(document: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows of a suite's table, the means by group last."""
    columns = ["task", "group", "knn", "fewshot", "linear", "note"]
    rows = [
        [row.get(name) for name in ("task", "group", "knn", "fewshot", "linear", "error")]
        for row in document["tasks"]
    ]
    for group, means in document["means"].items():
        rows.append(["mean", group, *(means.get(name) for name in ("knn", "fewshot", "linear")), None])
    return columns, rows


def _splits(dataset: Dataset, options: ProbeConfig) -> tuple[Split, Split, Split]:
    missing = [name for name in ("train", "test") if not len(dataset.splits.get(name, ()))]
    if missing:
        raise DataError(f"the data has no images to {'learn from' if missing == ['train'] else 'test on'}")
    train, test = dataset.splits["train"], dataset.splits["test"]
    val = dataset.splits.get("val")
    if options.train_limit is not None:  # VTAB: 800 to learn from, 200 to choose with
        order = np.random.default_rng(options.seed).permutation(len(train))[: options.train_limit]
        cut = max(1, len(order) * 4 // 5)
        return train.select(np.sort(order[:cut])), train.select(np.sort(order[cut:])), test
    if val is None or not len(val):
        order = np.random.default_rng(options.seed).permutation(len(train))
        cut = max(1, len(order) * 9 // 10)
        return train.select(np.sort(order[:cut])), train.select(np.sort(order[cut:])), test
    return train, val, test


def _part(classifier: Classifier, split: Split, options: ProbeConfig) -> Part:
    cache = Path(options.cache) if options.cache else cache_root() / "features"
    found = features.extract(
        classifier.model,
        split,
        classifier.preprocess.preprocessing,
        layer=options.layer,
        pooling=options.pooling,
        cache=cache,
        batch_size=options.batch_size,
        workers=options.workers,
    )
    return found.values, found.targets


def _headline(document: dict[str, Any]) -> dict[str, float]:
    found = {name: document[name]["accuracy"] for name in ("knn", "linear") if name in document}
    shots = document.get("fewshot", {}).get("shots", {})
    return found | ({"fewshot": shots[max(shots, key=int)]["accuracy"]} if shots else {})
