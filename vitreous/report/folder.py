"""The folder that a verb writes its results into: whose it is, and what in it may go; never what that says.

A hidden file, `.vitreous.json`, names the verb and has a digest of each file that it wrote. What is not ours,
or was changed since, is neither replaced nor removed.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitreous import files
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

Held = dict[str, list[str]]
"""Digests of each file that the verb wrote: of two versions where it may have been stopped between them."""


class Folder:
    """A folder for the results of a verb: new, empty, or one that the same verb wrote and nobody changed."""

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
        """Return what the verb wrote here; refuse what somebody else did."""
        entries = files.held(self.path)
        if not entries:
            return {}
        marked = _marker(self.path) if MARKER in entries else None
        if marked is not None and marked["verb"] != self.verb:
            raise OptionError(
                f"--out {self.path} holds what `vitreous {marked['verb']}` wrote: choose another folder, or "
                "remove it first"
            )
        held = self._without_marker(entries) if marked is None else marked["files"]
        if held is None:
            raise OptionError(
                f"--out {self.path} holds other files ({min(entries)}): choose a new or an empty folder"
            )
        for name in sorted(entries & (self.kind.names | held.keys())):
            if not self._is_ours(name, held):
                raise OptionError(
                    f"--out {self.path}: {name} is not as `vitreous {self.verb}` wrote it: move it away, or "
                    "choose another folder"
                )
        return held

    def _without_marker(self, entries: Collection[str]) -> Held | None:
        """Return the files of a folder that an earlier version wrote, or None if that is not certain."""
        if not {self.kind.document} <= set(entries) <= self.kind.names:
            return None
        document = _read(self.path / self.kind.document)
        first = document[0] if isinstance(document, list) and document else document
        if not isinstance(first, dict) or not first.keys() >= self.kind.keys:
            return None
        page = self.path / PAGE
        if PAGE in self.kind.others and not (page.is_file() and page.read_bytes().startswith(PAGE_BEGINS)):
            return None
        listed = [each.get("file") for each in first.get("figures") or [] if isinstance(each, dict)]
        if not all(name in listed for name in entries if name.endswith(".png")):
            return None
        return {name: [_digest(self.path / name) or ""] for name in entries}

    def _is_ours(self, name: str, held: Mapping[str, list[str]]) -> bool:
        return _digest(self.path / name) in held.get(name, ())

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield an empty folder to write into; its files then replace all that the verb wrote before."""
        with TemporaryDirectory() as draft:
            yield Path(draft)
            self._publish(sorted(Path(draft).iterdir()))

    def _publish(self, made: Sequence[Path]) -> None:
        """Write the files. The marker knows them before they are there: what is stopped can be repeated."""
        now: Held = {file.name: [_digest(file) or ""] for file in made}
        assert now.keys() <= self.kind.names, "a file that nobody looks for would be overwritten"
        both = {name: [*self.held.get(name, []), *now.get(name, [])] for name in {**self.held, **now}}
        self._mark(both)
        for file in made:
            files.write_bytes(self.path / file.name, file.read_bytes())
        for name in self.held.keys() - now.keys():
            if self._is_ours(name, self.held):
                (self.path / name).unlink()
        self._mark(now)
        self.held = now

    def _mark(self, held: Held) -> None:
        files.write_json(self.path / MARKER, {"verb": self.verb, "files": dict(sorted(held.items()))})


def _marker(folder: Path) -> dict[str, Any] | None:
    """Return what the marker says; None if it is not ours. It names files of this folder alone."""
    found = _read(folder / MARKER)
    if not isinstance(found, dict) or found.get("verb") not in KINDS:
        return None
    held = found.get("files")
    plain = isinstance(held, dict) and all(
        Path(name).name == name and isinstance(digests, list) for name, digests in held.items()
    )
    return found if plain else None


def _read(path: Path) -> Any:
    with suppress(ValueError, OSError):
        return json.loads(path.read_bytes())
    return None


def _digest(path: Path) -> str | None:
    """Return a digest of a file's bytes; None for what is no file."""
    if path.is_symlink() or not path.is_file():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()
