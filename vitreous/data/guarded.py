"""Work on hostile bytes in processes that can be ended: too much time or memory harms only the work itself.

A template is forked once, before there are threads, and forks a worker whenever one is wanted; workers have
the caller's function, and no other open files. The kernel ends a worker that exceeds its time or memory. What
a worker sends back is plain arrays and text: nothing of it is executed.
"""

import gc
import json
import math
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from PIL import Image

from vitreous.errors import DataError

Work = Callable[[bytes], Sequence[np.ndarray]]
REQUEST, REPLY = struct.Struct("<dQ"), struct.Struct("<IQ")
"""Seconds and bytes of a request; bytes of a reply's JSON, and of the arrays that follow."""
DTYPES = ("uint8", "bool")
MAX_REPLY = 1 << 28
"""Bytes that a worker may send, unless the caller allows more."""
GRACE = 2.0
"""Seconds beyond its limit after which we end a worker that the kernel has not ended."""
NICENESS = 5
"""Costly pictures leave the processor to the requests of others."""
MOST_SAID = 2000


class TooCostly(DataError):
    """A picture whose decoding took more time or memory than allowed."""


class Workers:
    """Processes that do one kind of work, each with `memory` bytes beyond what it starts with, and replies of
    at most `most` bytes."""

    def __init__(self, work: Work, memory: int, *, niceness: int = NICENESS, most: int = MAX_REPLY) -> None:
        self.work, self.memory, self.niceness, self.most = work, memory, niceness, most
        self.lock = threading.Lock()
        self.idle: list[_Worker] = []
        self.template, self.control = self._fork()

    def run(self, data: bytes, seconds: float) -> tuple[list[np.ndarray], str]:
        """Do the work on some bytes; return its arrays, and what libraries wrote to stderr meanwhile."""
        worker = self._take()
        try:
            reply = worker.ask(data, seconds)
        except BaseException:
            worker.end()
            raise
        with self.lock:
            self.idle.append(worker)
        return reply.arrays()

    def close(self) -> None:
        """End every process at once."""
        if self.template:
            template, self.template = self.template, 0
            _kill_group(template)
            os.waitpid(template, 0)
        self.control.close()
        for worker in self.idle:
            worker.sock.close()

    def _take(self) -> "_Worker":
        with self.lock:
            if self.idle:
                return self.idle.pop()
            here, there = socket.socketpair()
            try:
                socket.send_fds(self.control, [b"w"], [there.fileno()])
            except OSError:  # the template was killed from outside, for memory perhaps
                if not self.template:
                    raise TooCostly("no more pictures are decoded: the program is ending") from None
                os.waitpid(self.template, 0)
                self.control.close()
                self.template, self.control = self._fork()
                socket.send_fds(self.control, [b"w"], [there.fileno()])
            finally:
                there.close()
        return _Worker(here, self.most)

    def _fork(self) -> tuple[int, socket.socket]:
        here, there = socket.socketpair()
        with warnings.catch_warnings():
            # Python 3.12 warns about locks that threads may hold: the template takes none of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if process:
            there.close()
            return process, here
        _be_template(there, self.work, self.memory, self.niceness)


class _Reply:
    def __init__(self, about: dict[str, Any], data: bytearray) -> None:
        self.about, self.data = about, data

    def arrays(self) -> tuple[list[np.ndarray], str]:
        """Return the arrays; anything else is refused, as the sender may have been taken over."""
        said = str(self.about.get("said", ""))[:MOST_SAID]
        if "failure" in self.about:
            raise RuntimeError(str(self.about["failure"]))
        if "error" in self.about:
            kind = TooCostly if self.about.get("costly") else DataError
            raise kind(str(self.about["error"])[:MOST_SAID])
        found, start = [], 0
        for kind, shape in self.about["arrays"]:
            if kind not in DTYPES or not all(isinstance(side, int) and side >= 0 for side in shape):
                raise DataError("the decoder sent no picture")
            count = math.prod(shape)
            found.append(np.frombuffer(self.data, kind, count, start).reshape(shape))
            start += count
        return found, said


