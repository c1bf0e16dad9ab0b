"""The verb: one JSON list, one table, the ceiling first; every option has an effect."""

import ast
import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous
from tests.bench.conftest import RATE
from vitreous import cli, parallel
from vitreous.bench import cores, load, measure, processor
from vitreous.bench.cases import Case
from vitreous.config import BenchConfig
from vitreous.models import cost

SMALL: dict[str, Any] = {"image_size": 32, "batch_size": 2, "rounds": 1, "device": "cpu"}
WORDS = ["--image-size", "32", "--batch-size", "2", "--rounds", "1", "--device", "cpu"]

# Each option, and the test that shows what it does.
OPTIONS = {
    "job": "test_cases.py::test_a_job_has_the_combinations_of_what_it_depends_on",
    "model": "test_cases.py::test_lists_give_all_combinations_with_commas_or_spaces",
    "image_size": "test_cases.py::test_a_size_is_height_and_width_and_commas_stand_between_several",
    "batch_size": "test_cases.py::test_lists_give_all_combinations_with_commas_or_spaces",
    "precision": "test_predict.py::test_precision_changes_the_answer_of_all",
    "runtime": "test_predict.py::test_ours_predicts_on_the_runtimes_that_are_named",
    "against": "test_bench.py::test_one_json_list_and_nothing_else",
    "rounds": "test_bench.py::test_rounds_and_profile_and_workers_reach_what_is_timed",
    "profile": "test_bench.py::test_rounds_and_profile_and_workers_reach_what_is_timed",
    "workers": "test_bench.py::test_rounds_and_profile_and_workers_reach_what_is_timed",
    "device": "test_bench.py::test_a_device_that_is_not_there_is_refused",
    "out": "test_bench.py::test_out_is_where_the_document_and_the_plot_are_written",
}


def test_no_option_is_forgotten() -> None:
    assert {each.name for each in fields(BenchConfig)} == OPTIONS.keys()
    for option, where in OPTIONS.items():
        file, name = where.split("::")
        tree = ast.parse((Path(__file__).parent / file).read_text())
        (test,) = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name)
        words = re.split(r"[^a-z_]+", ast.unparse(test).replace("-", "_"))
        assert {option, f"__{option}"} & set(words), f"{where} does not mention {option}"


def test_one_json_list_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["bench", *WORDS, "--precision", "float32", "--against", "timm", "torchvision", "--json"])
        == 0
    )
    said = capsys.readouterr()
    rows = json.loads(said.out)
    names = ["vitreous", "timm", "torchvision"]
    assert [(row["job"], row["name"]) for row in rows] == [
        (job, name) for job in ("train", "predict") for name in names
    ]
    ours = {row["job"]: row["images_per_second"] for row in rows if row["name"] == "vitreous"}
    flops = 2 * cost.flops(Case(job="train", model=rows[0]["model"], image_size=(32, 32)).architecture)
    for row in rows:
        assert row["images_per_second"] > 0 and row["first_seconds"] > 0
        assert row["images_per_core_second"] > 0
        assert row["peak_memory_bytes"] is None  # of a CPU it can't be told
        passes = 3 if row["job"] == "train" else 1  # ours and the peers' by the same count
        assert row["mfu"] == pytest.approx(row["images_per_second"] * passes * flops / RATE)
        if row["name"] == "vitreous":
            assert row["ratio"] is None
        else:
            assert row["ratio"] == pytest.approx(ours[row["job"]] / row["images_per_second"])
    lines = said.err.splitlines()
    assert lines[0].startswith("on ") and lines[1] == "matrix products in float32: 1,000 GFLOP/s"
    assert lines[2] == "timing train, vit_tiny_patch16_224, 32x32, batch 2, float32"
    assert sum(line.startswith("vitreous ") and "images/s" in line for line in lines) == 2  # as each ends


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *WORDS, "--job", "predict", "--profile"]) == 0
    speeds, row, profile, shares = capsys.readouterr().out.splitlines()
    assert speeds.split()[:3] == ["what", "by", "images/s"] and row.startswith(
        "predict, ViT-Ti/16, 32, batch 2"
    )
    assert profile.startswith("what") and "matrix products" in profile and shares.count("%") >= 3


def test_a_peer_that_is_missing_costs_its_row_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    found = vitreous.bench(job="predict", against=["timm", "torchvision"], **SMALL)
    assert [row["name"] for row in found.rows] == ["vitreous", "torchvision"]
    assert "warning: timm is left out: it is not installed: pip install timm\n" in capsys.readouterr().err


def test_rounds_and_profile_and_workers_reach_what_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = vitreous.bench(job="predict", **{**SMALL, "rounds": 3}, profile=True)
    assert found.rows[0]["rounds"] == 3
    assert sum(found.rows[0]["profile"].values()) == pytest.approx(1.0)
    places: list[Any] = []
    monkeypatch.setattr(load, "contenders", lambda case, place: places.append(place) or iter(()))
    for workers in (3, None):
        plain = vitreous.bench(job="load", workers=workers, **SMALL)
        assert plain.rows == []
    assert [place.workers for place in places] == [3, 3, *[cores()] * 2]


def test_a_device_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--device", "cuda:99"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: device cuda:99 is not available")


def test_several_ranks_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["bench"]) == 1
    assert capsys.readouterr().err == "error: bench times one process: start it without torchrun\n"


def test_out_is_where_the_document_and_the_plot_are_written(tmp_path: Path, blank_figures: None) -> None:
    out = tmp_path / "new" / "folder"
    found = vitreous.bench(job="predict", out=out, **SMALL)
    assert found.folder == out
    document = json.loads((out / "bench.json").read_text())
    assert document == found.to_dict()
    assert document["command"] == (
        f"vitreous bench --job predict --image-size 32 --batch-size 2 --rounds 1 --out {out} --device cpu"
    )
    assert document["machine"]["threads"] == torch.get_num_threads()
    assert document["machine"]["torch"] == torch.__version__ and document["date"]
    assert (out / "bench.svg").is_file()


def test_a_wrong_option_makes_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--job", "trian", "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == (
        "error: --job trian is not known; did you mean train? (use train, predict, load, start)\n"
    )
    assert not (tmp_path / "out").exists()


def test_the_ceiling_is_the_best_that_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy moment at the start must not make all that follows look better than it is."""
    rates = iter([1e9, 4e9, 2e9])
    monkeypatch.setattr(parallel, "measure_matrix_rate", lambda *_, **__: next(rates))
    found = vitreous.bench(job="predict", **{**SMALL, "rounds": 2})
    assert found["matrix_rates"].to_dict() == {"float32": 4e9}
    (row,) = found.rows
    flops = 2 * cost.flops(Case(job="predict", model=row["model"], image_size=(32, 32)).architecture)
    assert row["mfu"] == pytest.approx(row["images_per_second"] * flops / 4e9)


def test_what_a_case_sets_for_all_of_torch_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else float32 after bf16 would be timed with TF32."""
    turns = measure.take_turns

    def spy(*arguments: Any) -> None:
        assert torch.get_float32_matmul_precision() == "highest"
        torch.set_float32_matmul_precision("high")
        turns(*arguments)

    monkeypatch.setattr(measure, "take_turns", spy)
    vitreous.bench(job="predict", precision=["bf16", "float32"], **SMALL)
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_notebook_shows_the_table() -> None:
    rows = vitreous.bench(job="predict", **SMALL)._repr_html_()
    assert "<th" in rows and "images/s" in rows and "predict, ViT-Ti/16, 32, batch 2, float32" in rows


def test_a_machine_has_a_processor() -> None:
    assert processor()
