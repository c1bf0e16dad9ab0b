"""The log: one JSON object per line on stderr, our own lines and those of libraries, at a bounded rate."""

import json
import logging
import sys
import time
from typing import Any

MOST_LINES = 100
"""Lines of one kind in one second, of everything but successes."""
MOST_TRACEBACKS = 10
"""Lines with a traceback in one second."""


class Pace:
    """Counts the lines of this second by kind, and those that were left out."""

    def __init__(self) -> None:
        self.second, self.dropped = 0, 0
        self.counts: dict[tuple[Any, ...], int] = {}

    def turn(self, now: float) -> int:
        """Begin a new second where `now` is in one; return how many lines of the last were left out."""
        if int(now) == self.second:
            return 0
        dropped, self.dropped = self.dropped, 0
        self.second, self.counts = int(now), {}
        return dropped

    def allows(self, kind: tuple[Any, ...], most: int) -> bool:
        """Return whether one more line of this kind may be written."""
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        self.dropped += count > most
        return count <= most


_pace = Pace()


def log(level: str, event: str, **facts: Any) -> None:
    """Write one line of JSON to stderr, unless there have been very many of its kind in this second."""
    now, status = time.time(), facts.get("status", 0)
    if dropped := _pace.turn(now):
        _write(now, "warning", "dropped", {"lines": dropped})
    if level != "info" or status >= 400:
        most = MOST_TRACEBACKS if "traceback" in facts else MOST_LINES
        if not _pace.allows((level, event, status), most):
            return
    _write(now, level, event, facts)


def _write(now: float, level: str, event: str, facts: dict[str, Any]) -> None:
    sys.stderr.write(json.dumps({"time": round(now, 3), "level": level, "event": event, **facts}) + "\n")


class JSONLines(logging.Handler):
    """Writes what libraries log as lines of the same JSON."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        facts = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[0] is not None:
            facts["traceback"] = logging.Formatter().formatException(record.exc_info)
        log(record.levelname.lower(), "library", **facts)


def take_over() -> None:
    """Send the log records and warnings of every library through here."""
    logging.basicConfig(handlers=[JSONLines()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
