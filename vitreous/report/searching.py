"""The page of `vitreous search`: each query beside the pictures that are nearest to it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitreous import files
from vitreous.errors import VitreousError
from vitreous.features.gather import open_any
from vitreous.features.index import Index
from vitreous.predict.inputs import Item
from vitreous.report.album import Album, given
from vitreous.report.document import Gallery, Report, environment, warn_left_out
from vitreous.report.page import write


def write_search(
    folder: Path, bank: Index, document: Sequence[dict[str, Any]], queries: Sequence[Item], command: str
) -> Path:
    """Write `search.json` and `report.html`; return the page."""
    files.write_json(folder / "search.json", list(document))
    about, album, notes = bank.about["data"], Album(None), []
    try:
        album = Album(open_any(about["source"], about.get("data_root")))
    except VitreousError as error:  # the data has moved since: show names and similarities only
        notes.append(warn_left_out("pictures of the index", error))
    report = Report(
        title="Nearest pictures",
        subtitle=f"among {len(bank):,} of {about['source']}",
        command=command,
        environment=environment(),
        details={"model": str(bank.about["model"]["source"])},
        sections={
            "Queries": [_gallery(entry, item, album) for entry, item in zip(document, queries, strict=True)]
        },
        notes=notes,
    )
    return write(folder / "report.html", report)


def _gallery(entry: dict[str, Any], item: Item, album: Album) -> Gallery:
    shown = [("the query", given(item))] if "matches" in entry else []
    for match in entry.get("matches", []):
        same = " (the same picture)" if match["same"] else ""
        label = f" {match['label']}:" if match["label"] else ""
        caption = f"{match['similarity']:.3f}{same}{label} {match['file']}"
        shown.append((caption, album.picture(match["split"], match["file"])))
    return Gallery(title=entry["file"] or "query", text=entry.get("error", ""), images=shown)
