"""One classifier and its queue: from encoded images to answers within a deadline. Knows of no route."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from starlette.requests import Request
from torch import Tensor

from vitreous.data.decode import decode
from vitreous.errors import DataError
from vitreous.predict import Classifier, Prepared
from vitreous.serve import bodies
from vitreous.serve.admission import Admission
from vitreous.serve.batcher import Batcher
from vitreous.serve.logs import log
from vitreous.serve.meters import Meters
from vitreous.serve.settings import NOT_READY, TOO_LATE, TOO_SLOW, UNREADABLE, Refusal, Settings, overloaded

Result = TypeVar("Result")
DECODERS = 2
MAX_INSPECTIONS = 8
"""Requests for attention in progress at once: admission counts with predictions, which take less."""


class Service:
    """One classifier and its queue: from encoded images to answers."""

    def __init__(self, classifier: Classifier, name: str, settings: Settings) -> None:
        self.classifier, self.name, self.settings = classifier, name, settings
        self.meters, self.admission = Meters(), Admission(settings)
        self.meters.inside.set_function(lambda: self.admission.images)
        self.batcher = Batcher(self._compute, self.admission, self.meters.batches.observe)
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decode")
        self.ready, self.inspections = False, 0

    async def warm(self) -> None:
        """Measure the model, then take requests."""
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
        log("info", "ready", batch=self.batcher.max_batch, compute=how, milliseconds_per_image=each)

    def close(self) -> None:
        """Finish the requests in progress."""
        self.ready = False
        if self.batcher.loop is not None:
            self.batcher.stop()
        self.decoders.shutdown()

    @asynccontextmanager
    async def request(
        self, request: Request, *, images: int | None = None
    ) -> AsyncIterator[list[bodies.Upload]]:
        """Let a request in, read its body, and hold its deadline until it is answered."""
        if not self.ready:
            raise NOT_READY.fresh()
        size = bodies.length(request, self.settings)
        if not self.admission.has_room(size) and (delay := self.admission.refusal_delay()):
            await asyncio.sleep(delay)
        with self.admission.admit(size) as reservation:
            late = TOO_SLOW
            try:
                async with asyncio.timeout(self.settings.deadline):
                    uploads = await bodies.uploads(request, self.settings)
                    if images is not None and len(uploads) > images:
                        raise Refusal(422, "too_many", f"send {images} image")
                    if len(uploads) > 1:
                        reservation.add(len(uploads) - 1, 0)
                    late = TOO_LATE
                    yield uploads
            except TimeoutError:
                raise late.fresh() from None

    async def inspect(self, function: Callable[[], Result]) -> Result:
        """Run something that looks inside the model, or refuse when many are doing so."""
        if self.inspections >= MAX_INSPECTIONS:
            raise overloaded(self.admission.backlog_seconds)
        self.inspections += 1
        try:
            return await self.batcher.run_beside(function)
        finally:
            self.inspections -= 1

    async def read(self, data: bytes) -> Prepared:
        """Return what the model sees; tiny images are decoded here, others in a thread."""
        bodies.checked(data)
        if bodies.is_small(data):
            return self.prepare(data)
        return await asyncio.get_running_loop().run_in_executor(self.decoders, self.prepare, data)

    async def answer(self, upload: bodies.Upload, top: int) -> dict[str, Any]:
        """Return the prediction for one image."""
        arrived = time.perf_counter()
        row = await self.batcher.submit(await self.read(upload.data), arrived)
        best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:top]
        return self.classifier.prediction(row, best, upload.file).to_dict()

    def as_png(self, data: bytes) -> bytes:
        """Return the pixels that the model sees, as PNG."""
        pixels = self.prepare(data).pixels
        held = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(held, "PNG")
        return held.getvalue()

    def prepare(self, data: bytes) -> Prepared:
        """Decode an image of no more pixels than are allowed, and fit it to the model's size."""
        channels = self.classifier.preprocess.preprocessing.channels
        try:
            return self.classifier.prepare(decode(data, channels, max_pixels=self.settings.max_pixels))
        except DataError:
            raise UNREADABLE.fresh() from None

    def _compute(self, pictures: Sequence[Prepared]) -> Tensor:
        return self.classifier.probabilities(*self.classifier.collate(pictures))
