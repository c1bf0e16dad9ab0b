"""`--find-lr`: a sweep that suggests a rate, and leaves everything else as it is."""

import json
import math
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitreous
from tests.training.runs import FLAGS, run
from vitreous import cli
from vitreous.errors import OptionError
from vitreous.training import Result, find_lr


def test_the_sweep_suggests_a_rate_and_writes_a_page_alone(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "monotonic", count(step=20).__next__)  # every step takes long enough to be told
    assert cli.main(["train", data, *FLAGS, "--find-lr"]) == 0
    found = json.loads(Path("runs/stripes/find-lr/find-lr.json").read_text())
    out, told = capsys.readouterr()
    assert "of 100: learning rate " in told
    shown = out.split()
    assert shown[shown.index("--lr") + 1] == f"{found['suggestion']:g}"
    assert 1e-5 < found["suggestion"] < 0.2 and found["planned"] == 2e-3
    assert found["rates"][0] == pytest.approx(2e-6) and len(found["rates"]) == len(found["losses"]) > 20
    written = sorted(str(path.relative_to("runs")) for path in Path("runs").rglob("*") if path.is_file())
    assert written == ["stripes/find-lr/find-lr.json", "stripes/find-lr/report.html"]
    assert "suggested peak learning rate" in Path("runs/stripes/find-lr/report.html").read_text()


def test_a_run_is_left_as_it_was(data: str, undisturbed: Result) -> None:
    def state() -> dict[str, bytes]:
        files = (path for path in undisturbed.folder.rglob("*") if path.is_file() and path.name != ".lock")
        return {str(path): path.read_bytes() for path in files if "find-lr" not in path.parts}

    before = state()
    swept = run(data, undisturbed.folder, find_lr=True)
    assert swept.folder == undisturbed.folder / "find-lr" and swept.figures["suggestion"]
    assert state() == before
    assert run(data, undisturbed.folder).figures == undisturbed.figures


def test_python_gets_the_figures_and_a_suite_is_refused(
    data: str, undisturbed: Result, tmp_path: Path, blank_figures: None
) -> None:
    about: dict[str, Any] = {"find_lr": True, "device": "cpu", "epochs": 1, "batch_size": 16}
    found = vitreous.finetune(undisturbed.folder, data, out=tmp_path / "tuned", tune="head", **about)
    assert found.report == tmp_path / "tuned" / "find-lr" / "report.html"
    assert len(found.smoothed) == len(found.losses)
    with pytest.raises(OptionError, match="--find-lr is for one data set"):
        vitreous.finetune(undisturbed.folder, "vtab", find_lr=True)
    with pytest.raises(OptionError, match="--find-lr sweeps for a new run and --extend goes on with one"):
        run(data, tmp_path / "run", find_lr=True, extend=3)


def test_the_steepest_fall_is_found_and_none_is_said_to_be_none() -> None:
    rates = np.geomspace(1e-6, 1e-1, 100).tolist()
    fall = [2.0 - 1 / (1 + math.exp(-4 * (math.log10(rate) + 3))) for rate in rates]  # steepest at 1e-3
    assert find_lr.suggest(rates, fall) == pytest.approx(1e-3, rel=0.15)
    assert find_lr.suggest(rates, [*fall[:80], *np.linspace(fall[79], 9.0, 20)]) == pytest.approx(
        1e-3, rel=0.15
    )
    assert find_lr.suggest(rates, [2.0] * 100) is None
    assert find_lr.suggest(rates, np.linspace(2.0, 5.0, 100).tolist()) is None
    assert find_lr.suggest(rates, []) is None
