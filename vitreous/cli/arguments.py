"""What the verbs' arguments look like in the help: names, placeholders, and the hints after them."""

from pathlib import Path
from typing import Annotated, Any

import tyro

Checkpoint = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CKPT")]
Data = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
Destination = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DST")]
Paths = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="PATH…",
        help="Image files, folders (searched whole), 'patterns/**/*.jpg', or - for standard input: an image, "
        "or a list of files, one per line or ended by NUL.",
        help_behavior_hint="(required)",
    ),
]
Json = Annotated[
    bool,
    tyro.conf.arg(help="Write one JSON document to stdout, and nothing else there.", help_behavior_hint=""),
]
Switch = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
Whole = Annotated[int, tyro.conf.arg(metavar="N")]
Number = Annotated[float, tyro.conf.arg(metavar="X")]
Options = dict[str, Any]


def optional(metavar: str) -> Any:
    """Return the marker of a flag that need not be given, and has no default to show."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")
