"""The simple Markdown of a model card as HTML: headings, paragraphs, lists, tables, code; escaped."""

import re
from html import escape
from itertools import groupby


def to_html(text: str, level: int = 3) -> str:
    """Return HTML in which a first-level heading has the given level; links and raw HTML stay plain text."""
    parts: list[str] = []
    for kind, group in groupby(text.splitlines(), key=_kind):
        lines = list(group)
        if kind == "heading":
            for line in lines:
                signs, words = line.split(" ", 1)
                depth = min(6, level + len(signs) - 1)
                parts.append(f"<h{depth}>{_inline(words)}</h{depth}>")
        elif kind == "item":
            items = "".join(f"<li>{_inline(line.lstrip()[2:])}</li>" for line in lines)
            parts.append(f"<ul>{items}</ul>")
        elif kind == "table":
            parts.append(_table(lines))
        elif kind == "text":
            parts.append(f"<p>{_inline(' '.join(lines))}</p>")
    return "\n".join(parts)


def _kind(line: str) -> str:
    if not line.strip():
        return "blank"
    if re.match(r"#{1,6} ", line):
        return "heading"
    if re.match(r"\s*[-*] ", line):
        return "item"
    return "table" if line.lstrip().startswith("|") else "text"


def _table(lines: list[str]) -> str:
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines]
    rows = [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    head, *body = rows or [[]]
    cells = "".join(f"<th>{_inline(cell)}</th>" for cell in head)
    others = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f'<div class="wide"><table><tr>{cells}</tr>{others}</table></div>'


def _inline(text: str) -> str:
    safe = escape(text.replace("\\|", "|"))
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe)
