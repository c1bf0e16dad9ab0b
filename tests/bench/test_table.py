"""Rows, tables and files: the ratio is ours over the peer's, and every row has the same shape."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import tiny_case
from vitreous.bench import table
from vitreous.bench.cases import Case
from vitreous.bench.measure import Contender, Timed


def timed(name: str, rates: list[float], **changes: Any) -> Timed:
    contender = Contender(name, lambda: None, 2, "1.0", ours=name.startswith("vitreous"))
    return Timed(contender, first=3.0, calls=1, memory=changes.get("memory"), rates=rates)


def rows() -> list[table.Row]:
    case = tiny_case("train")
    found = [timed("vitreous", [20.0, 30.0, 10.0]), timed("timm", [40.0, 10.0, 2.0], memory=3 * 2**30)]
    start = [timed("vitreous", [0.25]), timed("import torch", [0.5])]
    return [
        *(table.row(case, each, 20.0) for each in found),
        *(table.row(Case(job="start"), each, 0.25) for each in start),
    ]


def test_the_ratio_is_ours_over_the_peers() -> None:
    ours, peer, *_ = rows()
    assert (ours["images_per_second"], ours["lowest"], ours["highest"], ours["rounds"]) == (
        20.0,
        10.0,
        30.0,
        3,
    )
    assert ours["ratio"] is None
    assert (peer["images_per_second"], peer["ratio"]) == (10.0, 2.0)  # ours is twice as fast


def test_every_row_has_the_same_keys_and_is_plain_json() -> None:
    found = rows()
    assert len({tuple(each) for each in found}) == 1
    assert json.loads(json.dumps(found)) == found
    assert found[0] == {
        **{"name": "vitreous", "version": "1.0", "job": "train", "model": "vit_tiny_patch16_224"},
        **{"data": None, "image_size": [32, 32], "batch_size": 2, "precision": "float32", "merge": 0},
        **{"images_per_second": 20.0, "lowest": 10.0, "highest": 30.0, "rounds": 3, "ratio": None},
        "images_per_core_second": None,
        **{"mfu": None, "peak_memory_bytes": None, "first_seconds": 3.0},
    }


def test_a_case_is_told_in_a_line() -> None:
    found = rows()
    assert table.brief(found[:2]) == "vitreous 20.0 images/s, timm 10.0 images/s (2.00)"
    assert table.brief(found[2:]) == "vitreous 4.00 s, import torch 2.00 s (0.50)"


def test_without_ours_there_is_no_ratio() -> None:
    assert table.row(tiny_case("train"), timed("timm", [1.0]), None)["ratio"] is None


def test_processor_time_is_told_where_this_process_does_all_the_work() -> None:
    each = timed("vitreous", [1.0])
    each.core_rates = [4.0, 5.0, 100.0]
    found = table.row(tiny_case("predict"), each, 1.0, on_cores=True)
    assert found["images_per_core_second"] == 5.0
    columns, (cells,) = table.speeds([found])
    assert cells[columns.index("per core-second")] == "5.00"


def test_the_table_says_each_thing_once_and_has_no_empty_column() -> None:
    columns, cells = table.speeds(rows())
    assert columns == ["what", "by", "images/s", "from", "to", "ratio", "memory", "first call"]
    assert cells[1] == ["", "timm 1.0", "10.0", "2.00", "40.0", "2.00", "3.0 GiB", "3.00 s"]
    assert [line[0] for line in cells] == ["train, ViT-Ti/16, 32, batch 2, float32", "", "start", ""]


def test_a_profile_is_a_table_of_kinds() -> None:
    first, second, *others = rows()
    first["profile"], second["profile"] = {"attention": 0.25, "idle": 0.75}, {"copies": 1.0}
    columns, cells = table.profiles([first, second, *others])
    assert columns == ["what", "by", "attention", "idle", "copies"]
    assert [line[1:] for line in cells] == [["vitreous", "25%", "75%", "0%"], ["timm", "0%", "0%", "100%"]]


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12,346"), (123.4, "123"), (12.34, "12.3"), (0.254, "0.25")]
)
def test_a_rate_has_the_digits_that_count(value: float, text: str) -> None:
    assert table.number(value) == text


def test_files_hold_the_document_and_a_bar_for_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitreous import plot

    figures: list[Any] = []
    draw = plot.speeds
    monkeypatch.setattr(plot, "speeds", lambda groups: figures.append(draw(groups)) or figures[-1])
    document = {"command": "vitreous bench", "rows": rows()}
    table.write(tmp_path, document)
    assert json.loads((tmp_path / "bench.json").read_text()) == document
    assert (tmp_path / "bench.svg").read_text().startswith("<svg")
    training, start = figures[0].axes
    assert [bar.get_width() for bar in training.patches] == [20.0, 10.0]
    assert [tick.get_text() for tick in start.get_yticklabels()] == ["vitreous", "import torch"]
    spreads = [list(line.get_xdata()) for line in training.lines]
    assert spreads == [[10.0, 30.0], [2.0, 40.0]]
    assert training.get_title(loc="left") == "train, ViT-Ti/16, 32, batch 2, float32"
