"""Start-up: a fresh process, the code that runs here, and a failure in one line."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vitreous
from tests.bench.conftest import place_in
from vitreous.bench import start
from vitreous.bench.cases import Case
from vitreous.errors import VitreousError


def test_ours_is_the_command_that_people_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def spy(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", spy)
    ours, floor = start.contenders(Case(job="start"), place_in(tmp_path))
    ours.work()
    floor.work()
    photo = tmp_path / "photo.jpg"
    assert photo.is_file()
    predict = [sys.executable, "-m", "vitreous", "predict", "tiny", str(photo), "--device", "cpu"]
    assert commands == [predict, [sys.executable, "-c", "import torch"]]
    assert (ours.name, ours.images, floor.name, floor.ours) == ("vitreous", 1, "import torch", False)


def test_the_process_runs_the_code_that_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = "import pathlib, vitreous; pathlib.Path('where').write_text(vitreous.__file__)"
    start.fresh_process(["-c", program])()
    assert (tmp_path / "where").read_text() == vitreous.__file__


def test_a_failure_is_one_line() -> None:
    with pytest.raises(VitreousError) as caught:
        start.fresh_process(["-c", "raise ValueError('no such photo')"])()
    assert str(caught.value).endswith("failed: ValueError: no such photo")


def test_peers_are_said_to_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(start.contenders(Case(job="start"), place_in(tmp_path, "timm")))) == 2
    assert capsys.readouterr().err.startswith("warning: timm is left out: start is compared with the import")
