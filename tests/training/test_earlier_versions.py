"""Files of earlier versions: a run that one of them started goes on, to the weights that it would reach."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.conftest import FIXTURES
from tests.training.runs import assert_same_weights, records, run, weights
from vitreous import checkpoint
from vitreous.data import open_data
from vitreous.training import defaults, setup


def test_a_run_of_the_first_version_goes_on(tmp_path: Path) -> None:
    """It was killed at step 5 of 12; what it must end with was computed by the version that started it."""
    shutil.copytree(FIXTURES / "run_v1", tmp_path / "v1")
    folder = tmp_path / "v1" / "run"
    result = run(str(tmp_path / "v1" / "stripes.npz"), folder, epochs=4, save_every=5, keep=1)
    assert result.figures["steps"] == 12
    expected = load_file(FIXTURES / "run_v1" / "expected_last.safetensors")
    assert_same_weights(weights(folder), expected, 1e-4)  # it was an AVX2 processor: others sum otherwise
    assert [record["step"] for record in records(folder, "train")] == [3, 6, 9, 12]
    recipe = checkpoint.read(folder / "best.safetensors").about["recipe"]
    assert recipe["seed"] == 0 and recipe["warmup"] == 0.1  # which its plan did not hold
    assert recipe["augment"]["crop_scale"] == [0.5, 1.0]


def test_a_preset_of_the_first_version_is_read_by_the_data(
    data: str, pictures: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan holds a name; what that means depends on the images. Of files the size was not known."""
    asked: list[dict[str, Any]] = []
    resolve = defaults.resolve

    def spy(preset: Any, **about: Any) -> Any:
        asked.append(about)
        return resolve(preset, **about)

    monkeypatch.setattr(defaults, "resolve", spy)
    stored = json.loads((FIXTURES / "run_v1" / "run" / "config.json").read_text())
    for source, size in ((data, (8, 8)), (pictures, (224, 224))):
        plan = setup._stored_plan(stored, open_data(source))
        assert (plan.seed, plan.tune, plan.binary_targets) == (0, "full", False)
        about = asked.pop()
        assert (about["size"], about["channels"], about["resize"]) == (size, 1, "cover")
