"""`vitreous probe`: how good frozen features are, on one data set or on a suite of them."""

import time
from dataclasses import replace
from typing import Any

import numpy as np

from vitreous import console, parallel
from vitreous.config import ProbeConfig
from vitreous.data import Dataset, InMemory, Split, limit_training, open_data
from vitreous.errors import DataError, OptionError
from vitreous.evals import features, fewshot, knn, linear, metrics
from vitreous.evals import suite as suites
from vitreous.evals.features import Part
from vitreous.models.architecture import pair
from vitreous.predict import Classifier, load

OF_FEW_SHOTS = {"--shots": "shots", "--seeds": "seeds"}


def probe(source: str, data: str | InMemory, options: ProbeConfig) -> dict[str, Any]:
    """Return the JSON document of `vitreous probe`: an object by method."""
    _check(options)
    classifier = _load(source, options)
    seed = classifier.seed if options.seed is None else options.seed
    options = replace(options, seed=seed)
    dataset = open_data(data, data_root=options.data_root, seed=seed)
    if options.train_limit is not None:
        dataset = limit_training(dataset, options.train_limit, seed)
    return probe_data(classifier, dataset, options)


def suite(source: str, data: str, options: ProbeConfig) -> dict[str, Any]:
    """Probe every data set of a suite: a row each, and the mean by group."""
    _check(options)
    tasks = suites.read(data)
    classifier = _load(source, options)
    limit, seed = options.train_limit or suites.IMAGES, options.seed or 0

    def measure(task: suites.Task) -> dict[str, float]:
        dataset = suites.open_task(task, limit, options.data_root, seed)
        return _headline(probe_data(classifier, dataset, options, task.metric))

    return {**suites.run(tasks, measure), "train_images": limit}


def probe_data(
    classifier: Classifier, dataset: Dataset, options: ProbeConfig, metric: metrics.Name | None = None
) -> dict[str, Any]:
    """Judge a classifier's features on a data set: learn on train, choose on val, measure on test."""
    metric, seed = _metric(dataset, metric or options.metric), options.seed or 0
    if dataset.multilabel and options.method == "fewshot":
        raise DataError(
            "few shots per class need one label per image, this data has several: use knn or linear"
        )
    started = time.perf_counter()
    train, val, test = (_part(classifier, split, options) for split in _splits(dataset, options))
    images = {"train": len(train[0]), "val": len(val[0]), "test": len(test[0])}
    taken = {"width": train[0].shape[1], **images, "seconds": time.perf_counter() - started}
    if options.precision != "float32":
        taken["arithmetic"] = parallel.precision(options.precision, classifier.device)
    found: dict[str, Any] = {}
    classes = len(dataset.labels)
    for name, method in {"knn": knn.evaluate, "linear": linear.evaluate}.items():
        if options.method in (name, "all"):
            started = time.perf_counter()
            figures, scores = method(train, val, test, classes, metric)
            figures[metric] = metrics.METRICS[metric](scores, test[1])
            figures["interval"] = metrics.interval(metric, scores, test[1], seed)
            found[name] = {**figures, "seconds": time.perf_counter() - started}
    if options.method in ("fewshot", "all"):
        if dataset.multilabel:
            console.note("fewshot: left out, it needs one label per image")
        else:
            started = time.perf_counter()
            draws = {"shots": options.shots, "seeds": options.seeds, "seed": seed}
            figures = fewshot.evaluate(train, val, test, classes, metric, **draws)
            found["fewshot"] = {**figures, "seconds": time.perf_counter() - started}
    return {name: {**figures, "metric": metric, "features": taken} for name, figures in found.items()}


def _check(options: ProbeConfig) -> None:
    """Refuse numbers that can't be drawn, and those of a method that is not asked for."""
    if not options.shots or min(options.shots) < 1:
        given = " ".join(map(str, options.shots)) or "of none"
        raise OptionError(f"--shots {given} is out of range: use 1 or more")
    if options.seeds < 1:
        raise OptionError(f"--seeds {options.seeds} is out of range: use 1 or more")
    if options.method in ("fewshot", "all"):
        return
    for flag, name in OF_FEW_SHOTS.items():
        if getattr(options, name) != getattr(ProbeConfig(), name):
            raise OptionError(f"{flag} is for --method fewshot or all, not {options.method}: leave it out")


def _load(source: str, options: ProbeConfig) -> Classifier:
    size = pair(options.image_size, "--image-size") if options.image_size else None
    return load(source, image_size=size, device=options.device)


def _metric(dataset: Dataset, wanted: metrics.Name | None) -> metrics.Name:
    several = dataset.multilabel
    if wanted is not None and several != (wanted == "mean_average_precision"):
        what = "several labels per image" if several else "one label per image"
        raise DataError(f"{wanted} can't be measured with {what}")
    return wanted or ("mean_average_precision" if several else "accuracy")


def summary(document: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows of the table that people see."""
    metric, taken = (next(iter(document.values()))[name] for name in ("metric", "features"))
    rows: list[list[Any]] = []
    for name in ("knn", "linear"):
        if name in document:
            found = document[name]
            chosen = f"k = {found['k']}" if name == "knn" else f"strength = {found['strength']:.3g}"
            rows.append([name, chosen, *_shares(found, metric), console.duration(found["seconds"])])
    if "fewshot" in document:
        for shots, found in document["fewshot"]["shots"].items():
            seconds = console.duration(document["fewshot"]["seconds"]) + " in all"
            rows.append(
                [f"{shots}-shot", f"strength = {found['strength']:.3g}", *_shares(found, metric), seconds]
            )
    about = f"width {taken['width']}" + (f", in {taken['arithmetic']}" if "arithmetic" in taken else "")
    rows.append(["features", about, "", "", console.duration(taken["seconds"])])
    return ["method", "chosen on val", metric.replace("_", " "), "95 % interval", "time"], rows


def _shares(found: dict[str, Any], metric: str) -> list[str]:
    low, high = found["interval"]
    return [f"{found[metric]:.2%}", f"{low:.2%} to {high:.2%}"]


def _splits(dataset: Dataset, options: ProbeConfig) -> tuple[Split, Split, Split]:
    missing = [name for name in ("train", "test") if not len(dataset.splits.get(name, ()))]
    if missing:
        raise DataError(f"the data has no images to {'learn from' if missing == ['train'] else 'test on'}")
    train, test = dataset.splits["train"], dataset.splits["test"]
    val = dataset.splits.get("val")
    if val is None or not len(val):
        order = np.random.default_rng(options.seed or 0).permutation(len(train))
        cut = max(1, len(order) * 9 // 10)
        return train.select(np.sort(order[:cut])), train.select(np.sort(order[cut:])), test
    return train, val, test


def _part(classifier: Classifier, split: Split, options: ProbeConfig) -> Part:
    found = features.take(classifier.model, split, classifier.preprocess.preprocessing, options)
    return found.values, found.targets


def _headline(document: dict[str, Any]) -> dict[str, float]:
    return {name: found[found["metric"]] for name, found in document.items() if found["metric"] in found}
