"""The file that `embed` writes and `search` reads: features, what each picture is, and which model made them.

An uncompressed `.npz` of plain arrays, which numpy reads with `allow_pickle=False`:

    features  float32 (N, D), each of length 1      files, labels, splits  text (N,)
    targets   int64 (N,), or bool (N, K)            classes                text (K,)
    digests   uint8 (N, 16): hashes of the content  about                  one JSON text: model and data
"""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from vitreous.errors import DataError
from vitreous.files import atomic
from vitreous.models.protocol import FeaturePooling

FORMAT = 1
"""Increased when an older reader would misread the file."""
ARRAYS = ("features", "files", "labels", "splits", "targets", "classes", "digests", "about")
TOLERANCE = 1e-3
"""How far a vector's length may be from 1."""


@dataclass(frozen=True)
class Index:
    """The features of some pictures, and what is known of each."""

    features: np.ndarray
    files: np.ndarray
    labels: np.ndarray
    splits: np.ndarray
    targets: np.ndarray
    classes: np.ndarray
    digests: np.ndarray
    about: dict[str, Any]
    """`model`: source, checksum, labels, preprocessing, layer, pooling; `data`: source, data_root, arrays."""

    def __len__(self) -> int:
        return len(self.features)


def write(path: Path, index: Index) -> None:
    """Write the file, whole or not at all."""
    held = {name: getattr(index, name) for name in ARRAYS if name != "about"}
    about = json.dumps({"format": FORMAT, **index.about}, ensure_ascii=False)
    with atomic(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **held, about=np.array(about))


def read(path: Path) -> Index:
    """Read an index; refuse any other file, and one that is damaged or would run code."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: give the .npz file that `vitreous embed` wrote")
    if not path.is_file():
        raise DataError(f"no index at {path}: make one with `vitreous embed CKPT DATA --out {path}`")
    try:
        with path.open("rb") as opened:
            _check_plain(opened)
            with np.load(opened, allow_pickle=False) as file:
                if missing := [name for name in ARRAYS if name not in file.files]:
                    raise ValueError(f"it has no {', '.join(missing)}")
                held = {name: file[name] for name in ARRAYS}
        about = json.loads(str(held.pop("about")))
        _check(held, about)
    except DataError:
        raise
    except Exception as error:  # whatever numpy, zipfile or json raise for these bytes: it is not an index
        raise DataError(
            f"{path} is not a vitreous index: {' '.join(str(error).split())}; make one with `vitreous embed`"
        ) from None
    if about["format"] > FORMAT:
        raise DataError(
            f"{path} has format {about['format']}: this vitreous reads {FORMAT}; install a newer one"
        )
    return Index(**held, about=about)


def _check_plain(file: Any) -> None:
    """Refuse compressed members: unpacked, they could take any amount of memory."""
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        raise ValueError("it is damaged, cut off or of another kind") from None
    with archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ValueError("its arrays are compressed")
    file.seek(0)


def _check(held: dict[str, np.ndarray], about: Any) -> None:
    """Refuse arrays that don't belong together, and a description that lacks what `search` needs."""
    features, count = held["features"], len(held["features"])
    if features.ndim != 2 or features.dtype != np.float32 or not count:
        raise ValueError("features are not float32 (N, D)")
    lengths = np.linalg.norm(features, axis=1)
    if not (np.isclose(lengths, 1.0, atol=TOLERANCE) | (lengths == 0)).all():
        raise ValueError("features are not of length 1")
    for name in ("files", "labels", "splits", "classes"):
        if (
            held[name].ndim != 1
            or held[name].dtype.kind != "U"
            or name != "classes"
            and len(held[name]) != count
        ):
            raise ValueError(f"{name} is not text for each picture")
    if held["digests"].shape != (count, 16) or held["digests"].dtype != np.uint8:
        raise ValueError("digests are not uint8 (N, 16)")
    if len(held["targets"]) != count:
        raise ValueError("targets are not one for each picture")
    if not isinstance(about, dict) or type(about.get("format")) is not int:
        raise ValueError("its description has no format")
    model, data = about.get("model"), about.get("data")
    if not isinstance(model, dict) or not isinstance(data, dict):
        raise ValueError("its description names no model and data")
    size = (model.get("preprocessing") or {}).get("image_size") or []
    known = all(isinstance(model.get(name), str) for name in ("source", "checksum"))
    known &= model.get("pooling") in get_args(FeaturePooling)
    whole = type(model.get("layer")) is int and isinstance(size, list) and len(size) == 2
    if not (known and whole and all(type(side) is int and side > 0 for side in size)):
        raise ValueError("its description of the model is incomplete")
    if not isinstance(data.get("source"), str):
        raise ValueError("its description of the data is incomplete")
