"""The command line: finds the verb, runs it, and turns what goes wrong into one line and an exit status."""

import errno
import inspect
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from vitreous import api, console
from vitreous.cli.parsing import parse
from vitreous.cli.values import split_sizes
from vitreous.cli.verbs import VERBS
from vitreous.errors import UsageError, VitreousError, nearest
from vitreous.version import __version__

ABOUT = "The Vision Transformer as software: train, measure, look inside, export, serve."
OPTIONS = {
    "-h, --help": "Show this help, or that of a verb: vitreous train --help.",
    "--version": "Show the version.",
    "--debug": "With any verb: show the traceback of an error.",
}
REMEDIES = {
    errno.ENOTDIR: "a file is in the place of a folder, choose another path",
    errno.EEXIST: "a file is in the place of a folder, choose another path",
    errno.EISDIR: "give the name of a file",
    errno.ENOENT: "give a path that exists",
    errno.ENOSPC: "make room, or choose another disk",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status: 0, 1 with one line on stderr, or 2 for wrong usage."""
    as_command = arguments is None  # else a program calls us, which may have been running for long
    api.command_started = time.monotonic() - (_age() if as_command else 0.0)
    try:
        return _main(arguments)
    finally:
        api.command_started = None


def _age() -> float:
    """Return for how many seconds this process has been running, if the system can tell (Linux)."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, up - ticks / os.sysconf("SC_CLK_TCK"))


def _main(arguments: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    verb, *rest = [argument for argument in arguments if argument != "--debug"] or ["--help"]
    if verb in ("-h", "--help"):
        sys.stdout.write(overview(shutil.get_terminal_size().columns))
        return 0
    if verb == "--version":
        sys.stdout.write(f"vitreous {__version__}\n")
        return 0
    if verb not in VERBS:
        near = nearest(verb, VERBS, count=1) or f": the verbs are {', '.join(VERBS)}"
        console.fail(f"unknown verb {verb!r}{near} (vitreous --help explains them)")
        return 2
    return _run(verb, rest, debug)


def _run(verb: str, arguments: list[str], debug: bool) -> int:
    try:
        parse(verb, VERBS[verb], description(verb), split_sizes(arguments))()
    except UsageError as error:
        return _stop(error, debug, str(error), status=2)
    except VitreousError as error:
        return _stop(error, debug, str(error))
    except KeyboardInterrupt as error:
        return _stop(error, debug, "interrupted", status=130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: nothing is left to say
        return 1
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except Exception as error:
        return _stop(error, debug, explain(error))
    return 0


def explain(error: Exception) -> str:
    """Return one line for an error that vitreous did not raise itself.

    A system error about a path concerns a path that the user gave; everything else is a bug.
    """
    if isinstance(error, OSError) and error.strerror and (error.filename or error.errno == errno.ENOSPC):
        remedy = REMEDIES.get(error.errno or 0, "choose another path, or change its permissions")
        if not error.filename:
            return f"can't write the output: {error.strerror.lower()}: {remedy}"
        path = Path(os.fsdecode(error.filename))
        named = path.parent if path.name.startswith(".") else path  # .NAME: a file that is being written
        return f"can't use {named}: {error.strerror.lower()}: {remedy}"
    kind = type(error).__name__
    return f"unexpected {kind}: {error} (this is a bug; run again with --debug to see where)"


def overview(width: int) -> str:
    """Return the help of `vitreous` itself: a line for each verb."""
    verbs = {name: description(name).splitlines()[0] for name in VERBS}
    sections = {"verbs": verbs, "options": OPTIONS}
    lines = ["usage: vitreous VERB [OPTIONS]", "", *textwrap.wrap(ABOUT, width)]
    for title, entries in sections.items():
        lines += ["", f"{title}:"]
        for name, text in entries.items():
            first, *others = textwrap.wrap(text, max(20, width - 14))
            lines += [f"  {name:<12}{first}", *(" " * 14 + other for other in others)]
    return "\n".join(lines) + "\n"


def description(verb: str) -> str:
    """Return the docstring of a verb up to its arguments, which tyro shows with their flags."""
    return inspect.cleandoc(VERBS[verb].__doc__ or "").partition("\nArgs:")[0].strip()


def _stop(error: BaseException, debug: bool, message: str, status: int = 1) -> int:
    if debug:
        raise error
    console.fail(message)
    return status
