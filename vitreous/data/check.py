"""`vitreous check`: what is wrong with a data set, before an hour of training tells; nothing is changed."""

import math
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from vitreous import console
from vitreous.data.bad import LIMIT, LISTED, BadFile, plain
from vitreous.data.decode import decode, open_header
from vitreous.data.images import ArrayImages
from vitreous.data.opening import open_data
from vitreous.data.split import Dataset, Split
from vitreous.errors import DataError

NEAR_EMPTY = 10
IMBALANCED = 10.0
OVER_LARGE = 24_000_000
SHOWN_CLASSES = 12
SIDES = (0, 32, 64, 128, 224, 384, 512, 1024, 2048, 4096)
ASPECTS = (0.0, 0.5, 0.75, 0.95, 1.05, 1.34, 2.0)


@dataclass
class Report:
    """What `check` found; `--json` writes exactly this."""

    images: dict[str, int]
    classes: int
    multilabel: bool
    fingerprint: str
    unreadable: list[BadFile] = field(default_factory=list)
    duplicates: list[list[str]] = field(default_factory=list)
    """Groups of files of one split with the same content."""
    leaks: list[list[str]] = field(default_factory=list)
    """Groups of files with the same content in different splits."""
    conflicts: list[list[str]] = field(default_factory=list)
    """Groups of files with the same content and different labels."""
    per_class: dict[str, dict[str, int]] = field(default_factory=dict)
    near_empty: list[str] = field(default_factory=list)
    """Classes with fewer than ten readable training images."""
    imbalance: float = 1.0
    """The largest class over the smallest, in training images."""
    short_sides: dict[str, int] = field(default_factory=dict)
    aspects: dict[str, int] = field(default_factory=dict)
    """Width over height."""
    formats: dict[str, int] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    over_large: list[str] = field(default_factory=list)
    """Readable images over 24 megapixels: they work, and take long to decode."""
    blocker: str | None = None
    """Why training could not go on, if it could not."""

    def document(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        whole = asdict(self)
        whole["unreadable"] = [file._asdict() for file in self.unreadable]
        return whole


@dataclass
class _Seen:
    """What one image is."""

    width: int = 0
    height: int = 0
    format: str = ""
    mode: str = ""
    reason: str | None = None


def check(data: Dataset, progress: Callable[[int], object] | None = None) -> Report:
    """Decode every image of an open data set and gather what a user should know."""
    report = Report(
        {name: len(split) for name, split in data.splits.items()},
        len(data.labels),
        data.multilabel,
        data.fingerprint,
    )
    seen = {name: _look(split, progress) for name, split in data.splits.items()}
    for name, split in data.splits.items():
        for i, image in enumerate(seen[name]):
            if image.reason is not None:
                report.unreadable.append(BadFile(name, split.name(i), image.reason))
            elif image.width * image.height > OVER_LARGE:
                report.over_large.append(f"{split.name(i)} ({image.width}x{image.height})")
    good = [image for images in seen.values() for image in images if image.reason is None]
    report.short_sides = _histogram([min(i.width, i.height) for i in good], SIDES)
    report.aspects = _histogram([i.width / i.height for i in good], ASPECTS)
    report.formats = dict(Counter(i.format for i in good).most_common())
    report.modes = dict(Counter(i.mode for i in good).most_common())
    _find_copies(data, report)
    readable = {name: np.array([i.reason is None for i in images], bool) for name, images in seen.items()}
    _count_classes(data, readable, report)
    report.blocker = _blocker(data, readable, report)
    return report


def _look(split: Split, progress: Callable[[int], object] | None) -> list[_Seen]:
    if isinstance(split.images, ArrayImages):
        height, width, channels = split.images.pixels.shape[1:]
        return [_Seen(width, height, "array", f"{channels} channels")] * len(split)
    images = split.images

    def look(index: int) -> _Seen:
        try:
            data = images.data(index)
            header = open_header(data, name=images.name(index))
            seen = _Seen(header.width, header.height, header.format or "", header.mode)
            decode(data, 3, name=images.name(index))
            return seen
        except DataError as error:
            return _Seen(reason=plain(str(error), images.name(index)))

    found = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for seen in pool.map(look, range(len(split))):
            found.append(seen)
            if progress is not None:
                progress(1)
    return found


def _histogram(values: list[float] | list[int], edges: tuple[float, ...]) -> dict[str, int]:
    bins = np.digitize(values, edges) - 1
    names = [f"{low:g}-{high:g}" for low, high in zip(edges, edges[1:], strict=False)] + [
        f"{edges[-1]:g} and more"
    ]
    return {name: int((bins == k).sum()) for k, name in enumerate(names) if (bins == k).any()}


def _find_copies(data: Dataset, report: Report) -> None:
    """Group files by content hash: copies in a split, copies across splits, copies with different labels."""
    places: dict[bytes, list[tuple[str, int]]] = {}
    for name, split in data.splits.items():
        for i, row in enumerate(split.digests):
            places.setdefault(row.tobytes(), []).append((name, i))
    for copies in places.values():
        if len(copies) < 2:
            continue
        group = [data.splits[name].name(i) for name, i in copies]
        crossing = len({name for name, _ in copies}) > 1
        (report.leaks if crossing else report.duplicates).append(group)
        if len({np.asarray(data.splits[name].targets[i]).tobytes() for name, i in copies}) > 1:
            report.conflicts.append(group)


def _count_classes(data: Dataset, readable: dict[str, np.ndarray], report: Report) -> None:
    counts = {}
    for name, split in data.splits.items():
        targets = split.targets[readable[name]]
        counts[name] = (
            targets.sum(0) if targets.ndim == 2 else np.bincount(targets, minlength=len(data.labels))
        )
    report.per_class = {
        label: {name: int(counts[name][k]) for name in counts} for k, label in enumerate(data.labels)
    }
    main = counts.get("train", next(iter(counts.values())))
    report.near_empty = [label for label, count in zip(data.labels, main, strict=True) if count < NEAR_EMPTY]
    report.imbalance = float(main.max() / main.min()) if main.min() > 0 else math.inf
    if math.isinf(report.imbalance):
        report.imbalance = float(main.max())


def _blocker(data: Dataset, readable: dict[str, np.ndarray], report: Report) -> str | None:
    if "train" not in data.splits:
        return f"there is no training split, only {', '.join(data.splits)}: name a folder train"
    total = sum(report.images.values())
    if len(report.unreadable) > LIMIT * total:
        return f"{len(report.unreadable):,} of {total:,} images can't be read, more than {LIMIT:.0%}"
    used = sum(count["train"] > 0 for count in report.per_class.values())
    if used < 2:
        return f"{used} of the classes have a readable training image: two are needed"
    return None


def summary(report: Report) -> list[tuple[str, int, str]]:
    """Return the findings as rows: what, how many, and an example or what to do."""
    largest = max(report.per_class.items(), key=lambda item: item[1].get("train", 0), default=("", {}))[0]
    rows = [
        (
            "unreadable files",
            len(report.unreadable),
            _first([f"{b.file}: {b.reason}" for b in report.unreadable]),
        ),
        (
            "exact duplicates in a split",
            _extra(report.duplicates),
            _first([" = ".join(g[:3]) for g in report.duplicates]),
        ),
        ("duplicates across splits", _extra(report.leaks), _first([" = ".join(g[:3]) for g in report.leaks])),
        (
            "same image, other label",
            len(report.conflicts),
            _first([" = ".join(g[:3]) for g in report.conflicts]),
        ),
        ("near-empty classes", len(report.near_empty), ", ".join(report.near_empty[:5])),
        ("over-large images", len(report.over_large), _first(report.over_large)),
    ]
    if report.imbalance >= IMBALANCED:
        hint = f"{largest} has {report.imbalance:.0f} times the smallest: train with --sampler balanced"
        rows.append(("imbalance", round(report.imbalance), hint))
    return rows


def _first(texts: list[str]) -> str:
    return texts[0] if texts else ""


def _extra(groups: list[list[str]]) -> int:
    return sum(len(group) - 1 for group in groups)


def grid(data: Dataset, *, per_class: int = 8, classes: int = 16, size: int = 96) -> Image.Image:
    """Return a picture of the data: a row of training images for each of the first classes, names beside
    them."""
    from PIL import ImageDraw

    split = data.splits.get("train", next(iter(data.splits.values())))
    shown = data.labels[:classes]
    label_width = 160
    sheet = Image.new("RGB", (label_width + per_class * (size + 4), len(shown) * (size + 4)), "white")
    draw = ImageDraw.Draw(sheet)
    for row, label in enumerate(shown):
        draw.text((6, row * (size + 4) + size // 2 - 6), label[:24], fill="black")
        members = np.flatnonzero(split.targets[:, row] if split.targets.ndim == 2 else split.targets == row)
        column = 0
        for index in members.tolist():
            if column == per_class:
                break
            try:
                image = split.read(index)
            except DataError:
                continue
            image.thumbnail((size, size))
            place = (label_width + column * (size + 4), row * (size + 4))
            sheet.paste(image, (place[0] + (size - image.width) // 2, place[1] + (size - image.height) // 2))
            column += 1
    return sheet


def run(
    spec: str, *, json: bool, grid_file: str | None, pack_folder: str | None, data_root: str | None
) -> None:
    """Do the verb: check, show, and where asked draw the grid and write the shards; stop if training could
    not go on."""
    from vitreous.data.pack import pack

    data = open_data(spec, data_root=data_root, carve=False)
    report = check(data)
    if json:
        console.document(report.document())
    else:
        show(report)
    if grid_file is not None:
        try:
            grid(data).save(grid_file)
        except (OSError, ValueError) as error:
            raise DataError(f"the picture can't be written to {grid_file}: {error}") from None
        console.note(f"wrote {grid_file}")
    if pack_folder is not None:
        shards = pack(data, pack_folder, skip={(bad.split, bad.file) for bad in report.unreadable})
        console.note(f"wrote {len(shards)} shards to {pack_folder}")
    if report.blocker is not None:
        raise DataError(f"training could not go on: {report.blocker}")


def show(report: Report) -> None:
    """Print the report as tables."""
    sizes = ", ".join(f"{count:,} {name}" for name, count in report.images.items())
    console.note(f"{sizes} images of {report.classes:,} classes")
    console.table(["finding", "count", "first"], summary(report))
    kinds = {"shorter side": report.short_sides, "width / height": report.aspects, "format": report.formats}
    rows = [(kind, name, count) for kind, bins in kinds.items() for name, count in bins.items()]
    console.table(["property", "value", "images"], rows)
    splits = list(report.images)
    smallest = sorted(report.per_class.items(), key=lambda item: item[1].get("train", 0))[:SHOWN_CLASSES]
    console.table(["smallest classes", *splits], [(label, *(n[s] for s in splits)) for label, n in smallest])
    for file in report.unreadable[:LISTED]:
        console.warn(f"{file.file}: {file.reason}")
    if len(report.unreadable) > LISTED:
        console.warn(f"and {len(report.unreadable) - LISTED:,} more; --json lists all")
