"""A suite: data sets that a model is transferred to, as VTAB's nineteen; a row each, and means by group.

It is a TOML file with a table per task: `data` (a DATA, relative to the file) or `unavailable` (why it can't
be had), and optionally `group`, `split` (to measure on; default: test) and `metric` (default: accuracy).
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from vitreous import console
from vitreous.data import Dataset, limit_training, open_data
from vitreous.errors import DataError, VitreousError, nearest
from vitreous.evals import metrics

VTAB = Path(__file__).parent / "vtab.toml"
IMAGES = 1000
"""Training images of each task, as in the paper: 800 to learn from, 200 to choose with."""


@dataclass(frozen=True)
class Task:
    """One data set of a suite."""

    name: str
    data: str = ""
    group: str = "all"
    split: str = "test"
    metric: metrics.Name | None = None
    """None: accuracy, or mean average precision where images have several labels."""
    unavailable: str = ""


def is_suite(data: str) -> bool:
    """Return whether DATA names a suite."""
    return data == "vtab" or data.endswith(".toml")


def read(data: str) -> list[Task]:
    """Read the tasks of a suite: a file, or `vtab`, which is bundled."""
    path = VTAB if data == "vtab" else Path(data)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a suite: {error}") from None
    known = [each.name for each in fields(Task) if each.name != "name"]
    tasks = []
    for name, table in tables.items():
        if not isinstance(table, dict) or not {"data", "unavailable"} & table.keys():
            raise DataError(f"{path}: task {name!r} needs `data = ...` (a DATA, relative to the file)")
        for key, value in table.items():
            if key not in known or not isinstance(value, str):
                raise DataError(f"{path}: task {name!r} has {key} = {value!r}{nearest(key, known)}")
        if table.get("metric") not in (None, *get_args(metrics.Name)):
            expected = ", ".join(get_args(metrics.Name))
            raise DataError(f"{path}: task {name!r} has metric {table['metric']!r}: expected {expected}")
        place = path.parent / table.get("data", "")
        found: dict[str, Any] = {"data": str(place)} if "data" in table and place.exists() else {}
        tasks.append(Task(name, **{**table, **found}))
    return tasks


def open_task(task: Task, limit: int, data_root: str | None, seed: int) -> Dataset:
    """Open a task's data with the training images that it may use, and what is measured as `test`."""
    if task.unavailable:
        raise DataError(task.unavailable)
    dataset = open_data(task.data, data_root=data_root, seed=seed)
    if not len(dataset.splits.get(task.split, ())):
        raise DataError(f"{task.data} has no images in a split {task.split!r} to measure on")
    measured = dataset.splits[task.split]
    dataset = limit_training(dataset, limit, seed)
    return replace(dataset, splits={**dataset.splits, "test": measured})


def run(tasks: list[Task], measure: Callable[[Task], dict[str, float]]) -> dict[str, Any]:
    """Measure every task; a failed one records why, the others continue. Return rows and means by group."""
    rows: list[dict[str, Any]] = []
    for task in tasks:
        row: dict[str, Any] = {"task": task.name, "group": task.group}
        try:
            row |= measure(task)
        except VitreousError as error:
            row["error"] = str(error)
            console.warn(f"{task.name}: {error}")
        rows.append(row)
    means: dict[str, dict[str, float]] = {}
    for group in dict.fromkeys(row["group"] for row in rows):
        inside = [row for row in rows if row["group"] == group and "error" not in row]
        shared = [name for name in _methods(inside) if all(name in row for row in inside)]
        means[group] = {name: float(np.mean([row[name] for row in inside])) for name in shared}
    return {"tasks": rows, "means": means}


def table(document: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows that people see, the means by group last."""
    methods = _methods(document["tasks"])
    rows = [
        [row["task"], row["group"], *(_percent(row.get(name)) for name in methods), row.get("error")]
        for row in document["tasks"]
    ]
    rows += [
        ["mean", group, *(_percent(means.get(name)) for name in methods), None]
        for group, means in document["means"].items()
    ]
    return ["task", "group", *methods, "note"], rows


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.2%}"


def _methods(rows: list[dict[str, Any]]) -> list[str]:
    names = (name for row in rows for name, value in row.items() if isinstance(value, float))
    return list(dict.fromkeys(names))
