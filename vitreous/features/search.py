"""`vitreous search`: the pictures of an index that are nearest to others, by the model that made it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.config import SearchConfig
from vitreous.data import content
from vitreous.data.decode import decode, read_file
from vitreous.data.images import to_pixels
from vitreous.errors import CheckpointError, DataError, OptionError
from vitreous.evals import features, neighbours
from vitreous.features import index
from vitreous.features.gather import unit
from vitreous.features.index import Index
from vitreous.predict import Classifier, Prepared, load, stream
from vitreous.predict.inputs import Item


def search(path: str, queries: Iterable[Item], options: SearchConfig) -> tuple[Index, list[dict[str, Any]]]:
    """Return the index, and the JSON document of `vitreous search`: matches, or an error, for each query."""
    if options.top < 1:
        raise OptionError(f"--top {options.top} is out of range: use 1 or more")
    bank = index.read(Path(path))
    searcher = Searcher(bank, model_of(bank, path, options))
    return bank, list(searcher.entries(queries, options))


def model_of(bank: Index, path: str, options: SearchConfig) -> Classifier:
    """Load the model that made the index; refuse any other."""
    about = bank.about["model"]
    source = options.checkpoint or about["source"]
    if options.checkpoint is None and Path(source).is_absolute() and not Path(source).exists():
        raise CheckpointError(
            f"{path} was made with {source}, which is no longer there: name the model with --checkpoint CKPT"
        )
    height, width = about["preprocessing"]["image_size"]
    classifier = load(source, image_size=(height, width), device=options.device)
    place = {"layer": about["layer"], "pooling": about["pooling"]}
    found = features.identity(classifier.model, classifier.preprocess.preprocessing, **place)
    if found != about["checksum"]:
        raise CheckpointError(
            f"{source} is not the model that made {path} (checksum {found[:12]}, not "
            f"{about['checksum'][:12]}): name that model with --checkpoint CKPT, or embed the data again"
        )
    return classifier


class Searcher:
    """An index and its model, ready for queries."""

    def __init__(self, bank: Index, classifier: Classifier) -> None:
        self.bank, self.classifier = bank, classifier
        self.vectors = torch.from_numpy(bank.features)
        self.copies: dict[bytes, list[int]] = defaultdict(list)
        for row, digest in enumerate(bank.digests):
            self.copies[digest.tobytes()].append(row)

    def entries(self, queries: Iterable[Item], options: SearchConfig) -> Iterator[dict[str, Any]]:
        """Yield what was found for each query, in order: `{file, matches}` or `{file, error}`."""
        batch, workers = options.batch_size, options.workers
        for read in stream.batches(self.classifier, queries, batch=batch, workers=workers):
            good = [(item, image) for item, image in read if isinstance(image, Prepared)]
            found = iter(self._matches(good, options))
            for item, image in read:
                answer = (
                    {"matches": next(found)}
                    if isinstance(image, Prepared)
                    else {"error": stream.reason(item, image)}
                )
                yield {"file": item.file, **answer}

    def _matches(
        self, read: list[tuple[Item, Prepared]], options: SearchConfig
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the matches of each picture, the same picture before all others, or left out."""
        if not read:
            return
        copies = [self._same(item) for item, _ in read]
        count = options.top + (max(map(len, copies)) if options.others else 0)
        vectors = self._encode([image for _, image in read])
        rows = (
            (similarity, place)
            for part in neighbours.nearest(vectors, self.vectors, count)
            for similarity, place in zip(part.similarity.tolist(), part.place.tolist(), strict=True)
        )
        for same, (similarity, place) in zip(copies, rows, strict=True):
            found = [
                self._match(row, value, row in same) for value, row in zip(similarity, place, strict=True)
            ]
            if options.others:
                found = [each for each in found if not each["same"]]
            yield sorted(found, key=lambda each: not each["same"])[: options.top]

    def _match(self, row: int, similarity: float, same: bool) -> dict[str, Any]:
        bank = self.bank
        return {
            "file": str(bank.files[row]),
            "label": str(bank.labels[row]) or None,
            "split": str(bank.splits[row]),
            "similarity": max(-1.0, min(1.0, similarity)),
            "same": same,
        }

    @torch.inference_mode()
    def _encode(self, pictures: list[Prepared]) -> np.ndarray:
        about = self.bank.about["model"]
        images, mask = self.classifier.collate(pictures)
        place = {"layer": about["layer"], "pooling": about["pooling"]}
        return unit(self.classifier.model.encode(images, mask, **place).float().cpu().numpy())

    def _same(self, item: Item) -> set[int]:
        """Return the rows whose content is the query's: byte for byte, or pixel for pixel of arrays."""
        source = item.file if item.data is None else item.data
        if self.bank.about["data"].get("arrays") is True:
            source = self._pixels(source).tobytes()
        elif isinstance(source, str):
            source = read_file(source)
        return set(self.copies.get(content.digest(source), ())) if isinstance(source, bytes) else set()

    def _pixels(self, source: Any) -> np.ndarray:
        channels = self.classifier.preprocess.preprocessing.channels
        if isinstance(source, str | bytes):
            return to_pixels(decode(source, channels)) if channels in (1, 3) else np.empty(0)
        return np.asarray(source)


def summary(document: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows of the table that people see."""
    rows: list[list[Any]] = []
    for entry in document:
        if "error" in entry:
            rows.append([entry["file"], "", "", "", f"error: {entry['error']}"])
        for number, match in enumerate(entry.get("matches", [])):
            said = f"{match['similarity']:.3f}{' (the same picture)' if match['same'] else ''}"
            first = entry["file"] if number == 0 else ""
            rows.append([first, match["file"], match["label"] or "", match["split"], said])
    return ["query", "match", "label", "split", "similarity"], rows


def require_some(document: list[dict[str, Any]]) -> None:
    """Raise a DataError if no query could be read."""
    failed = [entry for entry in document if "error" in entry]
    if failed and len(failed) == len(document):
        first = f"{failed[0]['file']}: {failed[0]['error']}"
        raise DataError(f"none of the {len(failed):,} queries could be read: {first}")
