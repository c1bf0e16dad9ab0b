"""`vitreous predict`: from what the user named to what is written, and whether it went well."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from vitreous import console
from vitreous.config import Inference, Runtime
from vitreous.data import pictures
from vitreous.errors import DataError
from vitreous.predict.choice import equip
from vitreous.predict.classifier import Classifier, Failure
from vitreous.predict.inputs import find
from vitreous.predict.output import CsvWriter, Finished, JsonWriter, TableWriter, Writer, fingerprint, resume
from vitreous.predict.stream import batch_size, predict_all, require_counts

Form = Literal["table", "json", "csv"]
LOOKED_AHEAD = 20_000
"""Names that are read before the runtime is chosen: for so many images any runtime is worth its start."""


@dataclass
class Counts:
    """How many files were answered, and how many of them with an error."""

    files: int = 0
    failed: int = 0


def predict_files(
    classifier: Classifier,
    paths: Sequence[str],
    *,
    form: Form = "table",
    out: Path | None = None,
    top: int = 5,
    batch: int | None = None,
    workers: int | None = None,
    strict: bool = False,
    runtime: Runtime = "torch",
    precision: Inference = "float32",
) -> Counts:
    """Predict every image of `paths`, write the answers; raise at the end if all failed (strict: any)."""
    if top < 1:
        raise DataError(f"--top {top} is out of range: use 1 or more")
    require_counts(batch, workers)
    counts, tally = Counts(), pictures.Tally()
    named = find(paths, tally=tally)
    ahead = list(islice(named, LOOKED_AHEAD if "auto" in (runtime, precision) else 0))
    classifier = equip(
        classifier, runtime, precision, images=len(ahead), batch=batch or batch_size(classifier)
    )
    writer, finished = _writer(classifier, form, out, counts)
    # A picture on standard input has no name by which it could be known again
    items = (item for item in chain(ahead, named) if item.data is not None or item.file not in finished)
    try:
        for entry in predict_all(classifier, items, top=top, batch=batch, workers=workers):
            writer.add(entry)
            counts.files += 1
            counts.failed += isinstance(entry, Failure)
    finally:
        writer.close()
    if (left_out := pictures.said(tally.found())) is not None:
        console.note(left_out)
    if out is not None:
        console.note(f"{counts.files:,} files in {out} ({len(finished):,} from an earlier run)")
    if counts.failed and (strict or counts.failed == counts.files):
        raise DataError(
            f"{counts.failed:,} of {counts.files:,} files could not be read: the reasons are in the output"
        )
    if counts.failed:
        console.warn(f"{counts.failed:,} of {counts.files:,} files could not be read")
    return counts


def _writer(classifier: Classifier, form: Form, out: Path | None, counts: Counts) -> tuple[Writer, Finished]:
    if out is not None:
        writer, finished, counts.failed = resume(out, fingerprint(classifier))
        counts.files = len(finished)
        return writer, finished
    if form == "csv":
        if isinstance(sys.stdout, TextIOWrapper):  # as in a file: a name is the bytes that the disk has
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
        return CsvWriter(sys.stdout, fingerprint(classifier)), Finished()
    return (JsonWriter() if form == "json" else TableWriter()), Finished()
