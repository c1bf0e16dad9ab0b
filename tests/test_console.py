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
    assert capsys.readouterr().out.splitlines() == [
        "name       count    share",
        "a          1,234     0.50",
        "long name      5  1.2e-03",
    ]


def test_cells_that_are_read_by_people_are_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    claim = "A model of two layers reads digits, and the positions help"
    console.table(["name", "claim", "result"], [["course", claim, "held"], ["b", "short", None]], wrap=True)
    assert capsys.readouterr().out.splitlines() == [
        "name    claim                  result",
        "course  A model of two layers  held",
        "        reads digits, and the",
        "        positions help",
        "b       short",
    ]
    console.table(["claim"], [[claim]])
    assert claim in capsys.readouterr().out


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


def test_times_and_sizes_for_people() -> None:
    assert [console.duration(s) for s in (0.44, 9.96, 42, 200, 7500)] == [
        "0.4s",
        "10.0s",
        "42s",
        "3m 20s",
        "2h 05m",
    ]
    assert [console.size(n) for n in (5, 2048, 3 << 20, 1.5 * 2**30)] == ["5 B", "2 KiB", "3 MiB", "1.5 GiB"]


def test_progress_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    bar = console.ProgressBar(10, every=0.0)
    bar.update(4, 10, "loss 0.5", left=90.0)
    bar.update(10, 10, "loss 0.1")
    bar.close()
    quiet = console.ProgressBar(10, quiet=True)
    quiet.update(10, 10, "nothing")
    quiet.close()
    shown = capsys.readouterr()
    assert shown.err == "step 4 of 10: loss 0.5, 1m 30s left\nstep 10 of 10: loss 0.1\n" and shown.out == ""


def test_progress_as_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    bar = console.ProgressBar(10)
    bar.update(4, 10, "loss [0.5]")
    bar.close()
    assert "4/10" in terminal.getvalue() and "loss [0.5]" in terminal.getvalue()
