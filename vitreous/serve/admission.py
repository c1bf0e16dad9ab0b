"""Which requests are let in: as many as can be answered in time, in no more memory than is allowed.

Knows how many images are in progress, what decoding them costs and how long one takes; computes nothing.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from vitreous.serve.lanes import Lane
from vitreous.serve.settings import TOO_MUCH, Settings, overloaded

HEADROOM = 0.3
"""Requests are let in while the work before them takes at most this share of the deadline: even if the
machine then gets three times slower, they are answered in time."""
TOGETHER = 0.6
"""The share of the deadline that decoding a request's images and those before it may take."""
MANY_REFUSALS = 500
"""Refusals per second that are sent at once; beyond that, each waits a little (see `refusal_delay`)."""


class Admission:
    """Counts the requests in progress, and refuses what could not be answered in time. Event loop only."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.images = self.bytes = 0
        self.arriving = self.decoding = 0
        """Images that the model can't begin with: their request is still arriving, or they are in the lane of
        slow decoding."""
        self.seconds_per_image = 0.0
        self.waiting: dict[object, float] = {}
        """When each image began to wait for the model, the longest waiting first."""
        self.senders: dict[str, tuple[int, int]] = {}
        """Requests and bytes that are still arriving, by address."""
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
        """Seconds until the model has done all decoded images; at least as long as the first has waited."""
        first = next(iter(self.waiting.values()), None)
        waited = 0.0 if first is None else time.perf_counter() - first
        return max(waited, (self.images - self.arriving - self.decoding) * self.seconds_per_image)

    def computed(self, images: int, seconds: float) -> None:
        """Learn how long images took: the pace is that of the last second, or of the last ten batches, so
        that it recovers soon after a standstill."""
        share = max(0.1, 1 - math.exp(-seconds))
        self.seconds_per_image += share * (seconds / images - self.seconds_per_image)

    def has_room(self, size: int, images: int = 1) -> bool:
        """Return whether `images` more, in a request of `size` bytes, can be answered in time."""
        full = self.images + images > self.settings.queue
        heavy = self.bytes > 0 and self.bytes + size > self.settings.queue_bytes
        return not (full or heavy or self.late)

    @property
    def late(self) -> bool:
        """Whether a request would have to wait too long."""
        return self.backlog_seconds > HEADROOM * self.settings.deadline

    @contextmanager
    def admit(self, size: int) -> Iterator["Reservation"]:
        """Reserve room for one request, or refuse it before a byte of its body is read."""
        reservation = Reservation(self)
        reservation.add(1, size)
        try:
            yield reservation
        finally:
            reservation.release()

    @contextmanager
    def receiving(self, address: str, size: int) -> Iterator[None]:
        """Count a body while it arrives; refuse it if its address already has half of all places.

        While it arrives it does not count as backlog: a few slow senders would shut everybody out of a slow
        model. So the backlog is checked again once it is there.
        """
        count, held = self.senders.get(address, (0, 0))
        if count and (2 * count >= self.settings.queue or 2 * (held + size) > self.settings.queue_bytes):
            raise overloaded(self.settings.deadline)
        self.senders[address] = count + 1, held + size
        self.arriving += 1
        try:
            yield
            if self.late:
                raise overloaded(self.backlog_seconds)
        finally:
            self.arriving -= 1
            count, held = self.senders.pop(address)
            if count > 1:
                self.senders[address] = count - 1, held - size


class Hold:
    """The work that one image reserves in a lane until it is decoded, or given up."""

    def __init__(self, admission: Admission, lane: Lane, work: float) -> None:
        self.admission, self.lane, self.work = admission, lane, work
        self.held = True
        lane.work += work
        admission.decoding += lane.slow

    def release(self) -> None:
        """Give it back, once at most."""
        if self.held:
            self.held = False
            self.lane.work -= self.work
            self.admission.decoding -= self.lane.slow


class Reservation:
    """The images and bytes that one request holds, and the work of decoding them."""

    def __init__(self, admission: Admission) -> None:
        self.admission, self.images, self.bytes = admission, 0, 0
        self.holds: list[Hold] = []

    def add(self, images: int, size: int) -> None:
        """Hold more, or refuse the request."""
        admission = self.admission
        if not admission.has_room(size, images):
            raise overloaded(admission.backlog_seconds)
        admission.images, admission.bytes = admission.images + images, admission.bytes + size
        self.images, self.bytes = self.images + images, self.bytes + size

    def decode(self, lane: Lane, works: list[float]) -> list[Hold]:
        """Hold the work of some images in a lane, or refuse the request."""
        settings = self.admission.settings
        longest = settings.decode_seconds / lane.pace  # one image never takes more
        works = [min(work, longest) for work in works]
        own, before = sum(works) * lane.pace / lane.threads, lane.seconds
        if len(works) > 1 and own > TOGETHER * settings.deadline:
            raise TOO_MUCH.fresh()
        busy = before > HEADROOM * settings.deadline
        if busy or (before > 0 and before + own > TOGETHER * settings.deadline):
            raise overloaded(before)
        made = [Hold(self.admission, lane, work) for work in works]
        self.holds += made
        return made

    def release(self) -> None:
        """Give back what the request holds."""
        self.admission.images -= self.images
        self.admission.bytes -= self.bytes
        self.images = self.bytes = 0
        for hold in self.holds:
            hold.release()
