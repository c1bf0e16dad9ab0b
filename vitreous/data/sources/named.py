"""DATA as a name: the bundled digits, and torchvision's sets, read from the data root or downloaded into
it."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.sources import arrays
from vitreous.data.sources.found import Found, Label
from vitreous.data.split import EncodedImages, Images
from vitreous.data.store import cache_root
from vitreous.errors import DataError

DIGITS = [str(digit) for digit in range(10)]
FASHION = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]


def open_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's 1,797 digits: uint8 (N, 8, 8, 1), whose 17 grey levels are spread over 0 to 255,
    and labels."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    return np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None], bunch.target.astype(np.int64)


def open_source(name: str, data_root: Path | None) -> Found:
    """Open a named set below `data_root` (default: in the cache), after a download where it is missing."""
    root = data_root or cache_root() / "data"
    reader = READERS[name]
    found = reader(name, root)
    if found is None:
        _download(name, root)
        found = reader(name, root)
    if found is None:
        raise DataError(f"{name}: downloaded into {root}, but not found there")
    return found


def _download(name: str, root: Path) -> None:
    """Let torchvision download a set; without a network say so in one line."""
    import torchvision.datasets

    kind, _, options = TORCHVISION[name]
    try:
        root.mkdir(parents=True, exist_ok=True)
        for option in options.values():
            getattr(torchvision.datasets, kind)(str(root), download=True, **option)
    except Exception as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise DataError(
            f"{name} is not below {root} and can't be downloaded ({reason}): "
            "put it there, name the folder that has it with --data-root, or use digits, which is bundled"
        ) from None


def _idx(name: str, root: Path) -> Found | None:
    kind = TORCHVISION[name][0]
    for folder in (root / kind / "raw", root / name, root / kind, root):
        files = arrays.find_idx(folder)
        if len(files) == 2:
            clothes = name == "fashion-mnist"
            return arrays.open_idx(files, FASHION if clothes else DIGITS, mirror=clothes)
    return None


class _PlainUnpickler(pickle.Unpickler):
    """Reads CIFAR's pickles of dictionaries, bytes and byte arrays; any other class or function is
    refused."""

    ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise DataError(
                f"a CIFAR file names {module}.{name}, which it has no use for: the file was tampered with"
            )
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _cifar(name: str, root: Path) -> Found | None:
    fine = name == "cifar100"
    folder_name = "cifar-100-python" if fine else "cifar-10-batches-py"
    folder = next(
        (f for f in (root / folder_name, root / name, root) if (f / _cifar_meta(fine)).is_file()), None
    )
    if folder is None:
        return None
    files = {"train": ["train"], "test": ["test"]} if fine else CIFAR10_FILES
    try:
        meta = _plain(folder / _cifar_meta(fine))
        names = meta["fine_label_names" if fine else "label_names"]
        loaded = {}
        for split, parts in files.items():
            batches = [_plain(folder / part) for part in parts]
            images = np.concatenate([np.asarray(batch["data"], np.uint8) for batch in batches])
            targets = np.concatenate(
                [np.asarray(batch["fine_labels" if fine else "labels"]) for batch in batches]
            )
            loaded[split] = (images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), targets)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{folder}: not a readable {name}: {error}") from None
    return arrays.arrays_found(str(folder), loaded, list(names))


CIFAR10_FILES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def _cifar_meta(fine: bool) -> str:
    return "meta" if fine else "batches.meta"


def _plain(path: Path) -> dict[str, Any]:
    return _PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()


def _by_torchvision(name: str, root: Path) -> Found | None:
    """Open a set of image files through torchvision's class, which knows where its lists are."""
    import torchvision.datasets

    kind, attributes, options = TORCHVISION[name]
    splits: dict[str, tuple[Images, list[Label]]] = {}
    names: list[str] | None = None
    for split, option in options.items():
        try:
            part = getattr(torchvision.datasets, kind)(str(root), download=False, **option)
        except Exception:  # torchvision raises what it likes for a set that is missing or half there
            return None
        files, targets = _attribute(part, attributes[0]), _attribute(part, attributes[1])
        paths = [str(file) for file in files]
        splits[split] = (
            EncodedImages(paths, [_below(path, root) for path in paths]),
            [int(t) for t in targets],
        )
        classes = getattr(part, "classes", None)
        names = [str(c) for c in classes] if isinstance(classes, list | tuple) else names
    return Found(splits, names)


def _attribute(part: object, name: str) -> list[Any]:
    if name.startswith("samples"):
        return [sample[int(name[-1])] for sample in getattr(part, "_samples", None) or part.samples]  # pyright: ignore[reportAttributeAccessIssue]
    return list(getattr(part, name))


def _below(path: str, root: Path) -> str:
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


# name → torchvision's class, its attributes with the files and the labels, and the options of each split
_SAMPLES = ("samples0", "samples1")
_FILES = ("_image_files", "_labels")
_THREE = {split: {"split": split} for split in ("train", "val", "test")}
_TWO = {split: {"split": split} for split in ("train", "test")}
_TRAIN_TEST = {"train": {"train": True}, "test": {"train": False}}
TORCHVISION: dict[str, tuple[str, tuple[str, str], dict[str, dict[str, Any]]]] = {
    "mnist": ("MNIST", ("", ""), _TRAIN_TEST),
    "fashion-mnist": ("FashionMNIST", ("", ""), _TRAIN_TEST),
    "kmnist": ("KMNIST", ("", ""), _TRAIN_TEST),
    "cifar10": ("CIFAR10", ("", ""), _TRAIN_TEST),
    "cifar100": ("CIFAR100", ("", ""), _TRAIN_TEST),
    "flowers102": ("Flowers102", _FILES, _THREE),
    "pets": (
        "OxfordIIITPet",
        ("_images", "_labels"),
        {"train": {"split": "trainval"}, "test": {"split": "test"}},
    ),
    "food101": ("Food101", _FILES, _TWO),
    "dtd": ("DTD", _FILES, _THREE),
    "aircraft": ("FGVCAircraft", _FILES, _THREE),
    "gtsrb": ("GTSRB", _SAMPLES, _TWO),
    "eurosat": ("EuroSAT", _SAMPLES, {"train": {}}),
    "country211": (
        "Country211",
        _SAMPLES,
        {"train": {"split": "train"}, "val": {"split": "valid"}, "test": {"split": "test"}},
    ),
}
READERS: dict[str, Callable[[str, Path], Found | None]] = {
    name: _idx if name.endswith("mnist") else _cifar if name.startswith("cifar") else _by_torchvision
    for name in TORCHVISION
}
NAMES = ("digits", *TORCHVISION)
