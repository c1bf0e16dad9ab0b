"""One classifier behind a door: from encoded images to answers within a deadline. Knows of no route."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from starlette.requests import Request

from vitreous.data.decode import decode
from vitreous.errors import DataError
from vitreous.predict import Classifier
from vitreous.serve import bodies
from vitreous.serve.batcher import Batcher, Door
from vitreous.serve.guard import log
from vitreous.serve.meters import Meters
from vitreous.serve.settings import NOT_READY, TOO_LATE, TOO_SLOW, UNREADABLE, Refusal, Settings, overloaded

Result = TypeVar("Result")
DECODERS = 2
LOOKERS = 8
"""Requests for attention inside at once: one takes longer than a prediction, and the door counts in those."""


class Service:
    """One classifier behind a door: from encoded images to answers."""

    def __init__(self, classifier: Classifier, name: str, settings: Settings) -> None:
        self.classifier, self.name, self.settings = classifier, name, settings
        self.meters, self.door = Meters(), Door(settings)
        self.meters.inside.set_function(lambda: self.door.images)
        self.batcher = Batcher(classifier.probabilities_of, self.door, self.meters.batches.observe)
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decode")
        self.ready, self.lookers = False, 0

    async def warm(self) -> None:
        """Measure the model, then take requests."""
        preprocessing = self.classifier.preprocess.preprocessing
        shape = (*preprocessing.image_size, preprocessing.channels)
        await asyncio.to_thread(self.batcher.calibrate, shape, self.classifier.device)
        self.batcher.start()
        self.ready = True
        self.meters.ready.set(1)
        batcher = self.batcher
        how = "on the event loop" if batcher.inline else f"in threads: {batcher.workers}"
        each = round(1000 * self.door.seconds_per_image, 3)
        log("info", "ready", batch=self.batcher.max_batch, compute=how, milliseconds_per_image=each)

    def close(self) -> None:
        """Finish what is inside."""
        self.ready = False
        if self.batcher.loop is not None:
            self.batcher.stop()
        self.decoders.shutdown()

    @asynccontextmanager
    async def request(
        self, request: Request, *, images: int | None = None
    ) -> AsyncIterator[list[bodies.Picture]]:
        """Let a request in, read its body, and hold its deadline until it is answered."""
        if not self.ready:
            raise NOT_READY
        size = bodies.length(request, self.settings)
        if not self.door.open(size) and (delay := self.door.delay()):
            await asyncio.sleep(delay)
        with self.door.entry(size) as entry:
            late = TOO_SLOW
            try:
                async with asyncio.timeout(self.settings.deadline):
                    pictures = await bodies.pictures(request, self.settings)
                    if images is not None and len(pictures) > images:
                        raise Refusal(422, "too_many", f"send {images} image")
                    if len(pictures) > 1:
                        entry.add(len(pictures) - 1, 0)
                    late = TOO_LATE
                    yield pictures
            except TimeoutError:
                raise late from None

    async def look(self, function: Callable[[], Result]) -> Result:
        """Run something that looks inside the model, or refuse when several already do."""
        if self.lookers >= LOOKERS:
            raise overloaded(self.door.wait)
        self.lookers += 1
        try:
            return await self.batcher.aside(function)
        finally:
            self.lookers -= 1

    async def read(self, data: bytes) -> np.ndarray:
        """Return the pixels that the model sees; tiny images are decoded here, others in a thread."""
        bodies.checked(data)
        if bodies.is_small(data):
            return self.pixels(data)
        return await asyncio.get_running_loop().run_in_executor(self.decoders, self.pixels, data)

    async def answer(self, picture: bodies.Picture, top: int) -> dict[str, Any]:
        """Return the prediction for one image."""
        arrived = time.perf_counter()
        row = await self.batcher.submit(await self.read(picture.data), arrived)
        labels = self.classifier.labels
        best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:top]
        scores = [{"label": labels[each], "probability": row[each]} for each in best]
        label, several = self.classifier.decide(row, best[0])
        given = {} if several is None else {"labels": several}
        return {"file": picture.file, "label": label, "probability": row[best[0]], "top": scores, **given}

    def seen(self, data: bytes) -> bytes:
        """Return the pixels that the model sees, as PNG."""
        pixels = self.pixels(data)
        held = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(held, "PNG")
        return held.getvalue()

    def pixels(self, data: bytes) -> np.ndarray:
        """Decode, resize and crop an image: uint8 (H, W, C)."""
        transform = self.classifier.preprocess
        try:
            image = decode(data, transform.preprocessing.channels, max_pixels=self.settings.max_pixels)
            return transform.pixels(image)
        except DataError:
            raise UNREADABLE from None
