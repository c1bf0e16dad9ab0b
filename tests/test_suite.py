"""Suites of data sets: what a file may say, VTAB's tasks, which images a task may use."""

from pathlib import Path

import numpy as np
import pytest

from vitreous.data import limit_training, open_data
from vitreous.data.sources import named
from vitreous.errors import DataError
from vitreous.evals import suite


def test_vtabs_nineteen_tasks_are_there_and_can_be_opened_or_say_why_not() -> None:
    tasks = suite.read("vtab")
    groups = [task.group for task in tasks]
    assert [groups.count(name) for name in ("natural", "specialized", "structured")] == [7, 4, 8]
    assert all(task.data in named.NAMES for task in tasks if not task.unavailable)
    with pytest.raises(DataError, match="not in torchvision: download it"):
        suite.open_task(next(task for task in tasks if task.name == "resisc45"), 1000, None, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\ngroup = 'x'\n", "task 'a' needs `data"),
        ("[a]\ndata = 'digits'\nsplits = 'val'\n", "did you mean split"),
        ("[a]\ndata = 'digits'\nmetric = 'f1'\n", "metric 'f1': expected accuracy, mean_per_class"),
        ("[a]\ndata = 7\n", "data = 7"),
        ("[a", "is not a suite"),
    ],
)
def test_a_suite_that_is_none_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(DataError, match=message):
        suite.read(str(tmp_path / "bad.toml"))


def test_a_task_measures_on_the_split_that_it_names() -> None:
    digits = open_data("digits")
    task = suite.Task("a", data="digits", split="val")
    opened = suite.open_task(task, 100, None, 0)
    assert len(opened.splits["train"]) == 80 and len(opened.splits["val"]) == 20
    np.testing.assert_array_equal(opened.splits["test"].digests, digits.splits["val"].digests)
    with pytest.raises(DataError, match="no images in a split 'dev'"):
        suite.open_task(suite.Task("a", data="digits", split="dev"), 100, None, 0)


def test_limited_training_images_follow_from_seed_and_content() -> None:
    digits = open_data("digits")
    once, again, other = (limit_training(digits, 100, seed) for seed in (0, 0, 1))
    assert once.fingerprint == again.fingerprint != other.fingerprint != digits.fingerprint
    ours = {row.tobytes() for name in ("train", "val") for row in once.splits[name].digests}
    assert len(ours) == 100 and ours <= {row.tobytes() for row in digits.splits["train"].digests}
    assert once.splits["test"] is digits.splits["test"]
    with pytest.raises(DataError, match="use 5 or more"):
        limit_training(digits, 4)
