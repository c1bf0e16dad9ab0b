"""The run folder: held by one process at a time, started with one set of options; never what it holds."""

import fcntl
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitreous.errors import ResumeError

DEFAULTS = {"seed": 0, "warmup": 0.1, "balance": "none"}
"""What earlier versions wrote where the user gave nothing."""


class RunLock:
    """Holds a run folder for one process; the kernel lets go of it when the process ends, in whatever way."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / ".lock").open("a+")
        except OSError as error:
            reason = error.strerror or str(error)
            raise ResumeError(
                f"{folder} can't be used as a run folder: {reason}: give another --out"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise ResumeError(f"{folder} is in use by {holder}: wait for it, or give another --out") from None
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._file.flush()
        # A forked loader worker would share the lock and could outlive us with it.
        os.register_at_fork(after_in_child=self._file.close)

    def release(self) -> None:
        """Let another process have the folder."""
        self._file.close()


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Compare the options that a run was started with and those of now; any difference is refused by name."""
    now = {**DEFAULTS, **_given(json.loads(json.dumps(now)))}  # as `before` was read: tuples are lists
    before = {**DEFAULTS, **_given(before)}
    changed = [
        f"{name} was {json.dumps(before.get(name))} and is now {json.dumps(now.get(name))}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise ResumeError(
            f"{folder} holds a run with other options: {'; '.join(changed)}: "
            f"repeat the old ones, or give another --out"
        )


def read_json(path: Path) -> Any:
    """Read what `files.write_json` wrote."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ResumeError(f"{path} can't be read: {error}; mend it, or give another --out") from None


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that say something: one that was added since is not a change."""
    return {name: value for name, value in options.items() if value is not None and value is not False}
