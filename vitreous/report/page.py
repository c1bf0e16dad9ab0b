"""A report as one HTML file: no network, no script, images inside; for light, dark, phone and paper.

Every text from outside is escaped, and a content security policy blocks what slips through.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files as resources
from pathlib import Path

import numpy as np
from PIL import Image

from vitreous import console, files, plot
from vitreous.report import markdown
from vitreous.report.curves import curves
from vitreous.report.document import Gallery, Mistake, Picture, Report, class_rows
from vitreous.written import encodable

LARGEST = 5_000_000
"""Bytes of a page; images are left out until it fits."""
SIDE = 224
"""Pixels along the longer side of an inline image."""
TINY = 64
FOLDED = 30
"""Rows of a table that are shown before it folds."""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write(path: Path, report: Report) -> Path:
    """Write the report as one file, whole or not at all, and return its path."""
    files.write_text(path, fitted(report))
    return path


def fitted(report: Report, largest: int = LARGEST) -> str:
    """Return the page; if it would be too large, with fewer images and a note that says so."""
    page = render(report)
    whole = _shown(report)
    while len(page.encode()) > largest and any(_shown(report)):
        report = replace(
            report,
            galleries=report.galleries[: len(report.galleries) // 2],
            sections={title: each[: len(each) // 2] for title, each in report.sections.items()},
            mistakes=report.mistakes[: len(report.mistakes) // 2],
        )
        images, mistakes = (before - now for before, now in zip(whole, _shown(report), strict=True))
        left = f"{images} images and {mistakes} mistakes"
        note = f"{left} left out, to keep this file under {largest / 1e6:.0f} MB"
        notes = [each for each in report.notes if "to keep this file under" not in each]
        report = replace(report, notes=[*notes, note])
        page = render(report)
    if len(page.encode()) > largest:
        console.warn(f"the report has {len(page.encode()):,} bytes, more than {largest:,}")
    return page


def _shown(report: Report) -> tuple[int, int]:
    """Return how many galleries and mistakes a page has."""
    return len(report.galleries) + sum(map(len, report.sections.values())), len(report.mistakes)


def render(report: Report) -> str:
    """Return the whole page."""
    sections = {
        "Curves": _pictures(curves(report.metrics)),
        "Confusion": _confusion(report),
        "Reliability": _reliability(report),
        "Worst mistakes": _mistakes(report.mistakes),
        "Classes": _classes(report),
        report.pictured: _pictures(report.pictures),
        "What it looks at": "".join(map(_gallery, report.galleries)),
        **{title: "".join(map(_gallery, each)) for title, each in report.sections.items()},
        "Data": _pairs(report.check),
        "Settings": _fold("all settings", _pairs(report.settings)) if report.settings else "",
        "Model card": markdown.to_html(_untitled(report.card)) if report.card else "",
    }
    present = {title: body for title, body in sections.items() if body}
    links = " ".join(f'<a href="#{_anchor(title)}">{title}</a>' for title in present)
    bodies = "".join(
        f'<section id="{_anchor(title)}"><h2>{_titled(title, report)}</h2>{body}</section>'
        for title, body in present.items()
    )
    style = (resources("vitreous.report") / "style.css").read_text(encoding="utf-8")
    return encodable(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(report.title)}</title><link rel="icon" href="data:,"><style>{style}</style></head>\n'
        f"<body><header><h1><bdi>{escape(report.title)}</bdi></h1>{_header(report)}"
        f"{f'<nav>{links}</nav>' if len(present) > 1 else ''}</header>\n<main>{bodies}</main>\n"
        f"<footer>{_footer(report)}</footer></body></html>\n"
    )


def _header(report: Report) -> str:
    subtitle = f'<p class="soft"><bdi>{escape(report.subtitle)}</bdi></p>' if report.subtitle else ""
    first = ""
    if report.headline is not None:
        name, value, note = map(escape, (report.headline.name, report.headline.value, report.headline.note))
        under = f'<p class="soft">{note}</p>' if note else ""
        first = f'<div class="headline"><p>{name}</p><p class="value"><bdi>{value}</bdi></p>{under}</div>'
    figures = "".join(
        f"<div><dt>{escape(name)}</dt><dd><bdi>{escape(text)}</bdi></dd></div>"
        for name, text in report.summary.items()
    )
    small = " · ".join(f"{escape(name)}: <bdi>{escape(text)}</bdi>" for name, text in report.details.items())
    details = f'<p class="details">{small}</p>' if small else ""
    lines = "".join(f"<li>{escape(line[0].upper() + line[1:])}.</li>" for line in report.advice)
    advice = f'<ul class="advice">{lines}</ul>' if lines else ""
    command = f"<pre>{escape(report.command)}</pre>" if report.command else ""
    figures = f"<dl class=figures>{figures}</dl>" if figures else ""
    return f"{subtitle}{first}{figures}{advice}{details}{command}"


def _footer(report: Report) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    where = " · ".join(f"{escape(name)} {escape(text)}" for name, text in report.environment.items())
    return f"{f'<p>Left out:</p><ul>{notes}</ul>' if notes else ''}<p>{where}</p>"


def _titled(title: str, report: Report) -> str:
    measured = title in ("Confusion", "Reliability", "Worst mistakes", "Classes")
    return f"{title}, on <bdi>{escape(report.split)}</bdi>" if measured and report.split else title


def _untitled(card: str) -> str:
    """Return a card without its first heading, which the section has already."""
    first, _, rest = card.partition("\n")
    return rest if first.lower().strip("# ") == "model card" else card


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _pictures(pictures: Sequence[Picture]) -> str:
    return f'<div class="charts">{"".join(map(_picture, pictures))}</div>' if pictures else ""


def _picture(picture: Picture) -> str:
    if picture.svg:
        # The drawing is ours and its words are outlines: no tag from outside can be in it.
        drawn = picture.svg.replace("<svg", f'<svg role="img" aria-label="{escape(picture.title)}"', 1)
    else:
        data = base64.b64encode(picture.png).decode()
        drawn = f'<img class="chart" alt="{escape(picture.title)}" src="data:image/png;base64,{data}">'
    how = f"<figcaption>{escape(picture.how)}</figcaption>" if picture.how else ""
    return f"<figure><h3>{escape(picture.title)}</h3>{drawn}{how}</figure>"


def _confusion(report: Report) -> str:
    if report.confusion is None or not report.confusion.any():
        return ""
    drawn = plot.svg(plot.confusion(report.confusion, report.labels), "confusion")
    how = (
        "A row is what the images show, a column what the model answered; a perfect model fills the diagonal."
    )
    picture = _picture(Picture(title="Truth and answer", svg=drawn, how=how))
    wrong = report.confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(wrong, axis=None, kind="stable")[::-1][:10]
    pairs = [divmod(int(cell), len(wrong)) for cell in order if wrong.flat[cell]]
    rows = [[report.labels[i], report.labels[j], f"{int(wrong[i, j]):,}"] for i, j in pairs]
    table = _table(["truth", "taken for", "images"], rows, numbers={2}) if rows else "<p>No mistakes.</p>"
    return f'<div class="charts">{picture}<div><h3>Most frequent confusions</h3>{table}</div></div>'


def _reliability(report: Report) -> str:
    bins = report.reliability
    if bins is None:
        return ""
    drawn = plot.svg(plot.reliability(bins.confidence, bins.accuracy, bins.count, bins.error), "reliability")
    how = "How often the model is right when it is this confident; below the diagonal it is overconfident."
    return _pictures([Picture(title="Confidence and accuracy", svg=drawn, how=how)])


def _mistakes(mistakes: Sequence[Mistake]) -> str:
    shown = []
    for each in mistakes:
        images = (each.image, each.seen, each.missed)
        pair = "".join(_image(pixels) for pixels in images if pixels is not None)
        text = (
            f"<bdi>{escape(each.truth)}</bdi>, taken for <bdi>{escape(each.answer)}</bdi>"
            f" ({each.probability:.0%})"
        )
        file = f"<br><bdi>{escape(each.file)}</bdi>" if each.file else ""
        shown.append(f'<figure><div class="pair">{pair}</div><figcaption>{text}{file}</figcaption></figure>')
    if not shown:
        return ""
    how = (
        "<p class=soft>Beside each image: what supported the answer, then what supported the true class "
        "(maps weighted by the class's gradient).</p>"
        if any(each.seen is not None for each in mistakes)
        else ""
    )
    return f'{how}<div class="mistakes">{"".join(shown)}</div>'


def _classes(report: Report) -> str:
    rows = list(report.per_class)
    if not rows and report.confusion is not None:
        rows = class_rows(report.confusion, report.labels)
    if not rows:
        return ""
    columns = ["class", "images", "recognised", "right when named", "most often taken for"]
    cells = [
        [
            row.label,
            f"{row.count:,}",
            f"{row.recall:.1%}",
            "" if row.precision is None else f"{row.precision:.1%}",
            row.taken_for,
        ]
        for row in rows
    ]
    first = _table(columns, cells[:FOLDED], numbers={1, 2, 3})
    rest = cells[FOLDED:]
    return first + (_fold(f"{len(rest):,} more", _table(columns, rest, numbers={1, 2, 3})) if rest else "")


def _gallery(gallery: Gallery) -> str:
    images = "".join(
        f"<figure>{_image(pixels)}<figcaption>{escape(name)}</figcaption></figure>"
        for name, pixels in gallery.images
    )
    text = f'<p class="soft"><bdi>{escape(gallery.text)}</bdi></p>' if gallery.text else ""
    return f'<h3><bdi>{escape(gallery.title)}</bdi></h3>{text}<div class="strip">{images}</div>'


def _image(pixels: np.ndarray) -> str:
    """Return an image inline: small ones exactly, photographs as WebP."""
    image = Image.fromarray(pixels.squeeze(2) if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
    tiny = max(image.size) <= TINY
    data = io.BytesIO()
    if tiny:
        image.save(data, "PNG", optimize=True)
    else:
        image = image.convert("RGB")
        image.thumbnail((SIDE, SIDE))
        image.save(data, "WEBP", quality=82, method=4)
    kind = "png" if tiny else "webp"
    code = base64.b64encode(data.getvalue()).decode()
    return f'<img class="photo{" tiny" if tiny else ""}" alt="" src="data:image/{kind};base64,{code}">'


def _pairs(values: Mapping[str, str]) -> str:
    return _table([], [[name, text] for name, text in values.items()]) if values else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: set[int] = frozenset()) -> str:  # type: ignore[assignment]
    def cell(tag: str, i: int, text: str) -> str:
        kind = ' class="number"' if i in numbers else ""
        return f"<{tag}{kind}><bdi>{escape(text)}</bdi></{tag}>"

    head = f"<tr>{''.join(cell('th', i, name) for i, name in enumerate(columns))}</tr>" if columns else ""
    body = "".join(f"<tr>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="wide"><table>{head}{body}</table></div>'


def _fold(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"
