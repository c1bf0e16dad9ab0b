"""Files of weights that lie, are damaged, or ask for too much: each maker returns the bytes of one file.

The end of a maker's name is the kind of file; `.zip` is a folder, to be unpacked. A maker draws what is wrong
from the generator that it is given, so that a seed makes the same file again.
"""

import io
import json
import pickle
import random
import struct
import tempfile
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

Document = dict[str, Any]
DEEP = "\0deep\0"
"""Stands for a document nested more deeply than a reader can follow; put in as text."""
VALUES: list[Any] = [
    None, True, -1, 0, 1, 3, 10**9, 10**30, -(10**18), 0.5, 1e-300, 1e308, float("nan"), float("inf"),
    "", "x", "x" * 10**5, [], [1], [[1, 2]], [0.5] * 3, [10**9, 10**9], [-16, 16], {}, {"a": 1}, DEEP,
]  # fmt: skip
DTYPES = ["BOOL", "U8", "I64", "F16", "BF16", "F64", "F8_E4M3", "F4", "C64", "X", ""]


def place(name: str, data: bytes, folder: Path) -> Path:
    """Put what a maker made where it can be loaded from: a file, or a folder."""
    path = folder / "m"
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.extractall(path)
        return path
    path = path.with_suffix(Path(name).suffix)
    path.write_bytes(data)
    return path


def split(data: bytes) -> tuple[Document, bytes]:
    """Take a safetensors file apart: its header as a document, and the bytes of its tensors."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(header: Document | bytes, body: bytes) -> bytes:
    """Put a safetensors file together from any header, whether it is true or not."""
    text = header if isinstance(header, bytes) else to_json(header)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def to_json(value: Any) -> bytes:
    """Return a document as JSON, with what is meant by `DEEP` in its place."""
    return json.dumps(value).replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000).encode()


def described(data: bytes) -> Document:
    """Return the metadata document of a sealed file."""
    return json.loads(split(data)[0]["__metadata__"]["vitreous"])


def resealed(data: bytes, document: Document) -> bytes:
    """Return a sealed file with another document, and a checksum that covers it: a careful liar's file."""
    from vitreous import checkpoint

    sealed = {name: value for name, value in document.items() if name != "seal"}
    return described_as(data, sealed | {"seal": checkpoint.seal(sealed)})


def described_as(data: bytes, document: Document) -> bytes:
    """Return a sealed file with another document, whose checksum is left as it was."""
    header, body = split(data)
    header["__metadata__"]["vitreous"] = to_json(document).decode()
    return join(header, body)


