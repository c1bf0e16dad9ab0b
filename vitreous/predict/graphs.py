"""Exported graphs in the user's cache: made and proven once for a model, a runtime and their versions.

Nothing is run from a folder that others can write to, and nothing whose bytes differ from those proven.
"""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from vitreous import files, parallel
from vitreous.errors import VitreousError
from vitreous.export import formats, proof, require, write
from vitreous.export.graph import Precision
from vitreous.export.proof import DisagreementError
from vitreous.predict.classifier import Classifier
from vitreous.predict.engines import Exported
from vitreous.predict.identity import identity
from vitreous.version import __version__

Say = Callable[[str], object]
NAMES = {"onnxruntime": "model.onnx", "openvino": "model.xml"}
"""The file of each runtime."""
PRECISIONS: dict[str, Precision] = {"float32": "fp32", "bf16": "bf16", "int8": "int8"}
RECORD = "proof.json"
KEPT = 8
"""How many graphs stay in the cache: the ones used last."""


def engine(classifier: Classifier, runtime: str, precision: str, say: Say) -> Exported:
    """Return the classifier's graph in a runtime: from the cache, or made, proven and put there."""
    form = formats.choose(Path(NAMES[runtime]), PRECISIONS[precision])
    folder = place(classifier, runtime, precision)
    path = folder / NAMES[runtime]
    if (folder / RECORD).is_file():
        _require_private(folder)
        if _is_whole(folder):
            (folder / RECORD).touch()
            return Exported(form, path, precision)
        say(f"the graph in {folder} is damaged and is made again")
    shutil.rmtree(folder, ignore_errors=True)
    say(f"preparing {runtime} in {precision}, once for this model: exporting it and comparing it with torch")
    made = _make(classifier, form, runtime, precision, folder)
    say(made)
    return Exported(form, path, precision)


def is_made(classifier: Classifier, runtime: str, precision: str) -> bool:
    """Tell whether the cache has the classifier's graph."""
    return (place(classifier, runtime, precision) / RECORD).is_file()


def place(classifier: Classifier, runtime: str, precision: str) -> Path:
    """Return the folder of a graph: one for each model, runtime, version and kind of processor."""
    facts = [
        identity(classifier),
        runtime,
        precision,
        *(version(each) for each in ("onnx", "onnxscript", runtime)),
        *(__version__, str(torch.__version__)),
        *(platform.machine(), torch.backends.cpu.get_cpu_capability()),
        parallel.has_bf16(torch.device("cpu")),
    ]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    return files.cache_root() / "graphs" / key


def _make(classifier: Classifier, form: formats.Format, runtime: str, precision: str, folder: Path) -> str:
    """Write a graph beside its place, prove it, and move it there; return what was found."""
    require(classifier)
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _require_private(folder.parent)
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    draft.mkdir(mode=0o700)
    wanted = PRECISIONS[precision]
    try:
        path = draft / NAMES[runtime]
        write(classifier, path, form, precision=wanted)
        pictures = proof.bundled(classifier, proof.COUNTS[wanted])
        found = proof.compare(classifier, form.open(path, torch.get_num_threads()), pictures)
        if (away := proof.gap(found, wanted)) is not None:
            raise DisagreementError(
                f"{runtime} in {precision} is refused, as it is {away}: use another --precision, or "
                "--runtime torch"
            )
        sums = {each.name: _sum(each) for each in draft.iterdir()}
        record = {
            "files": sums,
            "difference": found.difference,
            "agreement": found.agreement,
            "images": len(pictures),
        }
        files.write_json(draft / RECORD, record)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    _forget_old(folder.parent)
    return (
        f"{found.runtime} in {precision} is {found.difference:.1e} away in probability and agrees on "
        f"{found.agreement:.1%} of the labels of {len(pictures)} images; kept in {folder}"
    )


def _require_private(folder: Path) -> None:
    """Refuse a folder that somebody else could have put a graph into."""
    if not hasattr(os, "getuid"):
        return
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise VitreousError(
            f"{folder} can be written by others, so no graph is run from it: chmod 700 it, or set "
            "VITREOUS_CACHE to a folder of your own"
        )


def _is_whole(folder: Path) -> bool:
    """Tell whether every file has the bytes that were proven."""
    try:
        sums: dict[str, Any] = json.loads((folder / RECORD).read_text())["files"]
        found = {each.name: _sum(each) for each in folder.iterdir() if each.name != RECORD}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return found == sums


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _forget_old(folder: Path) -> None:
    """Remove the graphs that have been unused for longest; a model of 86 M parameters has one of 350 MB."""
    used = [each for each in folder.iterdir() if (each / RECORD).is_file()]
    used.sort(key=lambda each: (each / RECORD).stat().st_mtime, reverse=True)
    for each in used[KEPT:]:
        shutil.rmtree(each, ignore_errors=True)
