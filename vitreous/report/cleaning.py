"""The page of `vitreous clean`: the pictures that look wrong, and the same as a list for other programs."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitreous import files
from vitreous.data import Dataset
from vitreous.features.clean import COLUMNS, table
from vitreous.report.album import Album
from vitreous.report.document import Gallery, Headline, Report, environment
from vitreous.report.page import write

TIMES = 5
"""The page shows this many times as many findings as the tables."""
ROW = 12
"""Outliers under one heading."""
HEADINGS = {"wrong_labels": "Likely wrong labels", "near_copies": "Copies", "outliers": "Outliers"}


def write_clean(folder: Path, document: dict[str, Any], dataset: Dataset, top: int, command: str) -> Path:
    """Write `clean.json`, `suspicious.csv` and `report.html`; return the page."""
    files.write_json(folder / "clean.json", document)
    held, rows = io.StringIO(newline=""), table(document)
    csv.writer(held, lineterminator="\n").writerows([COLUMNS, *rows])
    files.write_text(folder / "suspicious.csv", held.getvalue())
    album, most = Album(dataset), TIMES * top
    found = {name: document[name][:most] for name in HEADINGS}
    galleries = {
        "wrong_labels": _wrong_labels(album, found["wrong_labels"]),
        "near_copies": [_copies(album, group) for group in found["near_copies"]],
        "outliers": _outliers(album, found["outliers"], document["outlier_limit"]),
    }
    notes = [
        f"{len(document[name]) - most:,} more under {title}: they are in suspicious.csv"
        for name, title in HEADINGS.items()
        if len(document[name]) > most
    ]
    if document["labels_not_judged"]:
        notes.append(f"labels were not judged: {document['labels_not_judged']}")
    report = Report(
        title="What looks wrong",
        subtitle=document["data"],
        command=command,
        environment=environment(),
        headline=Headline(
            name="pictures to look at",
            value=f"{len({(row[1], row[2]) for row in rows}):,}",
            note=f"of {document['count']:,}; nothing was changed",
        ),
        summary={
            title: f"{sum(row[0] in KINDS[name] for row in rows):,}" for name, title in HEADINGS.items()
        },
        sections={title: galleries[name] for name, title in HEADINGS.items()},
        check={"unreadable": "; ".join(document["bad_files"])} if document["bad_files"] else {},
        notes=notes,
    )
    return write(folder / "report.html", report)


KINDS = {
    "wrong_labels": ("wrong label",),
    "near_copies": ("near copy", "exact copy"),
    "outliers": ("outlier",),
}
"""The findings of the list that belong under each heading."""


DOUBTED = (
    "To a classifier that learned from the other pictures, another class is likelier, and the given one far "
    "less likely than is usual for its pictures."
)
FAR = "The mean cosine distance to the nearest pictures: outliers are above"


def _wrong_labels(album: Album, rows: Sequence[dict[str, Any]]) -> list[Gallery]:
    """Return a gallery for each doubted label, ordered by its clearest case."""
    by_label: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_label.setdefault(row["label"], []).append(row)
    return [
        Gallery(
            title=f"labelled {label}",
            text="" if number else DOUBTED,
            images=[
                (
                    f"{row['suggested']}? ({row['suggested_probability']:.0%}; {row['label']} "
                    f"{row['probability']:.0%}) {row['file']}",
                    album.picture(row["split"], row["file"]),
                )
                for row in some
            ],
        )
        for number, (label, some) in enumerate(by_label.items())
    ]


def _copies(album: Album, group: dict[str, Any]) -> Gallery:
    labels = {each["label"] for each in group["files"]}
    said = [f"pixels correlate to {group['likeness']:.3f}"]
    if group["labels_differ"]:
        said.insert(0, f"labelled {' and '.join(sorted(map(str, labels)))}")
    if group["across_splits"]:
        said.insert(0, f"in {' and '.join(sorted({each['split'] for each in group['files']}))}")
    images = [(each["file"], album.picture(each["split"], each["file"])) for each in group["files"]]
    return Gallery(
        title="exact copies" if group["exact"] else "near copies", text="; ".join(said), images=images
    )


def _outliers(album: Album, rows: Sequence[dict[str, Any]], limit: float | None) -> list[Gallery]:
    """Return the farthest pictures in galleries of twelve."""
    numbered = list(enumerate(rows, start=1))
    return [
        Gallery(
            title=f"{some[0][0]} to {some[-1][0]}, the farthest first" if len(rows) > 1 else "the farthest",
            text=f"{FAR} {limit:.3f}." if some[0][0] == 1 else "",
            images=[
                (
                    f"distance {row['distance']:.3f}{', labelled ' + row['label'] if row['label'] else ''}: "
                    f"{row['file']}",
                    album.picture(row["split"], row["file"]),
                )
                for _, row in some
            ],
        )
        for some in (numbered[start : start + ROW] for start in range(0, len(numbered), ROW))
    ]
