"""The folder that a verb writes its results into: what in it may be replaced, and what may go.

A hidden file, `.vitreous.json`, says which verb wrote each file, with a digest. What is not ours, or was
changed since, is neither replaced nor removed; files of other names are in nobody's way.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitreous import console, files
from vitreous.errors import OptionError
from vitreous.report.numbers import HEADS_OF

MARKER = ".vitreous.json"
PAGE = "report.html"
PAGE_BEGINS = (
    b'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"'
)
FIGURES = (
    "filters",
    "positions",
    "distance",
    "entropy",
    "layers",
    "compare",
    "rollout",
    "tokens",
    "deletion",
)
HEADS = tuple(f"heads-{number}" for number in range(1, HEADS_OF + 1))


@dataclass(frozen=True)
class Kind:
    """What a verb writes into its folder."""

    document: str
    keys: frozenset[str]
    """What the document has in every version."""
    others: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names of all files that the verb may write."""
        return frozenset((self.document, *self.others))


KINDS = {
    "evaluate": Kind("evaluation.json", frozenset({"checkpoint", "data", "split", "count"}), (PAGE,)),
    "search": Kind("search.json", frozenset({"file"}), (PAGE,)),
    "clean": Kind(
        "clean.json",
        frozenset({"checkpoint", "data", "near_copies", "outliers", "wrong_labels"}),
        ("suspicious.csv", PAGE),
    ),
    "inspect": Kind(
        "inspection.json",
        frozenset({"checkpoint", "architecture", "figures"}),
        (*(f"{name}.png" for name in (*FIGURES, *HEADS)), PAGE),
    ),
    "bench": Kind("bench.json", frozenset({"command", "machine", "rows"}), ("bench.svg",)),
}


@dataclass(frozen=True)
class Written:
    """A file of ours."""

    by: str
    """The verb."""
    digests: tuple[str, ...]
    """Of two versions where a command may have been stopped between them."""


Held = dict[str, Written]


class Folder:
    """A folder for the results of a verb, in which no file of another origin is lost."""

    def __init__(self, path: Path, verb: str, data: Sequence[str | Path] = ()) -> None:
        """Refuse, before any work, a folder whose files would be lost, and one in the data."""
        self.path, self.verb, self.kind = path, verb, KINDS[verb]
        self._refuse_place(data)
        self.held = self._require_ours()
        files.prepare_folder(path)

    def _refuse_place(self, data: Sequence[str | Path]) -> None:
        if (self.path / "metrics.jsonl").exists():
            raise OptionError(
                f"--out {self.path} is the folder of a run, whose report would be lost: choose another"
            )
        for root in data:
            if os.path.isdir(root) and files.lies_in(self.path, root):
                raise OptionError(f"--out {self.path} lies in the data ({root}): choose another folder")

    def _require_ours(self) -> Held:
        """Return what was written here; refuse to replace what somebody else wrote."""
        entries = {each.name for each in self.path.iterdir()} if self.path.is_dir() else set()
        held = _marked(self.path) if MARKER in entries else self._unmarked(entries)
        for name in sorted(entries & (self.kind.names | {MARKER})):
            if held is None or (name != MARKER and not self._is_ours(name, held)):
                raise OptionError(
                    f"--out {self.path} has another {name}, which would be lost: move it away, or choose "
                    "another folder"
                )
        return held or {}

    def _unmarked(self, entries: Collection[str]) -> Held | None:
        """Return the files that an earlier version of the verb wrote, or None if that is not certain."""
        names = set(entries) & self.kind.names
        document = _read(self.path / self.kind.document)
        first = document[0] if isinstance(document, list) and document else document
        if not isinstance(first, dict) or not first.keys() >= self.kind.keys:
            return None
        page = self.path / PAGE
        if PAGE in names and not (page.is_file() and page.read_bytes().startswith(PAGE_BEGINS)):
            return None
        listed = [each.get("file") for each in first.get("figures") or [] if isinstance(each, dict)]
        if not all(name in listed for name in names if name.endswith(".png")):
            return None
        return {name: Written(self.verb, (_digest(self.path / name) or "",)) for name in names}

    def _is_ours(self, name: str, held: Held) -> bool:
        return name in held and _digest(self.path / name) in held[name].digests

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield an empty folder to write into; its files then replace all that the verb wrote before."""
        with TemporaryDirectory() as draft:
            yield Path(draft)
            self._publish(sorted(Path(draft).iterdir()))

    def _publish(self, made: Sequence[Path]) -> None:
        """Write the files. The marker knows them before they are there: what is stopped can be repeated."""
        now = {file.name: Written(self.verb, (_digest(file) or "",)) for file in made}
        assert now.keys() <= self.kind.names, "a file that nobody looks for would be overwritten"
        before = {name: self.held[name].digests for name in now.keys() & self.held.keys()}
        both = {name: Written(each.by, before.get(name, ()) + each.digests) for name, each in now.items()}
        self._mark({**self.held, **both})
        for file in made:
            if (other := self.held.get(file.name)) is not None and other.by != self.verb:
                console.note(f"{self.path / file.name}: replaces that of `vitreous {other.by}`")
            files.write_bytes(self.path / file.name, file.read_bytes())
        gone = {name for name, each in self.held.items() if each.by == self.verb} - now.keys()
        for name in gone:
            if self._is_ours(name, self.held):
                (self.path / name).unlink()
        self.held = {name: each for name, each in {**self.held, **now}.items() if name not in gone}
        self._mark(self.held)

    def _mark(self, held: Held) -> None:
        written = {name: {"by": each.by, "sha256": each.digests} for name, each in sorted(held.items())}
        files.write_json(self.path / MARKER, {"files": written})


def _marked(folder: Path) -> Held | None:
    """Return what the marker says; None if it is not ours. It names files of this folder alone."""
    found = _read(folder / MARKER)
    try:
        held = {name: Written(each["by"], tuple(each["sha256"])) for name, each in found["files"].items()}
    except (TypeError, KeyError, AttributeError):
        return None
    plain = all(Path(name).name == name and each.by in KINDS for name, each in held.items())
    return held if plain else None


def _read(path: Path) -> Any:
    with suppress(ValueError, OSError):
        return json.loads(path.read_bytes())
    return None


def _digest(path: Path) -> str | None:
    """Return a digest of a file's bytes; None for what is no file."""
    if path.is_symlink() or not path.is_file():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()
