"""`vitreous embed`: the features of every picture of a data set, in one file."""

import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import parallel
from vitreous.config import EmbedConfig
from vitreous.data import InMemory
from vitreous.data.images import ArrayImages
from vitreous.errors import DataError, OptionError
from vitreous.evals import features
from vitreous.features import index
from vitreous.features.gather import Pictures, gather, load_model, open_any
from vitreous.features.index import Index
from vitreous.predict import Classifier
from vitreous.version import __version__


def embed(source: str, data: str | InMemory, options: EmbedConfig) -> dict[str, Any]:
    """Write the index of a data set; return what is in it."""
    path = Path(options.out)
    if path.suffix != ".npz":
        raise OptionError(f"--out {path} is not an .npz file: give a name that ends in .npz")
    source_of_data = place(str(data), options.data_root)
    _keep_others(path, source_of_data)
    dataset = open_any(data, options.data_root)
    classifier = load_model(source, options)
    pictures = gather(classifier, dataset, options)
    about = {
        "version": __version__,
        "model": describe(source, classifier, options),
        "data": {
            "source": source_of_data,
            "data_root": options.data_root and os.path.abspath(options.data_root),
            "arrays": isinstance(pictures.whole.images, ArrayImages),
            "fingerprint": dataset.fingerprint,
        },
    }
    index.write(path, of(pictures, about))
    return {
        "path": str(path),
        "count": len(pictures),
        "width": pictures.features.shape[1],
        "splits": dict(Counter(pictures.splits)),
        "classes": len(dataset.labels) if pictures.labelled else 0,
        "checksum": about["model"]["checksum"],
        "bad_files": pictures.bad,
    }


def _keep_others(path: Path, data: str) -> None:
    """Refuse to write over the features of other data: they may have taken hours."""
    if path.is_file():
        try:
            held = f"the features of {index.read(path).about['data']['source']}"
        except DataError:
            held = "something other than features"
        if held != f"the features of {data}":
            raise OptionError(f"{path} holds {held}: choose another --out, or remove it")


def of(pictures: Pictures, about: dict[str, Any]) -> Index:
    """Return pictures as an index holds them; of those without labels, every target is -1."""
    labelled = pictures.labelled
    return Index(
        features=pictures.features,
        files=np.array(pictures.files, str),
        labels=np.array(pictures.labels, str),
        splits=np.array(pictures.splits, str),
        targets=pictures.targets if labelled else np.full(len(pictures), -1, np.int64),
        classes=np.array(pictures.dataset.labels if labelled else [], str),
        digests=pictures.whole.digests[pictures.rows],
        about=about,
    )


def describe(source: str, classifier: Classifier, options: EmbedConfig) -> dict[str, Any]:
    """Return what an index records about the model that made it."""
    preprocessing = classifier.preprocess.preprocessing
    return {
        "source": place(source),
        "checksum": features.identity(
            classifier.model, preprocessing, layer=options.layer, pooling=options.pooling
        ),
        "labels": classifier.labels,
        "preprocessing": asdict(preprocessing),
        "layer": options.layer,
        "pooling": options.pooling,
        "arithmetic": parallel.precision(options.precision, classifier.device),
    }


def place(text: str, root: str | None = None) -> str:
    """Return a path that is valid from any folder; names of models and data stay as they are."""
    for path in (Path(text).expanduser(), *([Path(root) / text] if root else [])):
        if path.exists():
            return os.path.abspath(path)
    return text


def summary(document: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the rows of the table that people see."""
    parts = ", ".join(f"{count:,} {name}" for name, count in document["splits"].items())
    rows: list[tuple[str, Any]] = [
        ("pictures", f"{document['count']:,} ({parts})"),
        ("classes", document["classes"] or "none: without labels"),
        ("width", document["width"]),
        ("model", document["checksum"]),
        ("file", document["path"]),
    ]
    if document["bad_files"]:
        rows.insert(1, ("unreadable files", len(document["bad_files"])))
    return rows