class _Worker:
    """Our end of one process."""

    def __init__(self, sock: socket.socket, most: int) -> None:
        self.sock, self.most = sock, most

    def ask(self, data: bytes, seconds: float) -> _Reply:
        """Send bytes and wait for the answer, no longer than the limit."""
        began = time.monotonic()
        self.sock.settimeout(seconds + GRACE)
        try:
            self.sock.sendall(REQUEST.pack(seconds, len(data)))
            self.sock.sendall(data)
            size, rest = REPLY.unpack(_read(self.sock, REPLY.size))
            if size + rest > self.most + MOST_SAID:
                raise DataError("the decoder sent no picture")
            return _Reply(json.loads(_read(self.sock, size)), _read(self.sock, rest))
        except (OSError, EOFError):
            if time.monotonic() - began < 0.9 * seconds:
                raise TooCostly("its decoder was ended: too much memory, or a crash") from None
            raise TooCostly(f"decoding took longer than {seconds:.1f} s") from None

    def end(self) -> None:
        """End the process: it does so itself when nobody is at the other end, or when its time is over."""
        self.sock.close()


def _read(sock: socket.socket, size: int) -> bytearray:
    held = bytearray(size)
    view = memoryview(held)
    while view:
        count = sock.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return held


def _be_template(control: socket.socket, work: Work, memory: int, niceness: int) -> NoReturn:
    """Fork workers on demand until nobody is at the other end."""
    try:
        os.setsid()
        _close_all_but(control.fileno())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets workers that have ended
        Image.init()
        gc.freeze()
        while True:
            message, handles, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                break
            if os.fork() == 0:
                control.close()
                _be_worker(socket.socket(fileno=handles[0]), work, memory, niceness)
            os.close(handles[0])
    finally:
        os._exit(0)


def _be_worker(sock: socket.socket, work: Work, memory: int, niceness: int) -> NoReturn:
    """Do one piece of work after the other until nobody is at the other end."""
    try:
        os.nice(niceness)
        _limit(memory)
        said = _listen_to_libraries()
        while True:
            seconds, size = REQUEST.unpack(_read(sock, REQUEST.size))
            data = bytes(_read(sock, size))
            signal.setitimer(signal.ITIMER_REAL, seconds)  # SIGALRM ends the process
            about, arrays = _done(work, data)
            signal.setitimer(signal.ITIMER_REAL, 0)
            about["said"] = _heard(said)
            text = json.dumps(about).encode()
            sock.sendall(REPLY.pack(len(text), sum(each.nbytes for each in arrays)) + text)
            for each in arrays:
                sock.sendall(np.ascontiguousarray(each).data.cast("B") if each.size else b"")
    finally:
        os._exit(0)


def _done(work: Work, data: bytes) -> tuple[dict[str, Any], Sequence[np.ndarray]]:
    try:
        arrays = work(data)
    except MemoryError:
        return {"error": "decoding took too much memory", "costly": True}, []
    except DataError as error:
        if isinstance(error, TooCostly) or isinstance(error.__context__, MemoryError):
            return {"error": str(error), "costly": True}, []
        return {"error": str(error)}, []
    except Exception:  # not the picture's fault: the caller should see where it happened
        return {"failure": traceback.format_exc()}, []
    return {"arrays": [[each.dtype.name, each.shape] for each in arrays]}, arrays


def _close_all_but(kept: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    top = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, kept)
    os.closerange(kept + 1, top if top > 0 else 65536)


def _limit(memory: int) -> None:
    """Limit this process: further memory, no core dumps, no files, first to be killed if memory runs out."""
    import resource

    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(kind, (most, most))
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return  # not Linux: time is limited, memory is not
    used = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData"))
    most = 1024 * used + memory
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    avif = sys.modules.get("PIL.AvifImagePlugin")
    if avif is not None:
        avif.DEFAULT_MAX_THREADS = 1  # type: ignore[attr-defined]  # each thread's stack would count


def _listen_to_libraries() -> int:
    """Redirect what C libraries write to stderr into a pipe of our own; return its reading end."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    os.dup2(writing, 2)
    os.close(writing)
    return reading


def _heard(reading: int) -> str:
    try:
        return os.read(reading, 65536).decode("utf-8", "replace")[:MOST_SAID]
    except BlockingIOError:
        return ""


def _kill_group(process: int) -> None:
    """End a template and its workers; it may not yet have a group of its own."""
    for end in (os.killpg, os.kill):
        try:
            end(process, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
