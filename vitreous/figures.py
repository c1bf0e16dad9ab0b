"""Named figures, as Python callers and notebooks see them: attributes, a mapping, and a small HTML table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from vitreous.errors import nearest

CELL = "text-align:left;padding:2px 10px"


class Figures(Mapping[str, Any]):
    """Figures by name: `found.accuracy` is `found["accuracy"]`, and nested figures open the same way.

    `folder` holds the files behind the figures, where there are any. A name that a mapping uses itself
    (`items`, `keys`, `values`, `get`) is reached by `found["items"]` alone.
    """

    def __init__(self, figures: Mapping[str, Any], *, folder: Path | None = None) -> None:
        self._figures = dict(figures)
        self.folder = folder

    def __getitem__(self, name: str) -> Any:
        if name not in self._figures:
            raise KeyError(self._missing(name))
        value = self._figures[name]
        return Figures(value) if isinstance(value, dict) else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._figures:  # `_`: copy and pickle ask before there are any
            raise AttributeError(f"no attribute {name!r}" if name.startswith("_") else self._missing(name))
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in self._figures if name.isidentifier())})

    def __repr__(self) -> str:
        shown = [f"{name}={_brief(value)}" for name, value in self._figures.items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON values: what `--json` writes."""
        return _plain(self._figures)

    @property
    def report(self) -> Path | None:
        """The page about these figures, where one was written."""
        page = self.folder / "report.html" if self.folder is not None else None
        return page if page is not None and page.is_file() else None

    def _repr_html_(self) -> str:
        files = [(name, str(path)) for name in ("folder", "report") if (path := getattr(self, name))]
        return html_table(["figure", "value"], [*_rows(self._figures), *files])

    def _missing(self, name: str) -> str:
        near = nearest(name, self._figures, count=1)
        return f"no figure {name!r}{near or ': there are ' + ', '.join(self._figures)}"


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that needs no style sheet; all text is escaped."""
    head = "".join(f'<th style="{CELL}">{escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _rows(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values, nested ones as `test.accuracy`."""
    for name, value in figures.items():
        if isinstance(value, dict) and len(value) <= 12:
            yield from _rows(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _brief(value)


def _brief(value: Any) -> str:
    """Return a value in a few characters; long lists and tables by their size."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple | dict) and (len(value) > 4 or isinstance(value, dict)):
        return f"<{len(value):,} entries>"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_brief(item) for item in value) + "]"
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
