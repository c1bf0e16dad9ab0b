"""One classifier and its queue: from encoded images to answers within a deadline. Knows no routes."""

import asyncio
import functools
import io
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from starlette.requests import Request
from torch import Tensor

from vitreous.data.decode import decode
from vitreous.data.guarded import TooCostly, Workers
from vitreous.errors import DataError
from vitreous.predict import Classifier, Prepared
from vitreous.predict.choice import equip
from vitreous.serve import bodies
from vitreous.serve.admission import Admission, Reservation
from vitreous.serve.batcher import Batcher
from vitreous.serve.costs import cost
from vitreous.serve.crowd import neighbourhood
from vitreous.serve.lanes import Lane
from vitreous.serve.logs import log
from vitreous.serve.meters import Meters
from vitreous.serve.settings import (
    NOT_READY,
    TOO_COSTLY,
    TOO_LATE,
    TOO_SLOW,
    UNREADABLE,
    Refusal,
    Settings,
    overloaded,
)

Result = TypeVar("Result")
DECODERS = 2
MAX_INSPECTIONS = 8
"""Requests for attention in progress at once: admission assumes predictions, which take less."""


class Service:
    """One classifier and its queue: from encoded images to answers."""

    def __init__(self, classifier: Classifier, name: str, settings: Settings) -> None:
        self.classifier, self.name, self.settings = classifier, name, settings
        self.meters, self.admission = Meters(), Admission(settings)
        self.meters.inside.set_function(lambda: self.admission.images)
        self.batcher = Batcher(self._compute, self.admission, self.meters.batches.observe)
        self.cheap, self.small = Lane("decode", DECODERS), Lane("small", DECODERS)
        self.dear = Lane("guard", DECODERS, slow=True)
        self.batcher.shared = lambda: self.dear.work > 0
        self.workers: Workers | None = None
        self.ready, self.inspections = False, 0

    def open(self) -> None:
        """Start the processes that decode dear pictures, before there are threads."""
        if hasattr(os, "fork"):
            self.workers = Workers(self._arrays, self.settings.decode_memory)

    async def warm(self) -> None:
        """Prepare the runtime, measure it, then accept requests."""
        settings = self.settings
        self.classifier = await asyncio.to_thread(
            functools.partial(equip, say=lambda line: log("info", "runtime", message=line)),
            *(self.classifier, settings.runtime, settings.precision),
        )
        preprocessing = self.classifier.preprocess.preprocessing
        blank = np.zeros((*preprocessing.image_size, preprocessing.channels), np.uint8)
        example = self.classifier.prepare(blank)
        await asyncio.to_thread(self.batcher.calibrate, example, self.classifier.device)
        self.batcher.start()
        self.ready = True
        self.meters.ready.set(1)
        batcher = self.batcher
        how = "on the event loop" if batcher.inline else f"in threads: {batcher.workers}"
        each = round(1000 * self.admission.seconds_per_image, 3)
        runtime = "torch" if self.classifier.engine is None else self.classifier.engine.name
        log(
            "info",
            "ready",
            batch=batcher.max_batch,
            compute=how,
            milliseconds_per_image=each,
            runtime=runtime,
        )

    def close(self) -> None:
        """Finish the requests in progress."""
        self.ready = False
        if self.batcher.loop is not None:
            self.batcher.stop()
        if self.workers is not None:
            self.workers.close()
        for lane in (self.dear, self.small, self.cheap):
            lane.close()

    @asynccontextmanager
    async def request(
        self, request: Request, *, images: int | None = None
    ) -> AsyncIterator[list[bodies.Upload]]:
        """Let a request in, read its body, and enforce its deadline until it is answered."""
        if not self.ready:
            raise NOT_READY.fresh()
        size = bodies.length(request, self.settings)
        if not self.admission.has_room(size) and (delay := self.admission.refusal_delay()):
            await asyncio.sleep(delay)
        with self.admission.admit(size) as reservation:
            late = TOO_SLOW
            try:
                async with asyncio.timeout(self.settings.deadline):
                    address = neighbourhood(request.client.host if request.client else "")
                    with self.admission.receiving(address, size):
                        uploads = await bodies.uploads(request, self.settings)
                    if images is not None and len(uploads) > images:
                        raise Refusal(422, "too_many", f"send {images} image")
                    if len(uploads) > 1:
                        reservation.add(len(uploads) - 1, 0)
                    self._hold(uploads, reservation)
                    late = TOO_LATE
                    yield uploads
            except TimeoutError:
                raise late.fresh() from None

    async def inspect(self, function: Callable[[], Result]) -> Result:
        """Run something that looks inside the model, or refuse if too many are doing so."""
        if self.inspections >= MAX_INSPECTIONS:
            raise overloaded(self.admission.backlog_seconds)
        self.inspections += 1
        try:
            return await self.batcher.run_beside(function)
        finally:
            self.inspections -= 1

    def _hold(self, uploads: Sequence[bodies.Upload], reservation: Reservation) -> None:
        """Reserve decoding time for the images that need it, or refuse the request."""
        if len(uploads) == 1 and bodies.is_small(uploads[0].data):
            return
        lanes: dict[Lane, list[tuple[bodies.Upload, float]]] = {self.cheap: [], self.small: [], self.dear: []}
        for upload in uploads:
            if bodies.is_small(upload.data) or not bodies.looks_like_image(upload.data):
                continue
            work, little, sure = cost(upload.data, self.settings.max_pixels)
            lane = self.cheap if sure else self.small if little else self.dear
            lanes[lane].append((upload, work))
        for lane, some in lanes.items():
            if some:
                for (upload, _), hold in zip(
                    some, reservation.decode(lane, [w for _, w in some]), strict=True
                ):
                    upload.hold = hold

    async def read(self, upload: bodies.Upload) -> Prepared:
        """Return what the model sees; tiny images are decoded here, others in a thread, dear ones in a
        process."""
        data, hold = bodies.checked(upload.data), upload.hold
        if hold is None:
            return self.prepare(data)
        try:
            way = self.prepare if hold.lane is self.cheap else self._prepare_guarded
            return await hold.lane.run(hold.work, way, data)
        finally:
            hold.release()

    async def answer(self, upload: bodies.Upload, top: int) -> dict[str, Any]:
        """Return the prediction for one image."""
        prepared, place, waiting = await self.read(upload), object(), self.admission.waiting
        waiting[place] = arrived = time.perf_counter()
        try:
            row = await self.batcher.submit(prepared, arrived)
        finally:
            del waiting[place]
        best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:top]
        return self.classifier.prediction(row, best, upload.file).to_dict()

    async def as_png(self, upload: bodies.Upload) -> bytes:
        """Return the pixels that the model sees, as PNG."""
        prepared = await self.read(upload)
        return await self.cheap.run(0, _png, prepared.pixels)

    def prepare(self, data: bytes) -> Prepared:
        """Decode an image within the pixel limit, and fit it to the model's size."""
        try:
            return self._prepared(data)
        except DataError:
            raise UNREADABLE.fresh() from None

    def _prepare_guarded(self, data: bytes) -> Prepared:
        if self.workers is None:
            return self.prepare(data)
        try:
            arrays, said = self.workers.run(data, self.settings.decode_seconds)
        except TooCostly as error:
            log("warning", "too_costly", message=str(error))
            raise TOO_COSTLY.fresh() from None
        except DataError:
            raise UNREADABLE.fresh() from None
        if said:
            log("warning", "library", logger="decoder", message=said)
        return Prepared(arrays[0], arrays[1] if len(arrays) > 1 else None)

    def _arrays(self, data: bytes) -> list[np.ndarray]:
        return [each for each in self._prepared(data) if each is not None]

    def _prepared(self, data: bytes) -> Prepared:
        channels = self.classifier.preprocess.preprocessing.channels
        picture = decode(data, channels, max_pixels=self.settings.max_pixels, guarded=True)
        return self.classifier.prepare(picture)

    def _compute(self, pictures: Sequence[Prepared]) -> Tensor:
        return self.classifier.probabilities(*self.classifier.collate(pictures))


def _png(pixels: np.ndarray) -> bytes:
    held = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(held, "PNG")
    return held.getvalue()
