"""Which requests are let in: as many as can be answered in time, in no more memory than is allowed.

Knows how many images are in progress and how long one takes; computes nothing.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from vitreous.serve.settings import Settings, overloaded

HEADROOM = 0.6
"""Requests are let in while the work before them takes this share of the deadline at most."""
MANY_REFUSALS = 500
"""Refusals per second that are sent at once; of more, each waits a little (see `refusal_delay`)."""


class Admission:
    """Counts the requests in progress, and refuses what could not be answered in time. Event loop only."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.images = self.bytes = 0
        self.seconds_per_image = 0.0
        self.refusals, self.second = 0.0, 0.0

    def refusal_delay(self) -> float:
        """Return the seconds that a refusal waits before it is sent: 0, unless there are very many.

        Clients that retry at once would otherwise take the processor from the requests in progress.
        """
        now = time.perf_counter()
        self.refusals = self.refusals * max(0.0, 1.0 - (now - self.second)) + 1  # over about a second
        self.second = now
        return min(0.5, max(0.0, self.refusals - MANY_REFUSALS) / 2000)

    @property
    def backlog_seconds(self) -> float:
        """Seconds until all images in progress are done."""
        return self.images * self.seconds_per_image

    def has_room(self, size: int, images: int = 1) -> bool:
        """Return whether so many more images, of so many bytes, can be answered in time."""
        full = self.images + images > self.settings.queue
        heavy = self.bytes > 0 and self.bytes + size > self.settings.queue_bytes
        return not (full or heavy or self.backlog_seconds > HEADROOM * self.settings.deadline)

    @contextmanager
    def admit(self, size: int) -> Iterator["Reservation"]:
        """Reserve room for one request, or refuse it before a byte of its body is read."""
        reservation = Reservation(self)
        reservation.add(1, size)
        try:
            yield reservation
        finally:
            reservation.release()


class Reservation:
    """The images and bytes that one request holds."""

    def __init__(self, admission: Admission) -> None:
        self.admission, self.images, self.bytes = admission, 0, 0

    def add(self, images: int, size: int) -> None:
        """Hold more, or refuse the request."""
        admission = self.admission
        if not admission.has_room(size, images):
            raise overloaded(admission.backlog_seconds)
        admission.images, admission.bytes = admission.images + images, admission.bytes + size
        self.images, self.bytes = self.images + images, self.bytes + size

    def release(self) -> None:
        """Give back what the request holds."""
        self.admission.images -= self.images
        self.admission.bytes -= self.bytes
        self.images = self.bytes = 0
