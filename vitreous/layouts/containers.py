"""Files of weights, opened without executing anything in them: tensors by name, and the documents with them.

`.safetensors` (sharded too), `.npz`, and `.pth`, `.pt` or `.bin` through torch's restricted unpickler. What a
header promises is checked against the file before memory is taken.
"""

import json
import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as shown  # what a file says may be long
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitreous import files
from vitreous.errors import CheckpointError, MissingDependencyError
from vitreous.models.weights import MOST_TENSORS
from vitreous.written import as_json

DOCUMENTS = ("config.json", "preprocessor_config.json")
FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "model.npz")
WRAPPERS = ("model", "state_dict", "model_state", "module", "model_ema", "teacher", "ema")


MOST_NAME, MOST_WRAPPED, MOST_DOCUMENT = 500, 8, 16_000_000
UNPACKED_FREE, UNPACKED_TIMES = 64 << 20, 4
"""An archive may unpack to this many bytes plus this many times its own size: a new head is all zeros."""

Hints = dict[str, Any]
"""Fields of a configuration that are known from other sources than the weights."""


@dataclass(kw_only=True)
class Container:
    """What a file or folder holds: tensors by the names of its layout, and JSON documents beside them."""

    tensors: dict[str, Tensor]
    documents: dict[str, Any] = field(default_factory=dict)

    def document(self, name: str) -> dict[str, Any]:
        """Return a document that is an object, or an empty one."""
        value = self.documents.get(name)
        return value if isinstance(value, dict) else {}


def read(path: Path) -> Container:
    """Open a file of weights, or a folder with one and its configuration."""
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if path.is_dir():
        documents = {name: read_json(path / name) for name in DOCUMENTS if (path / name).is_file()}
        found = next((path / name for name in FILES if (path / name).is_file()), None)
        if found is None:
            raise CheckpointError(f"{path} has no weights: expected one of {', '.join(FILES)}")
        return Container(tensors=_checked(_tensors(found), found), documents=documents)
    # A file on its own is taken on its own: documents that happen to lie beside it may be another model's.
    return Container(tensors=_checked(_tensors(path), path))


