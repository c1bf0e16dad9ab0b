"""Files of weights that lie, are damaged, or ask for too much: each maker returns the bytes of one file."""

import json
import struct
from typing import Any

Document = dict[str, Any]


def split(data: bytes) -> tuple[Document, bytes]:
    """Take a safetensors file apart: its header as a document, and the bytes of its tensors."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(header: Document | bytes, body: bytes) -> bytes:
    """Put a safetensors file together from any header, whether it is true or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def described(data: bytes) -> Document:
    """Return the metadata document of a sealed file."""
    return json.loads(split(data)[0]["__metadata__"]["vitreous"])


def resealed(data: bytes, document: Document) -> bytes:
    """Return a sealed file with another document, and a checksum that covers it: a careful liar's file."""
    from vitreous import checkpoint

    sealed = {name: value for name, value in document.items() if name != "seal"}
    sealed["seal"] = checkpoint.seal(sealed)
    return described_as(data, sealed)


def described_as(data: bytes, document: Document) -> bytes:
    """Return a sealed file with another document, whose checksum is left as it was."""
    header, body = split(data)
    header["__metadata__"]["vitreous"] = json.dumps(document)
    return join(header, body)
