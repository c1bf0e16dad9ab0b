"""DATA as a name: the bundled digits, and torchvision's sets, read from the data root or downloaded into
it."""

import io
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.images import EncodedImages, Images
from vitreous.data.sources import arrays
from vitreous.data.sources.found import Found, Label
from vitreous.errors import DataError
from vitreous.files import cache_root

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


def is_at_hand(name: str, data_root: str | Path) -> bool:
    """Tell whether a named set is below a folder, without a download."""
    return READERS[name](name, Path(data_root)) is not None


def _download(name: str, root: Path) -> None:
    """Let torchvision download a set; without a network, fail with one line."""
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

    kind, kept, options = TORCHVISION[name]
    assert kept is not None
    splits: dict[str, tuple[Images, list[Label]]] = {}
    names: list[str] | None = None
    for split, option in options.items():
        try:
            part = getattr(torchvision.datasets, kind)(str(root), download=False, **option)
        except Exception:  # torchvision raises errors of any kind for a set that is missing or incomplete
            return None
        files, targets = kept(part)
        paths = [str(file) for file in files]
        splits[split] = (
            EncodedImages(paths, [_below(path, root) for path in paths]),
            [int(t) for t in targets],
        )
        classes = getattr(part, "classes", None)
        names = [str(c) for c in classes] if isinstance(classes, list | tuple) else names
    return Found(splits, names)


def _below(path: str, root: Path) -> str:
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


# How each class of torchvision keeps its files and their labels.
Kept = Callable[[Any], tuple[Sequence[Any], Sequence[Any]]]


def _lists(part: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    return part._image_files, part._labels


def _pets(part: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    return part._images, part._labels


def _samples(part: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    pairs = getattr(part, "_samples", None) or part.samples
    return [file for file, _ in pairs], [label for _, label in pairs]


def _caltech(name: str, root: Path) -> Found | None:
    """Read the class folders themselves: torchvision's class makes a folder where there is none."""
    folder = root / "caltech101" / "101_ObjectCategories"
    classes = sorted(path for path in folder.glob("*") if path.name != "BACKGROUND_Google" and path.is_dir())
    files = [(str(file), label) for label, path in enumerate(classes) for file in sorted(path.glob("*.jpg"))]
    if not files:
        return None
    paths = [path for path, _ in files]
    images = EncodedImages(paths, [_below(path, root) for path in paths])
    return Found({"train": (images, [label for _, label in files])}, [path.name for path in classes])


def _svhn(name: str, root: Path) -> Found | None:
    """Read the cropped digits' two files; in them the digit 0 is labelled 10."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    files = {split: root / f"{split}_32x32.mat" for split in ("train", "test")}
    if not all(file.is_file() for file in files.values()):
        return None
    loaded = {}
    for split, file in files.items():
        try:
            held = loadmat(file, variable_names=["X", "y"])
            loaded[split] = (held["X"].transpose(3, 0, 1, 2), held["y"].astype(np.int64).ravel() % 10)
        except (OSError, ValueError, KeyError, TypeError, NotImplementedError, MatReadError) as error:
            raise DataError(f"{file}: not a readable file of SVHN: {error}") from None
    return arrays.arrays_found(str(root), loaded, DIGITS, mirror=False)


def _pcam(name: str, root: Path) -> Found | None:
    """Read PatchCamelyon's HDF5 files into memory (9 GB: 327,680 patches of 96 x 96)."""
    parts = {"train": "train", "val": "valid", "test": "test"}
    pattern = "camelyonpatch_level_2_split_{}_{}.h5"
    files = {
        split: [root / "pcam" / pattern.format(part, letter) for letter in "xy"]
        for split, part in parts.items()
    }
    if not all(file.is_file() for pair in files.values() for file in pair):
        return None
    try:
        import h5py
    except ImportError:
        raise DataError("pcam is kept as HDF5: `pip install h5py` to read it") from None
    loaded = {}
    for split, (x, y) in files.items():
        try:
            with h5py.File(x) as images, h5py.File(y) as targets:
                loaded[split] = (np.asarray(images["x"]), np.asarray(targets["y"]).astype(np.int64).ravel())
        except (OSError, KeyError) as error:
            raise DataError(f"{x}: not a readable file of PatchCamelyon: {error}") from None
    return arrays.arrays_found(str(root / "pcam"), loaded, ["normal", "tumor"])


# name → torchvision's class, where it keeps files and labels (None: our own reader), each split's options
_THREE = {split: {"split": split} for split in ("train", "val", "test")}
_TWO = {split: {"split": split} for split in ("train", "test")}
_TRAIN_TEST = {"train": {"train": True}, "test": {"train": False}}
TORCHVISION: dict[str, tuple[str, Kept | None, dict[str, dict[str, Any]]]] = {
    "mnist": ("MNIST", None, _TRAIN_TEST),
    "fashion-mnist": ("FashionMNIST", None, _TRAIN_TEST),
    "kmnist": ("KMNIST", None, _TRAIN_TEST),
    "cifar10": ("CIFAR10", None, _TRAIN_TEST),
    "cifar100": ("CIFAR100", None, _TRAIN_TEST),
    "svhn": ("SVHN", None, _TWO),
    "pcam": ("PCAM", None, _THREE),
    "caltech101": ("Caltech101", None, {"train": {}}),
    "flowers102": ("Flowers102", _lists, _THREE),
    "pets": ("OxfordIIITPet", _pets, {"train": {"split": "trainval"}, "test": {"split": "test"}}),
    "food101": ("Food101", _lists, _TWO),
    "dtd": ("DTD", _lists, _THREE),
    "sun397": ("SUN397", _lists, {"train": {}}),
    "clevr": ("CLEVRClassification", _lists, {"train": {"split": "train"}, "test": {"split": "val"}}),
    "aircraft": ("FGVCAircraft", _lists, _THREE),
    "gtsrb": ("GTSRB", _samples, _TWO),
    "eurosat": ("EuroSAT", _samples, {"train": {}}),
    "country211": (
        "Country211",
        _samples,
        {"train": {"split": "train"}, "val": {"split": "valid"}, "test": {"split": "test"}},
    ),
}
Reader = Callable[[str, Path], Found | None]
OWN: dict[str, Reader] = {
    **dict.fromkeys(("mnist", "fashion-mnist", "kmnist"), _idx),
    **dict.fromkeys(("cifar10", "cifar100"), _cifar),
    "svhn": _svhn,
    "pcam": _pcam,
    "caltech101": _caltech,
}
READERS: dict[str, Reader] = {name: OWN.get(name, _by_torchvision) for name in TORCHVISION}
NAMES = ("digits", *TORCHVISION)