def write(container: Container, path: Path) -> Path:
    """Write a file of weights, by its ending, or a folder with `model.safetensors` and the documents."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in container.tensors.items()}
    if path.suffix == ".npz":
        with files.atomic(path) as temporary, temporary.open("wb") as file:
            arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
            np.savez(file, **arrays)
        return path
    if path.suffix in (".pth", ".pt"):
        with files.atomic(path) as temporary:
            torch.save(tensors, temporary)
        return path
    if path.suffix != ".safetensors":
        for name, document in container.documents.items():
            files.write_text(path / name, as_json(document, indent=2) + "\n")
        path = path / "model.safetensors"
    with files.atomic(path) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    return path


def fetch(source: str) -> Path:
    """Download `hf://owner/name[@revision]` into huggingface-hub's cache, and return its folder."""
    match = re.fullmatch(r"hf://(\w[\w.-]*/\w[\w.-]*)(?:@([\w./-]+))?", source)
    if match is None:
        raise CheckpointError(
            f"{source} is not a repository: write hf://owner/name or hf://owner/name@revision"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingDependencyError("hf:// needs huggingface-hub: pip install huggingface-hub") from None
    try:
        patterns = [*DOCUMENTS, *FILES, "model-*.safetensors"]
        return Path(snapshot_download(match[1], revision=match[2], allow_patterns=patterns))
    except Exception as error:  # the hub raises a dozen kinds; its first line says which
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{source} could not be fetched: {reason}") from None


def read_json(path: Path) -> Any:
    """Read a small JSON document."""
    try:
        if path.stat().st_size > MOST_DOCUMENT:
            raise CheckpointError(f"{path} is too large for a configuration: at most {MOST_DOCUMENT:,} bytes")
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None


def _tensors(path: Path) -> dict[str, Tensor]:
    if path.stat().st_size == 0:
        raise CheckpointError(f"{path} is empty")
    if path.name.endswith(".index.json"):
        return _sharded(path)
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if path.suffix == ".npz":
        return _npz(path)
    if path.suffix in (".pth", ".pt", ".bin", ".ckpt"):
        return _unwrap(_pickled(path), path)
    raise CheckpointError(
        f"{path} is not a known kind of file: expected .safetensors, .npz, .pth, .pt, .bin or a folder"
    )


def _checked(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Refuse names and tensors that no model has, and tensors that are larger than what holds them."""
    for name, tensor in tensors.items():
        if len(name) > MOST_NAME:
            raise CheckpointError(f"{path} has a name of {len(name):,} characters: {name[:40]}…")
        if tensor.layout != torch.strided or tensor.is_meta or tensor.numel() == 0:
            raise CheckpointError(
                f"{path} can't be used: {name} of {list(tensor.shape)[:8]} is empty, sparse or without values"
            )
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CheckpointError(
                f"{path} can't be used: {name} of {list(tensor.shape)[:8]} is larger than what it stores"
            )
    return tensors


def _check_count(count: int, path: Path) -> None:
    if count > MOST_TENSORS:
        raise CheckpointError(f"{path} has {count:,} tensors: a model has at most {MOST_TENSORS:,}")


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            _check_count(len(names), path)
            return {name: file.get_tensor(name) for name in names}
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Return the first line of a reader's error, cut short."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _sharded(path: Path) -> dict[str, Tensor]:
    index = read_json(path)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict):
        raise CheckpointError(f"{path} has no weight_map")
    tensors: dict[str, Tensor] = {}
    _check_count(len(shards), path)
    for name in shards.values():
        if not isinstance(name, str) or not re.fullmatch(r"[\w-][\w.-]{0,200}\.safetensors", name):
            raise CheckpointError(
                f"{path} names the shard {shown(name)}: shards are .safetensors files in the same folder"
            )
    for name in sorted(set(shards.values())):
        if not (path.parent / name).is_file():
            raise CheckpointError(f"{path.parent} lacks the shard {name}")
        tensors |= _safetensors(path.parent / name)
    if missing := sorted(shards.keys() - tensors.keys()):
        raise CheckpointError(
            f"the shards of {path.parent} lack {missing[0][:MOST_NAME]} and {len(missing) - 1} more tensors"
        )
    return tensors


def _npz(path: Path) -> dict[str, Tensor]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            _check_count(len(members), path)
            _check_size(members, path)
            for member in members:
                _check_member(archive, member, path)
        with np.load(path, allow_pickle=False) as arrays:
            return {member.filename[:-4]: _tensor(arrays[member.filename[:-4]]) for member in members}
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path} is not a whole .npz of plain arrays: {_reason(error)}") from None


def _check_size(members: list[zipfile.ZipInfo], path: Path) -> None:
    """Refuse an archive that unpacks to far more than weights do: they hardly shrink."""
    unpacked, packed = sum(member.file_size for member in members), path.stat().st_size
    if unpacked > UNPACKED_FREE + UNPACKED_TIMES * packed:
        raise CheckpointError(
            f"{path} would unpack from {packed:,} to {unpacked:,} bytes, as weights never do; "
            f"at most {UNPACKED_TIMES} times its size is taken"
        )


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(file)
        promised = file.tell() + math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise CheckpointError(f"{path} holds Python objects in {member.filename}, which are never read")
    if promised != member.file_size:
        raise CheckpointError(f"{path} is not whole: {member.filename} promises {promised:,} bytes")


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:  # JAX writes bfloat16 as raw two-byte values
        return torch.from_numpy(array.view(np.uint16).astype(np.int32) << 16).view(torch.float32)
    return torch.from_numpy(np.ascontiguousarray(array))


def _pickled(path: Path) -> Any:
    try:
        zipped = zipfile.is_zipfile(path)
        if zipped:
            _check_stored(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old pickles: they are read, or refused with an error
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it wants {wanted[1]}" if wanted else "it wants more than tensors"
        raise CheckpointError(
            f"{path} was refused: {what}, and loading that could run code; "
            "save the plain state dict as .safetensors where you trust the file"
        ) from None
    except Exception as error:
        raise CheckpointError(f"{path} is not a whole PyTorch file: {_reason(error)}") from None


def _check_stored(path: Path) -> None:
    """Refuse a PyTorch file with compressed parts: torch writes none, and they may unpack to any size."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                raise CheckpointError(
                    f"{path} is compressed ({member.filename[:60]}), as torch never writes: save it again"
                )


def _unwrap(value: Any, path: Path) -> dict[str, Tensor]:
    for _ in range(MOST_WRAPPED):
        if not isinstance(value, Mapping) or any(isinstance(each, Tensor) for each in value.values()):
            break
        inner = next((value[name] for name in WRAPPERS if isinstance(value.get(name), Mapping)), None)
        if inner is None:
            break
        value = inner
    entries = value if isinstance(value, Mapping) else {}
    tensors = {
        name: each for name, each in entries.items() if isinstance(name, str) and isinstance(each, Tensor)
    }
    _check_count(len(tensors), path)
    if not tensors:
        raise CheckpointError(f"{path} holds no tensors by name: expected a state dict")
    for prefix in ("module.", "_orig_mod.", "backbone.", "model."):
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors
