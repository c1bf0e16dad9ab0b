"""Tar shards that are damaged or made to mislead: each maker returns one file's bytes.

`MAKERS` has them by name, each as a function of a random generator, so that a fuzzer can draw variants.
"""

import io
import random
import tarfile
from collections.abc import Callable, Iterable

import numpy as np
from PIL import Image

BLOCK = tarfile.BLOCKSIZE
Member = tuple[str, bytes]


def samples(count: int, *, classes: int = 2) -> list[Member]:
    """Return the members of so many samples: a picture and its class each."""
    members = []
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        members += [
            (f"{number:05d}.png", buffer.getvalue()),
            (f"{number:05d}.cls", b"%d" % (number % classes)),
        ]
    return members


def shard(members: Iterable[Member]) -> bytes:
    """Return the members as a tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def headers(data: bytes) -> list[int]:
    """Return where each member's header stands."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [member.offset for member in archive]


def flipped(data: bytes, place: int, bit: int = 0) -> bytes:
    """Return the data with one bit changed."""
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def flipped_header(data: bytes, chance: random.Random) -> bytes:
    """Return a shard with one bit changed in the name, size or checksum of a member after the first."""
    start = chance.choice(headers(data)[1:])
    return flipped(
        data, start + chance.choice([*range(8), *range(124, 135), *range(148, 154)]), chance.randrange(8)
    )


def resized(data: bytes, number: int, size: int) -> bytes:
    """Return a shard whose member claims another size, with a right checksum; negative ones go back."""
    start = headers(data)[number]
    member = tarfile.TarInfo.frombuf(data[start : start + BLOCK], "utf-8", "surrogateescape")
    member.size = size
    header = member.tobuf(tarfile.GNU_FORMAT)[:BLOCK]
    return data[:start] + header + data[start + BLOCK :]


def labelled(label: bytes, ending: str = "json") -> bytes:
    """Return a shard of two samples, one of them with this label."""
    first, second = samples(2)[0], samples(2)[2:]
    return shard([first, (f"00000.{ending}", label), *second])


WHOLE = shard(samples(12))
MAKERS: dict[str, Callable[[random.Random], bytes]] = {
    "flipped header": lambda chance: flipped_header(WHOLE, chance),
    "flipped bit": lambda chance: flipped(WHOLE, chance.randrange(len(WHOLE)), chance.randrange(8)),
    "cut": lambda chance: WHOLE[: chance.randrange(1, len(WHOLE))],
    "two in one": lambda chance: WHOLE + shard(samples(chance.randrange(1, 4))),
    "too large": lambda chance: resized(WHOLE, chance.randrange(1, 8), chance.choice([1 << 20, 1 << 33])),
    "negative": lambda chance: resized(WHOLE, chance.randrange(1, 8), -BLOCK * chance.randrange(1, 5)),
    "deep label": lambda chance: labelled(b"[" * chance.choice([10, 100_000])),
    "odd label": lambda chance: labelled(
        chance.choice([b'{"label": 1.5}', b'{"label": {}}', b'{"label": [[1]]}'])
    ),
    "long number": lambda chance: labelled(b"9" * chance.choice([30, 5000]), "cls"),
}
