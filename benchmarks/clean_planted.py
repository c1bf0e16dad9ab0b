"""Faults planted into real photographs, and what `vitreous clean` finds of them.

    python benchmarks/clean_planted.py FOLDER FOREIGN… [--classes 10] [--per-class 60] [--seed 1] [--rules]

FOLDER has class folders, FOREIGN are folders with other pictures. Planted are: one label in twenty, moved to
another class; copies of one picture in ten, in turn encoded anew (0.6 of the size, JPEG quality 50), cropped
by up to 8 % at each edge, mirrored, brightened by 15 %; and one foreign picture for every thirty. What FOLDER
had of its own (copies, wrong labels) counts as a false alarm. `--rules` also measures other rules for labels.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import vitreous
from vitreous import console
from vitreous.config import CleanConfig
from vitreous.data.decode import SUFFIXES
from vitreous.evals import knn, mislabelled
from vitreous.features import copies
from vitreous.features.gather import Pictures, gather, load_model, open_any

KINDS = ("encoded", "cropped", "mirrored", "brightened")


def files(folder: Path) -> list[Path]:
    """Return the pictures below a folder."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def changed(path: Path, kind: str, generator: np.random.Generator) -> Image.Image:
    """Return a copy of a picture that is not quite the same."""
    image = Image.open(path).convert("RGB")
    width, height = image.size
    if kind == "encoded":
        return image.resize((round(0.6 * width), round(0.6 * height)))
    if kind == "cropped":
        left, top, right, bottom = generator.uniform(0, 0.08, 4) * (width, height, width, height)
        return image.crop((round(left), round(top), round(width - right), round(height - bottom)))
    if kind == "mirrored":
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image.point([min(255, round(1.15 * value + 8)) for value in range(256)] * 3)


class Planted:
    """A folder with faults, and what they are."""

    def __init__(self, root: Path, source: Path, foreign: list[Path], options: argparse.Namespace) -> None:
        generator = np.random.default_rng(options.seed)
        folders = [each for each in sorted(source.iterdir()) if len(files(each)) >= options.per_class]
        folders = folders[: options.classes]
        names = [folder.name for folder in folders]
        rows = [
            (path, folder.name)
            for folder in folders
            for path in generator.permutation(np.array(files(folder), object))[: options.per_class]
        ]
        order = generator.permutation(len(rows)).tolist()
        moved, copied = len(rows) // 20, len(rows) // 10
        self.wrong: set[str] = set()
        for place, row in enumerate(order):
            path, label = rows[row]
            if place < moved:
                label = str(generator.choice([name for name in names if name != label]))
                self.wrong.add(f"{label}/{path.name}")
            (root / label).mkdir(exist_ok=True)
            (root / label / path.name).symlink_to(path.resolve())
        self.copies: dict[str, tuple[str, str]] = {}
        for number, row in enumerate(order[moved : moved + copied]):
            path, label = rows[row]
            kind, name = KINDS[number % len(KINDS)], f"{label}/planted-{number:04d}.jpg"
            quality = 50 if kind == "encoded" else 85
            changed(path, kind, generator).save(root / name, quality=quality)
            self.copies[name] = (f"{label}/{path.name}", kind)
        others = np.array([path for folder in foreign for path in files(folder)], object)
        self.foreign: set[str] = set()
        for number, path in enumerate(generator.choice(others, len(rows) // 30, replace=False)):
            name = f"{generator.choice(names)}/foreign-{number:04d}{path.suffix}"
            (root / name).symlink_to(path.resolve())
            self.foreign.add(name)


def share(found: set[str], truth: set[str]) -> list[str]:
    """Return how many were found, how many of them are right, and how many of the true ones were found."""
    right = len(found & truth)
    return [
        f"{len(found)}",
        f"{right / max(1, len(found)):.0%} ({right})",
        f"{right / len(truth):.0%} ({right} of {len(truth)})",
    ]


def copies_found(document: vitreous.Figures, planted: Planted) -> list[list[str]]:
    """Return rows about copies: in all, and how many of each kind were found."""
    groups = [{each["file"] for each in group["files"]} for group in document["near_copies"]]
    true = {frozenset((name, first)) for name, (first, _) in planted.copies.items()}
    found = {copy for copy, (first, _) in planted.copies.items() if any({copy, first} <= g for g in groups)}
    alone = [sorted(group) for group in groups if not any(pair <= group for pair in true)]
    rows = [["copies", *share(found | {f"own {group}" for group in alone}, set(planted.copies))]]
    for kind in KINDS:
        of_kind = {name for name, (_, own) in planted.copies.items() if own == kind}
        rows.append([f"  {kind}", "", "", share(found & of_kind, of_kind)[2]])
    for group in alone:
        console.note(f"not planted: {' ~ '.join(group)}")
    return rows


def other_rules(pictures: Pictures, planted: Planted) -> list[list[str]]:
    """Return rows about labels by other rules: confident learning alone, and by neighbours."""
    groups = copies.groups(len(pictures), copies.find(pictures))
    targets, classes = pictures.targets, len(pictures.dataset.labels)
    fold = mislabelled.folds(targets, groups)
    strength = mislabelled.STRONGER * mislabelled.choose(pictures.features, targets, classes, fold)
    by_regression = mislabelled.probabilities(pictures.features, targets, classes, fold, strength)
    by_neighbours = np.zeros_like(by_regression)
    for number in range(mislabelled.FOLDS):
        out = fold == number
        known = pictures.features[~out], targets[~out]
        by_neighbours[out] = knn.scores(*known, pictures.features[out], classes, [20])[20]
    rows = []
    for name, held_out in (("regression", by_regression), ("20 neighbours", by_neighbours)):
        usual = np.array([held_out[targets == k, k].mean() for k in range(classes)])
        others = np.where(held_out >= usual, held_out, -1)
        plain = (others.max(1) >= 0) & (others.argmax(1) != targets)
        ours = mislabelled.doubts(held_out, targets).doubted
        for rule, doubted in (("confident learning", plain), ("this rule", ours)):
            found = {pictures.files[row] for row in np.flatnonzero(doubted)} - planted.foreign
            rows.append([f"labels, {name}, {rule}", *share(found, planted.wrong)])
    return rows


def main() -> None:
    """Plant, clean, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("foreign", type=Path, nargs="+")
    parser.add_argument("--checkpoint", default="tiny")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--per-class", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rules", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as held:
        root, cache = Path(held) / "data", Path(held) / "cache"
        root.mkdir()
        planted = Planted(root, options.folder, options.foreign, options)
        document = vitreous.clean(options.checkpoint, root, cache=cache, device="cpu")
        wrong = {each["file"] for each in document["wrong_labels"]} - planted.foreign
        rows = [
            ["wrong labels", *share(wrong, planted.wrong)],
            *copies_found(document, planted),
            ["outliers", *share({each["file"] for each in document["outliers"]}, planted.foreign)],
        ]
        if options.rules:
            config = CleanConfig(cache=str(cache), device="cpu")
            model = load_model(options.checkpoint, config)
            rows += other_rules(gather(model, open_any(str(root), None), config), planted)
    console.note(f"{document['count']} pictures")
    console.table(["planted", "found", "precision", "recall"], rows)


if __name__ == "__main__":
    main()