@lru_cache
def whole(layout: str) -> dict[str, bytes]:
    """Return the files of a small model that is right, in one of the layouts."""
    from vitreous.config import Preprocessing
    from vitreous.data.augment import EvaluationTransform
    from vitreous.models.architecture import ViTConfig
    from vitreous.models.zoo import build
    from vitreous.predict import Classifier

    torch.manual_seed(0)
    activation = "gelu_tanh" if layout == "google" else "gelu"
    shape = {"image_size": (16, 16), "patch_size": (8, 8), "width": 16, "mlp_width": 32, "num_classes": 3}
    model = build(ViTConfig(**shape, depth=2, heads=2, activation=activation))  # pyright: ignore[reportArgumentType]
    transform = EvaluationTransform(Preprocessing(image_size=(16, 16)), (8, 8))
    about = {"calibration": {"temperature": 1.5}, "abstain": 0.1, "results": {"val": {"accuracy": 0.5}}}
    names = {"vitreous": "m.safetensors", "google": "m.npz", "torchvision": "m.pth"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / names.get(layout, "")
        Classifier(model.eval(), transform, ["a", "b", "c"], about).save(path, layout)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def _only(layout: str) -> bytes:
    (data,) = whole(layout).values()
    return data


def _zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def mutate(value: Any, draw: random.Random) -> Any:
    """Return a document with one value, key or length changed, anywhere in it."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        rest = {key: each for key, each in value.items() if key != name}
        change = draw.random()
        if change < 0.05:
            return rest
        return rest | {"surprise" if change < 0.1 else name: mutate(value[name], draw)}
    if isinstance(value, list) and value and draw.random() < 0.5:
        place = draw.randrange(len(value))
        return [*value[:place], mutate(value[place], draw), *value[place + draw.randrange(2) :]]
    return draw.choice(VALUES)


def damage(data: bytes, draw: random.Random, most: int = 8) -> bytes:
    """Change a few bytes, or cut the file."""
    if draw.random() < 0.3:
        return data[: draw.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(draw.randint(1, most)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def sealed_values(draw: random.Random) -> bytes:
    """A sealed file whose document has a value that it can't have."""
    data = _only("vitreous")
    document = mutate(described(data), draw)
    return resealed(data, document) if isinstance(document, dict) else described_as(data, document)


def architectures(draw: random.Random) -> bytes:
    """A sealed file whose architecture is not that of its tensors."""
    data = _only("vitreous")
    document = described(data)
    document["architecture"][draw.choice(list(document["architecture"]))] = draw.choice(VALUES)
    return resealed(data, document)


def headers(draw: random.Random) -> bytes:
    """A safetensors file whose header has another type, shape or place for a tensor."""
    header, body = split(whole("timm")["model.safetensors"])
    entry = header[draw.choice([name for name in header if name != "__metadata__"])]
    field = draw.choice(["dtype", "shape", "data_offsets"])
    entry[field] = draw.choice(DTYPES if field == "dtype" and draw.random() < 0.8 else VALUES)
    return join(header, body)


def _names(names: list[str], draw: random.Random) -> dict[str, str]:
    """Return what some tensors are called instead."""
    name = draw.choice(names)
    digits = draw.choice(["1000000000", "9" * 5000, "-1", "7"])
    other = draw.choice([name.replace("0", digits), draw.choice(names) + "x", "", "x" * 10**6, name * 2])
    return {name: other}


def names(draw: random.Random) -> bytes:
    """A safetensors file whose tensors have other names."""
    header, body = split(whole(draw.choice(["timm", "hf"]))["model.safetensors"])
    other = _names([name for name in header if name != "__metadata__"], draw)
    return join({other.get(name, name): entry for name, entry in header.items()}, body)


def shapes(draw: random.Random) -> bytes:
    """A state dict with tensors of other shapes and types, each true to what the file holds."""
    state = torch.load(io.BytesIO(_only("torchvision")), weights_only=True)
    name = draw.choice(list(state))
    others: list[Any] = [
        torch.zeros(()), torch.zeros(0), torch.zeros(2, 0, 3), torch.zeros(1, 1, 1, 1, 1), torch.zeros(3, 5),
        state[name].long(), state[name].to(torch.complex64), state[name] > 0, state[name].to_sparse(),
        torch.zeros(1).expand(10**12), torch.zeros(1).expand(*(10**4,) * max(state[name].ndim, 1)),
        torch.empty(3, device="meta"), state[name].double(), "x", None, state,
    ]  # fmt: skip
    state[name] = draw.choice(others)
    return _saved(state)


def _saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def pickles(draw: random.Random) -> bytes:
    """A pickle that refers to itself, is nested deeply, or is of nothing that can be used."""
    looped: Document = {}
    looped["model"] = looped
    deep: Any = torch.zeros(1)
    for _ in range(draw.choice([20, 300])):
        deep = {"model": deep}
    wide: Any = []
    for _ in range(40):
        wide = [wide, wide]
    made = draw.choice([looped, deep, {"model": wide}, [], {}, {"model": 1}, {1: torch.zeros(1)}, "x", wide])
    return _saved(made) if draw.random() < 0.5 else pickle.dumps(made, protocol=draw.choice([0, 2, 4]))


def deflated_pickles(draw: random.Random) -> bytes:
    """A PyTorch file whose parts are compressed, and unpack to more than a machine has."""
    return _deflated_pickle(draw.choice(["data.pkl", "data/0"]))


@lru_cache
def _deflated_pickle(large: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_saved({"a": torch.zeros(4)}))) as source:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for member in source.namelist():
                data = source.read(member)
                archive.writestr(member, data + bytes(1 << 26) if member.endswith(large) else data)
    return buffer.getvalue()


def deflated_arrays(draw: random.Random) -> bytes:
    """An `.npz` of zeros, a thousand times as large as its file."""
    return _deflated_array(draw.choice([2048, 4096]))


