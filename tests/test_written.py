"""Text for other programs: what UTF-8 or JSON have no word for is spelled out, wherever it is written."""

import io
import json
from math import inf, nan
from pathlib import Path

import pytest

from vitreous import console, files, written
from vitreous.data.images import EncodedImages
from vitreous.report import page
from vitreous.report.document import Report

STRAY = "caf\udce9.png"


def test_what_json_has_no_word_for_is_null() -> None:
    text = written.as_json({"a": [1.5, nan, (inf, -inf)], "b": {"c": nan}, "d": True})
    assert json.loads(text) == {"a": [1.5, None, [None, None]], "b": {"c": None}, "d": True}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_json_gives_back_any_name(encoding: str) -> None:
    names = ["é", "猫", "😀", STRAY, "\x85", 'q"\\\n']
    assert json.loads(written.as_json(names, encoding=encoding).encode(encoding)) == names


def test_readable_letters_stay_as_they_are() -> None:
    assert written.as_json(["é 猫"]) == '["é 猫"]'
    assert written.encodable("é 猫") == "é 猫" and written.encodable("é 猫", "latin-1") == "é \\u732b"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_results_reach_any_output(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(held, encoding=encoding, write_through=True))
    console.table(["file", "é"], [[STRAY, "猫"]])
    console.document({"file": STRAY, "loss": nan})
    console.result(STRAY)
    said = held.getvalue().decode(encoding)
    lines = said.splitlines()
    assert r"caf\xe9.png" in lines[1] and lines[-1] == r"caf\xe9.png" and '"loss": null' in said


def test_a_byte_that_is_no_text_is_shown_in_one_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the terminal, in pages and cards, and in the names of a data set."""
    for say in (console.note, console.warn, console.fail, console.result):
        say(f"file {STRAY}")
    said = capsys.readouterr()
    assert said.err.count(r"file caf\xe9.png") == 3 and said.out == "file caf\\xe9.png\n"
    files.write_text(tmp_path / "card.md", STRAY)
    assert (tmp_path / "card.md").read_text() == r"caf\xe9.png"
    assert EncodedImages([STRAY], [STRAY]).name(0) == r"caf\xe9.png"
    built = page.render(Report(title=STRAY))
    assert r"<h1><bdi>caf\xe9.png</bdi></h1>" in built and built.encode()


def test_names_can_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[31mred\x07\r\n\x9b2J\u202egnp.exe"
    console.table(["file"], [[evil]])
    console.note(f"one\n{evil}")
    console.warn(evil)
    console.fail(evil)
    said = capsys.readouterr()
    for text, lines in ((said.out, 2), (said.err, 3)):  # one line for each message
        assert len(text.splitlines()) == lines and r"\x1b[31mred\x07\r" in text and r"\u202egnp" in text
        assert not set(text) & {"\x1b", "\x07", "\r", "\x9b", "\u202e"}
    assert written.harmless("é 猫 \u200d\u00a0") == "é 猫 \u200d\u00a0"


def test_files_hold_names_of_any_bytes(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {STRAY: "é"})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {STRAY: "é"}
