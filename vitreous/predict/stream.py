"""Many files through one classifier: decoding overlaps with computing, in the order given and bounded memory.

A file that can't be read is one entry with its reason; the others go on.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from vitreous.errors import DataError, ModelError, OptionError
from vitreous.models import cost
from vitreous.predict.classifier import Classifier, Failure, Prediction, Prepared
from vitreous.predict.inputs import Item

# Multiply-adds of one batch: enough to hide the cost of launching it, little enough to answer soon.
BATCH_WORK = {"cpu": 30e9, "cuda": 4e12}
LARGEST_BATCH = 512


def batch_size(classifier: Classifier) -> int:
    """Return how many images to compute at once on the classifier's device."""
    work = BATCH_WORK["cpu" if classifier.device.type == "cpu" else "cuda"]
    return max(4, min(LARGEST_BATCH, int(work / cost.flops(classifier.model.config))))


def predict_all(
    classifier: Classifier,
    items: Iterable[Item],
    *,
    top: int = 5,
    batch: int | None = None,
    workers: int | None = None,
) -> Iterator[Prediction | Failure]:
    """Yield a prediction or a failure for each item, in order, decoded by `workers` threads (None: one per
    core)."""
    if top < 1:
        raise OptionError(f"top={top} is out of range: use 1 or more")
    if not classifier.labels:
        raise ModelError("this model has no classes: fine-tune it first, or use `vitreous probe`")
    for read in batches(classifier, items, batch=batch, workers=workers):
        yield from _answers(classifier, read, top)


Read = list[tuple[Item, Prepared | DataError]]
"""Some items, each with its picture or with the reason why that can't be read."""


def require_counts(batch: int | None, workers: int | None) -> None:
    """Refuse numbers that can't be done: no image at a time, or fewer threads than none."""
    if batch is not None and batch < 1:
        raise OptionError(f"--batch-size {batch} is out of range: use 1 or more")
    if workers is not None and workers < 0:
        raise OptionError(f"--workers {workers} is out of range: use 0 or more")


def batches(
    classifier: Classifier, items: Iterable[Item], *, batch: int | None = None, workers: int | None = None
) -> Iterator[Read]:
    """Yield the items in order, decoded by `workers` threads (None: one per core), as many as fit a batch."""
    require_counts(batch, workers)
    batch = batch_size(classifier) if batch is None else batch
    workers = max(1, workers if workers is not None else os.cpu_count() or 1)
    waiting: Read = []
    for item, read in _read_ahead(classifier, items, workers, ahead=2 * batch + workers):
        waiting.append((item, read))
        if sum(isinstance(each, Prepared) for _, each in waiting) == batch or len(waiting) >= 4 * batch:
            yield waiting
            waiting = []
    yield waiting


def _read_ahead(
    classifier: Classifier, items: Iterable[Item], workers: int, ahead: int
) -> Iterator[tuple[Item, Prepared | DataError]]:
    """Decode in threads (Pillow releases the interpreter's lock), at most `ahead` files before use."""
    running: deque[tuple[Item, Future[Prepared | DataError]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    try:
        for item in items:
            running.append((item, pool.submit(_read, classifier, item)))
            if len(running) >= ahead:
                first, result = running.popleft()
                yield first, result.result()
        while running:
            first, result = running.popleft()
            yield first, result.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read(classifier: Classifier, item: Item) -> Prepared | DataError:
    try:
        if item.error is not None:
            raise DataError(item.error)
        return classifier.prepare(item.file if item.data is None else item.data)
    except DataError as error:
        return error
    except MemoryError:
        return DataError("there is not enough memory for it: scale the image down, or use fewer --workers")


def _answers(classifier: Classifier, read: Read, top: int) -> Iterator[Prediction | Failure]:
    good = [(item.file, image) for item, image in read if isinstance(image, Prepared)]
    named: Iterator[Prediction] = iter(())
    if good:
        probabilities = compute(classifier, [image for _, image in good])
        named = iter(classifier.name(probabilities, [file or None for file, _ in good], top=top))
    for item, image in read:
        if isinstance(image, Prepared):
            yield next(named)
        else:
            yield Failure(item.file or None, reason(item, image))


def reason(item: Item, error: DataError) -> str:
    """Return why an item can't be read, without its name."""
    return str(error).removeprefix(f"{item.file}: ").removeprefix("image: ")


def compute(classifier: Classifier, pictures: Sequence[Prepared]) -> Tensor:
    """Return the probabilities of a batch; one that does not fit into the device's memory is halved."""
    try:
        return classifier.probabilities(*classifier.collate(pictures))
    except torch.OutOfMemoryError:
        if len(pictures) == 1:
            raise
    half = len(pictures) // 2
    return torch.cat([compute(classifier, part) for part in (pictures[:half], pictures[half:])])