@lru_cache
def _deflated_array(side: int) -> bytes:
    buffer = io.BytesIO()
    names = {"embedding/kernel": (16, 16, 3, side), "cls": (1, 1, side), "head/kernel": (side, 8192)}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape in names.items():
            archive.writestr(f"{name}.npy", _array_header(shape) + bytes(4 * int(np.prod(shape))))
    return buffer.getvalue()


def _array_header(shape: Any, kind: Any = "<f4") -> bytes:
    text = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def array_headers(draw: random.Random) -> bytes:
    """An `.npz` whose arrays say that they are something else."""
    shapes: list[Any] = [(10**12,), (-1,), (), (0,), (2**63,), (2, 10**30), "x", None, [4], (4.0,), (True,)]
    kinds: list[Any] = [
        "<f4",
        ">f4",
        "O",
        "U4",
        "V3",
        "M8[s]",
        "<f16",
        "?",
        "x",
        3,
        [("a", "<f4")],
        "(2,)<f4",
    ]
    made = _array_header(draw.choice(shapes), draw.choice(kinds)) + bytes(draw.choice([0, 4, 16]))
    if draw.random() < 0.2:
        made = b"\x93NUMPY" + bytes([draw.randrange(5), 0, 255, 255]) + b"(" * 60_000
    return _zipped(dict.fromkeys(["embedding/kernel.npy", draw.choice(["cls.npy", "a"])], made))


def arrays(draw: random.Random) -> bytes:
    """Google's file with an array of another shape, type or name, or without it."""
    with np.load(io.BytesIO(_only("google"))) as source:
        given: dict[str, Any] = dict(source)
    name = draw.choice(list(given))
    array = given.pop(name)
    others = [array.T, array.flatten(), array[None], array.astype("<i8"), array[..., :0], np.zeros(())]
    if draw.random() < 0.8:
        given[draw.choice([name, *_names([name], draw).values()])[:1000]] = draw.choice(others)
    buffer = io.BytesIO()
    np.savez(buffer, **given)
    return buffer.getvalue()


def _document(layout: str, name: str, draw: random.Random) -> bytes:
    files = dict(whole(layout))
    document = mutate(json.loads(files[name]), draw)
    files[name] = damage(files[name], draw) if draw.random() < 0.2 else to_json(document)
    return _zipped(files)


def configurations(draw: random.Random) -> bytes:
    """A Hugging Face folder whose `config.json` has a value that it can't have."""
    return _document("hf", "config.json", draw)


def processors(draw: random.Random) -> bytes:
    """A Hugging Face folder whose preprocessing has a value that it can't have."""
    return _document("hf", "preprocessor_config.json", draw)


def timm_configurations(draw: random.Random) -> bytes:
    """timm's folder whose `config.json` has a value that it can't have."""
    return _document("timm", "config.json", draw)


def indexes(draw: random.Random) -> bytes:
    """A folder in shards, whose index is not right."""
    files = dict(whole("hf"))
    data = files.pop("model.safetensors")
    shards: Document = dict.fromkeys(split(data)[0], "model-1.safetensors")
    shards.pop("__metadata__", None)
    index = mutate({"weight_map": shards, "metadata": {}}, draw)
    return _zipped(files | {"model-1.safetensors": data, "model.safetensors.index.json": to_json(index)})


MAKERS: dict[str, Callable[[random.Random], bytes]] = {
    "sealed values.safetensors": sealed_values,
    "architectures.safetensors": architectures,
    "headers.safetensors": headers,
    "names.safetensors": names,
    "damage.safetensors": lambda draw: damage(_only("vitreous"), draw),
    "damage.npz": lambda draw: damage(_only("google"), draw),
    "damage.pth": lambda draw: damage(_only("torchvision"), draw),
    "shapes.pth": shapes,
    "pickles.pth": pickles,
    "deflated.pth": deflated_pickles,
    "deflated.npz": deflated_arrays,
    "array headers.npz": array_headers,
    "arrays.npz": arrays,
    "configurations.zip": configurations,
    "processors.zip": processors,
    "timm configurations.zip": timm_configurations,
    "indexes.zip": indexes,
}
