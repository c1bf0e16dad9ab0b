"""What a data set holds and what is wrong with it, found by decoding every image; nothing is changed."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from vitreous.data import near
from vitreous.data.bad import BadFile, Looked, nothing_to_learn, stops, without_name
from vitreous.data.decode import decode, open_header
from vitreous.data.images import ArrayImages
from vitreous.data.opening import held_out
from vitreous.data.pictures import LeftOut
from vitreous.data.split import Dataset, Split
from vitreous.errors import DataError

NEAR_EMPTY = 10
OVER_LARGE = 24_000_000
CUT_AWAY = 0.4
NEAREST = 5
"""Candidates for near-copies of an image that are examined."""
SMALLEST = 4 * near.FINE
"""Pixels on the shorter side to which a JPEG may be reduced for that."""
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
    """The largest class over the smallest, in training images; over 1 if the smallest is empty."""
    short_sides: dict[str, int] = field(default_factory=dict)
    aspects: dict[str, int] = field(default_factory=dict)
    """Width over height."""
    formats: dict[str, int] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    over_large: list[str] = field(default_factory=list)
    """Readable images over 24 megapixels: they work, and take long to decode."""
    blocker: str | None = None
    """Why training could not start, if so."""
    left_out: list[LeftOut] = field(default_factory=list)
    """Files that are no images of the data set, by reason, with an example."""
    training: dict[str, int] = field(default_factory=dict)
    """Images of the splits that training would use."""
    held_out: list[str] = field(default_factory=list)
    """Those of them that the source does not have: training would hold them out of its train split."""
    untaught: list[str] = field(default_factory=list)
    """Classes that val or test show and no training image does."""
    near_copies: list[list[str]] = field(default_factory=list)
    """Images of val or test, each with images of other splits that differ in encoding or size alone."""
    cut_away: int = 0
    """Readable images of which a square crop of the centre would cut away more than 40 %."""

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
    small: np.ndarray | None = None
    reason: str | None = None


def survey(data: Dataset, progress: Callable[[int], object] = lambda _: None, *, seed: int = 0) -> Report:
    """Decode every image of an open data set and gather what a user should know.

    `data` has the splits of its source; what training with this seed would hold out is worked out here.
    `progress` is called with the number of images that are done.
    """
    report = Report(
        {name: len(split) for name, split in data.splits.items()},
        len(data.labels),
        data.multilabel,
        data.fingerprint,
        left_out=list(data.left_out),
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
    _describe([image for images in decoded.values() for image in images if image.reason is None], report)
    _find_copies(data, report)
    readable = {name: np.array([i.reason is None for i in images], bool) for name, images in decoded.items()}
    _count_classes(data, readable, report)
    _look_as_training_would(data, decoded, seed, report)
    return report


def _describe(good: list["_Image"], report: Report) -> None:
    """Gather sizes, formats and modes."""
    report.short_sides = _histogram([min(i.width, i.height) for i in good], SIDES)
    report.aspects = _histogram([i.width / i.height for i in good], ASPECTS)
    report.formats = dict(Counter(i.format for i in good).most_common())
    report.modes = dict(Counter(i.mode for i in good).most_common())
    report.cut_away = sum(min(i.width, i.height) < (1 - CUT_AWAY) * max(i.width, i.height) for i in good)


def _look_as_training_would(
    data: Dataset, decoded: dict[str, list["_Image"]], seed: int, report: Report
) -> None:
    """Find what concerns the splits that training would use: those of the source, and what it holds out."""
    parts = held_out(data.splits, seed)
    splits = {**data.splits, **{name: data.splits["train"].select(rows) for name, rows in parts.items()}}
    splits = {name: splits[name] for name in ("train", "val", "test") if name in splits}
    images = dict(decoded)
    for name, rows in parts.items():
        images[name] = [decoded["train"][row] for row in rows]
    report.held_out = [name for name in parts if name != "train"]
    report.training = {name: len(split) for name, split in splits.items()}
    if "train" in splits:
        taught = _present(splits["train"])
        shown = np.any([_present(split) for split in splits.values()], axis=0)
        report.untaught = [data.labels[k] for k in np.flatnonzero(shown & ~taught)]
    _find_near_copies(splits, images, report)
    reasons = {
        name: {i: image.reason for i, image in enumerate(images[name]) if image.reason is not None}
        for name in splits
    }
    training = replace(data, splits=splits)
    report.blocker = stops(training, Looked(reasons, dict(report.training)))
    if report.blocker is None:
        report.blocker = nothing_to_learn(splits["train"])


def _present(split: Split) -> np.ndarray:
    """Return which classes a split shows, bool (K,)."""
    if split.targets.ndim == 2:
        return np.asarray(split.targets.any(0))
    return np.isin(np.arange(split.classes), split.targets)


def _find_near_copies(splits: dict[str, Split], images: dict[str, list["_Image"]], report: Report) -> None:
    """Find pictures of a split whose copies, encoded or sized otherwise, are in an earlier one."""
    places: list[tuple[Split, int]] = []
    earlier: list[np.ndarray] = []
    for name, split in splits.items():
        known = [(i, image.small) for i, image in enumerate(images[name]) if image.small is not None]
        if not known:
            continue
        own = np.stack([small for _, small in known])
        if earlier:
            for row, found in near.copies(own, np.concatenate(earlier)):
                index = known[row][0]
                others = [places[place] for place in found]
                names = [s.name(i) for s, i in others[:NEAREST] if _is_near_copy(split, index, s, i)]
                if names:
                    report.near_copies.append([split.name(index), *names])
        places += [(split, i) for i, _ in known]
        earlier.append(own)


def _is_near_copy(split: Split, index: int, other: Split, number: int) -> bool:
    """Look at two images again; exact copies are found elsewhere."""
    if np.array_equal(split.digests[index], other.digests[number]):
        return False
    try:
        first, second = (
            split.images.read(index, shortest=SMALLEST),
            other.images.read(number, shortest=SMALLEST),
        )
    except DataError:  # it was readable a moment ago
        return False
    return near.alike(first, second)


def _decoded(split: Split) -> Iterator[_Image]:
    """Decode all images of a split in threads; yield what each is, in order."""
    if isinstance(split.images, ArrayImages):
        height, width, channels = split.images.pixels.shape[1:]
        about = (width, height, "array", f"{channels} channels")
        for index in range(len(split)):
            image = split.read(index, min(channels, 3)) if channels in (1, 3, 4) else None
            yield _Image(*about, small=None if image is None else near.small(image))
        return
    images = split.images

    def decode_one(index: int) -> _Image:
        try:
            data = images.data(index)
            header = open_header(data, name=images.name(index))
            small = near.small(decode(data, 3, name=images.name(index)))
            return _Image(header.width, header.height, header.format or "", header.mode, small)
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
