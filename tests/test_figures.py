"""Figures: attributes and mapping over the same values, clear when one is missing, safe as HTML."""

import copy
import json
import pickle
from pathlib import Path

import pytest

from vitreous.figures import Figures, html_table

FOUND = {
    "accuracy": 0.98765,
    "test": {"loss": 0.5, "items": 3},
    "worst": [{"file": "<b>.png"}] * 9,
    "note": None,
}


def test_attributes_and_items_are_the_same() -> None:
    found = Figures(FOUND)
    assert found.accuracy == found["accuracy"] == 0.98765
    assert found.test.loss == found["test"]["loss"] == 0.5
    assert found.test["items"] == 3  # the mapping's own method has the name as an attribute
    assert list(found) == list(FOUND) and len(found) == 4 and "accuracy" in found
    assert found.get("nothing") is None and found.note is None
    assert found.to_dict() == FOUND == json.loads(json.dumps(found.to_dict()))


def test_a_missing_figure_names_the_nearest() -> None:
    found = Figures(FOUND)
    with pytest.raises(AttributeError, match="no figure 'acuracy'; did you mean accuracy?"):
        _ = found.acuracy
    with pytest.raises(KeyError, match="no figure 'zzz': there are accuracy, test, worst, note"):
        _ = found["zzz"]


def test_tab_completion_offers_the_figures() -> None:
    assert {"accuracy", "test", "to_dict"} <= set(dir(Figures(FOUND)))
    assert "not a name" not in dir(Figures({"not a name": 1}))


def test_copies_and_pickles() -> None:
    found = Figures(FOUND, folder=Path("runs/a"))
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert again == found and again.folder == Path("runs/a")


def test_paths_become_text_in_plain_values() -> None:
    found = Figures({"path": Path("a") / "b", "sizes": (1, 2)})
    assert found.path == Path("a/b") and found.to_dict() == {"path": "a/b", "sizes": [1, 2]}


def test_html_is_a_table_and_escapes_everything(tmp_path: Path) -> None:
    (tmp_path / "<i>").mkdir()
    (tmp_path / "<i>" / "report.html").write_text("")
    html = Figures({"<script>": "<img>", "test": {"loss": 0.5}}, folder=tmp_path / "<i>")._repr_html_()
    assert "&lt;script&gt;" in html and "&lt;img&gt;" in html and "&lt;i&gt;/report.html" in html
    assert "<script" not in html and "<img" not in html and "<i>" not in html
    assert "test.loss" in html and "0.5" in html
    assert "&lt;9 entries&gt;" in Figures(FOUND)._repr_html_()
    assert html_table(["<a>"], []).count("<a>") == 0


def test_the_text_form_is_short() -> None:
    assert repr(Figures(FOUND)) == "Figures(accuracy=0.9877, test=<2 entries>, worst=<9 entries>, note=None)"
