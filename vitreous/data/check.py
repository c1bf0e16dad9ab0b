"""`vitreous check`: report what is wrong with a data set, before an hour of training does."""

from contextlib import closing
from pathlib import Path

from PIL import Image

from vitreous import console, files
from vitreous.data.bad import LISTED
from vitreous.data.contact_sheet import contact_sheet
from vitreous.data.opening import open_data
from vitreous.data.pack import pack, require_new
from vitreous.data.survey import CUT_AWAY, Report, survey
from vitreous.errors import DataError

IMBALANCED = 10.0
MANY_CUT = 0.1
"""Share of the images from which on a hint about what a crop cuts away is shown."""
SHOWN_CLASSES = 12


def run(
    spec: str, *, json: bool, grid_file: str | None, pack_folder: str | None, data_root: str | None
) -> None:
    """Survey the data, show the report, and if asked draw the grid and write the shards; raise a DataError if
    training could not start."""
    if grid_file is not None:
        _require_picture(Path(grid_file))
    if pack_folder is not None:
        require_new(Path(pack_folder))
    data = open_data(spec, data_root=data_root, carve=False)
    total = sum(len(split) for split in data.splits.values())
    with closing(console.ProgressBar(total, what="image")) as bar:
        report = survey(data, lambda done: bar.update(done, total, "checked"))
    if json:
        console.document(report.document())
    else:
        show(report)
    if grid_file is not None:
        try:
            contact_sheet(data).save(grid_file)
        except (OSError, ValueError) as error:
            raise DataError(f"the picture can't be written to {grid_file}: {error}") from None
        console.note(f"wrote {grid_file}")
    if pack_folder is not None:
        shards = pack(data, pack_folder, skip={(bad.split, bad.file) for bad in report.unreadable})
        console.note(f"wrote {len(shards)} shards to {pack_folder}")
    if report.blocker is not None:
        raise DataError(f"training could not go on: {report.blocker}")


def _require_picture(path: Path) -> None:
    """Refuse a file that no picture can or may be written to, before the images are read for hours."""
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:
        raise DataError(f"--grid {path} is not the name of a picture: let it end in .png, .jpg or .webp")
    if not path.parent.is_dir():
        raise DataError(f"--grid {path} can't be written: there is no folder {path.parent}")
    files.refuse_existing(path)


def show(report: Report) -> None:
    """Print the report as tables."""
    sizes = ", ".join(f"{count:,} {name}" for name, count in report.images.items())
    console.note(f"{sizes} images of {report.classes:,} classes")
    if report.held_out:
        parts = " and ".join(f"{report.training[name]:,} for {name}" for name in report.held_out)
        left = report.training["train"]
        console.note(f"training would hold out {parts} (with --seed 0), and learn from {left:,}")
    console.table(["finding", "count", "first"], summary(report))
    kinds = {"shorter side": report.short_sides, "width / height": report.aspects, "format": report.formats}
    rows = [(kind, name, count) for kind, bins in kinds.items() for name, count in bins.items()]
    console.table(["property", "value", "images"], rows)
    splits = list(report.images)
    smallest = sorted(report.per_class.items(), key=lambda item: item[1].get("train", 0))[:SHOWN_CLASSES]
    console.table(["smallest classes", *splits], [(label, *(n[s] for s in splits)) for label, n in smallest])
    for file in report.unreadable[:LISTED]:
        console.warn(str(file))
    if len(report.unreadable) > LISTED:
        console.warn(f"and {len(report.unreadable) - LISTED:,} more; --json lists all")


def summary(report: Report) -> list[tuple[str, int, str]]:
    """Return the findings as rows: what, how many, and an example or what to do."""
    largest = max(report.per_class.items(), key=lambda item: item[1].get("train", 0), default=("", {}))[0]
    unreadable = [str(file) for file in report.unreadable]
    rows = [
        ("unreadable files", len(unreadable), _first(unreadable)),
        ("exact duplicates in a split", _extra(report.duplicates), _first_group(report.duplicates)),
        ("duplicates across splits", _extra(report.leaks), _first_group(report.leaks)),
        ("near-copies across splits", len(report.near_copies), _first_group(report.near_copies, " ~ ")),
        ("same image, other label", len(report.conflicts), _first_group(report.conflicts)),
        ("classes without training images", len(report.untaught), ", ".join(report.untaught[:5])),
        ("near-empty classes", len(report.near_empty), ", ".join(report.near_empty[:5])),
        ("over-large images", len(report.over_large), _first(report.over_large)),
    ]
    if report.imbalance >= IMBALANCED:
        hint = f"{largest} has {report.imbalance:.0f} times the smallest: train with --balance sampler"
        rows.append(("imbalance", round(report.imbalance), hint))
    readable = sum(report.images.values()) - len(unreadable)
    if report.cut_away >= MANY_CUT * max(1, readable):
        hint = f"a crop of the centre cuts away over {CUT_AWAY:.0%} of each: train with --fit pad"
        rows.append(("far from square", report.cut_away, hint))
    return rows + [(f"left out: {row.reason}", row.count, row.example) for row in report.left_out]


def _first(texts: list[str]) -> str:
    return texts[0] if texts else ""


def _first_group(groups: list[list[str]], sign: str = " = ") -> str:
    return sign.join(groups[0][:3]) if groups else ""


def _extra(groups: list[list[str]]) -> int:
    return sum(len(group) - 1 for group in groups)
