"""The errors that a user can cause, as one small tree; each message says what was wrong and what to do.

What is neither a `VitreousError` nor an `OSError` about a path is a bug: the command line shows it as one.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class VitreousError(Exception):
    """Base of every error that vitreous raises on purpose; the command line prints it as one line, exit 1."""


class ModelError(VitreousError, ValueError):
    """A model that can't be built, or an input that it can't take."""


class CheckpointError(VitreousError):
    """A file of weights that can't be read, trusted, understood or written."""


class LayoutError(CheckpointError):
    """Weights that a layout does not hold, or a model that a layout can't express."""


class DataError(VitreousError):
    """Images or labels that can't be used."""


class UnlabelledError(DataError):
    """Images that have no labels, where labels are needed; or no images where they would have any."""


class OptionError(VitreousError, ValueError):
    """An option whose value is not allowed, or does not fit the others."""


class UsageError(OptionError):
    """A value that an option of the command line can't be; exit 2."""


class ResumeError(VitreousError):
    """A run folder that is in use, was started with other options, or can't be written or continued."""


class DiskFullError(ResumeError):
    """A file, such as a checkpoint, that the disk has no room for."""


class TrainingError(VitreousError):
    """A run that can't go on: its loss or gradient is no longer a number, or no memory is left."""


class CallbackError(VitreousError):
    """A function of the caller's, called by a run with its figures, that raised an error."""


class MissingDependencyError(VitreousError):
    """An optional package that this verb needs is not installed."""


def kind(value: object) -> str:
    """Return what a value is, as an error names it: a float, an int."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def nearest(name: str, known: Iterable[str], count: int = 3, before: str = "") -> str:
    """Return `; did you mean a, b, c?` for a mistyped name, or nothing when no name is near.

    `before` is what stands before each name and has no part in the comparison: the dashes of a flag.
    """
    lowered = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name.lower(), lowered, n=count, cutoff=0.5)
    return f"; did you mean {', '.join(before + lowered[match] for match in matches)}?" if matches else ""
