"""Open shards, shared by the threads of a process: at most `limit` at a time, closed with their owner.

No file position is kept: bytes are read at the caller's offset (`pread`), so threads don't interfere.
"""

import os
import threading
from collections import OrderedDict

LIMIT = 64


class _Descriptor:
    """A file that is open as long as someone holds this object."""

    def __init__(self, path: str) -> None:
        self.number = -1  # there is nothing to close where opening fails
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class OpenFiles:
    """Reads ranges of files and keeps the last `limit` of them open; picklable, without the open files."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._forget()

    def _forget(self) -> None:
        """Start with no open file, and with a lock that no thread of a parent process holds."""
        self._process, self._lock = os.getpid(), threading.Lock()
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()

    def __getstate__(self) -> dict[str, object]:
        return {"limit": self.limit}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __len__(self) -> int:
        return len(self._open)

    def read(self, path: str, size: int, offset: int) -> bytes:
        """Return up to `size` bytes of a file from `offset` on; an OSError where it can't be read."""
        descriptor = self._descriptor(path)  # held here: another thread may drop it while we read
        return os.pread(descriptor.number, size, offset)

    def _descriptor(self, path: str) -> _Descriptor:
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            descriptor = self._open.get(path) or _Descriptor(path)
            self._open[path] = descriptor
            self._open.move_to_end(path)
            while len(self._open) > self.limit:
                self._open.popitem(last=False)  # the longest unused
        return descriptor
