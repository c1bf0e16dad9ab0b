"""What people see: results go to stdout, messages on the way go to stderr. No torch.

On a terminal tables and notes are drawn by rich; elsewhere they are plain lines that other programs can read.
Because only results reach stdout, `--json` keeps it clean by construction.
"""

import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any, TextIO

from vitreous.written import as_json, encodable, harmless

Cell = str | int | float | None


def note(message: str) -> None:
    """Write a message on the way, one line: a choice that was made, a file that was written."""
    _line(message, style=None)


def warn(message: str) -> None:
    """Write a message that the user should look at, though the work goes on."""
    _line(f"warning: {message}", style="yellow")


def fail(message: str) -> None:
    """Write why the work stopped, in one line."""
    _line(f"error: {' '.join(message.split())}", style="red")


def document(value: Any) -> None:
    """Write one JSON document to stdout (`--json`)."""
    sys.stdout.write(as_json(value, indent=2, encoding=encoding_of(sys.stdout)) + "\n")


def result(sentence: str) -> None:
    """Write a result that is a sentence, to stdout."""
    sys.stdout.write(encodable(sentence, encoding_of(sys.stdout)) + "\n")


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str = "", wrap: bool = False
) -> None:
    """Write a table to stdout: boxed on a terminal, aligned plain lines elsewhere. Numbers align right.

    `wrap`: cells for people to read are broken into lines as a terminal would be wide.
    """
    encoding = encoding_of(sys.stdout)
    columns, *texts = [
        [encodable(harmless(_text(cell)), encoding) for cell in row] for row in (columns, *rows)
    ]
    numeric = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
    if sys.stdout.isatty():
        _draw(columns, texts, numeric, title)
        return
    lines = [list(columns), *texts]
    if wrap:
        lines = _wrapped(lines, shutil.get_terminal_size().columns)
    widths = _widths(lines)
    for line in lines:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _widths(lines: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _wrapped(lines: list[list[str]], limit: int) -> list[list[str]]:
    """Return rows of which the widest column is broken into lines, so that all is as wide as the limit."""
    widths = _widths(lines)
    widest = widths.index(max(widths))
    room = max(20, limit - (sum(widths) - widths[widest]) - 2 * (len(widths) - 1))
    found = []
    for line in lines:
        parts = textwrap.wrap(line[widest], room) or [""]
        for number, part in enumerate(parts):
            found.append([part if i == widest else "" if number else cell for i, cell in enumerate(line)])
    return found


def encoding_of(stream: TextIO) -> str:
    """Return what a stream turns its text into; a name may hold what that has no bytes for."""
    return stream.encoding or "utf-8"


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.2f}" if abs(cell) >= 0.01 or cell == 0 else f"{cell:.1e}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _draw(columns: Sequence[str], rows: list[list[str]], numeric: list[bool], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title or None, header_style="bold")
    for column, right in zip(columns, numeric, strict=True):
        drawn.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))  # Text: names from files are never read as markup
    Console().print(drawn)


def _line(message: str, style: str | None) -> None:
    message = encodable(harmless(message), encoding_of(sys.stderr))
    if style is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.text import Text

        Console(stderr=True).print(Text(message, style=style), soft_wrap=True)
    else:
        sys.stderr.write(message + "\n")


class ProgressBar:
    """Shows how far a long piece of work is: a bar on a terminal, elsewhere a plain line now and then."""

    def __init__(
        self, total: int, *, done: int = 0, quiet: bool = False, every: float = 10.0, what: str = "step"
    ) -> None:
        self._every, self._what = every, what
        self._last = time.monotonic()
        self._quiet = quiet
        self._bar: Any = None
        if sys.stderr.isatty() and not quiet:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
            console = Console(stderr=True)
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=what != "step")
            self._bar.start()
            self._task = self._bar.add_task("", total=total, completed=done)

    def update(self, done: int, total: int, text: str, left: float | None = None) -> None:
        """Show that `done` of `total` steps are done, and how it goes; `left` is the time in seconds."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=text)
        elif not self._quiet and (
            time.monotonic() - self._last >= self._every or (done == total and self._what == "step")
        ):
            self._last = time.monotonic()
            note(f"{self._what} {done:,} of {total:,}: {text}" + (f", {duration(left)} left" if left else ""))

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()


def duration(seconds: float) -> str:
    """Return a time for people: 42s, 3m 20s, 2h 05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"


def size(count: float) -> str:
    """Return a number of bytes for people: 512 B, 1.4 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
