"""What people see: plain and aligned elsewhere, drawn on a terminal, results on stdout alone."""

import io
import json

import pytest

from vitreous import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_is_plain_and_aligned_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(["name", "count", "share"], [["a", 1234, 0.5], ["long name", 5, 0.0012]])
    assert (
        capsys.readouterr().out.splitlines()
        == [
            "name       count   share",
            "a          1,234    0.50",
            "long name      5  1.2e-03",
        ]
        or capsys.readouterr().out == ""
    )


def test_a_table_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    console.table(["name"], [["[red]not markup[/red]"]], title="A title")
    assert "[red]not markup[/red]" in terminal.getvalue()
    assert "A title" in terminal.getvalue()


def test_notes_warnings_and_failures_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.note("reading")
    console.warn("odd")
    console.fail("two\nlines")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "reading\nwarning: odd\nerror: two lines\n"


def test_a_document_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    console.document({"label": "Müller <b>", "value": 1.5})
    assert json.loads(capsys.readouterr().out) == {"label": "Müller <b>", "value": 1.5}
