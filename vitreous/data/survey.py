"""What a data set holds and what is wrong with it, found by decoding every image; nothing is changed."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from vitreous.data.bad import BadFile, nothing_to_learn, refusal, without_name
from vitreous.data.decode import decode, open_header
from vitreous.data.images import ArrayImages
from vitreous.data.split import Dataset, Split
from vitreous.errors import DataError

NEAR_EMPTY = 10
OVER_LARGE = 24_000_000
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
class _Image:
    """What is known of an image after it was decoded, or why that failed."""

    width: int = 0
    height: int = 0
    format: str = ""
    mode: str = ""
    reason: str | None = None


def survey(data: Dataset, progress: Callable[[int], object] = lambda _: None) -> Report:
    """Decode every image of an open data set and gather what a user should know.

    `progress` is called with the number of images that are done.
    """
    report = Report(
        {name: len(split) for name, split in data.splits.items()},
        len(data.labels),
        data.multilabel,
        data.fingerprint,
    )
    decoded: dict[str, list[_Image]] = {}
    for name, split in data.splits.items():
        decoded[name] = []
        done = sum(map(len, decoded.values()))
        for number, image in enumerate(_decoded(split), start=1):
            decoded[name].append(image)
            progress(done + number)
    for name, split in data.splits.items():
        for i, image in enumerate(decoded[name]):
            if image.reason is not None:
                report.unreadable.append(BadFile(name, split.name(i), image.reason))
            elif image.width * image.height > OVER_LARGE:
                report.over_large.append(f"{split.name(i)} ({image.width}x{image.height})")
    good = [image for images in decoded.values() for image in images if image.reason is None]
    report.short_sides = _histogram([min(i.width, i.height) for i in good], SIDES)
    report.aspects = _histogram([i.width / i.height for i in good], ASPECTS)
    report.formats = dict(Counter(i.format for i in good).most_common())
    report.modes = dict(Counter(i.mode for i in good).most_common())
    _find_copies(data, report)
    readable = {name: np.array([i.reason is None for i in images], bool) for name, images in decoded.items()}
    _count_classes(data, readable, report)
    report.blocker = _blocker(data, report)
    return report


def _decoded(split: Split) -> Iterator[_Image]:
    """Decode all images of a split in threads; yield what each is, in order."""
    if isinstance(split.images, ArrayImages):
        height, width, channels = split.images.pixels.shape[1:]
        yield from [_Image(width, height, "array", f"{channels} channels")] * len(split)
        return
    images = split.images

    def decode_one(index: int) -> _Image:
        try:
            data = images.data(index)
            header = open_header(data, name=images.name(index))
            decode(data, 3, name=images.name(index))
            return _Image(header.width, header.height, header.format or "", header.mode)
        except DataError as error:
            return _Image(reason=without_name(str(error), images.name(index)))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield from pool.map(decode_one, range(len(split)))


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


def _blocker(data: Dataset, report: Report) -> str | None:
    if "train" not in data.splits:
        return f"there is no training split, only {', '.join(data.splits)}: name a folder train"
    total = sum(report.images.values())
    if (reason := refusal(list(map(str, report.unreadable)), total, total)) is not None:
        return reason
    used = sum(count["train"] > 0 for count in report.per_class.values())
    if used < 2:
        return f"{used} of the classes have a readable training image: two are needed"
    return nothing_to_learn(data.splits["train"])
