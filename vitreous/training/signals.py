"""Signals that ask a run to stop: seen between steps, so that a checkpoint can be taken first."""

import os
import signal
import threading
from types import FrameType
from typing import Any

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
SIGNALS = [signal.SIGINT, signal.SIGTERM, *([HANGUP] if HANGUP is not None else [])]


class StopSignal:
    """Turns SIGTERM, SIGHUP (the terminal has gone) and Ctrl-C into a request that the loop sees between
    steps; a second signal ends the process at once."""

    def __init__(self) -> None:
        self.armed = False
        """Whether the loop is running; before that there is nothing to save, and a signal ends at once."""
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def received(self) -> bool:
        """Whether a signal came."""
        return self.signal is not None

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number == HANGUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup: the run is meant to outlive its terminal
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.received:
            os._exit(128 + number)
        self.signal = number
        if not self.armed:
            self.end_process()

    def end_process(self) -> None:
        """End the process as the signal asks: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        if self.signal is not None and self.signal != signal.SIGINT:
            raise SystemExit(128 + self.signal)
        raise KeyboardInterrupt
