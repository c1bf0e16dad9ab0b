"""Text as other programs can read it: JSON of finite numbers, names of any bytes. Nothing is written here."""

import json
import math
import re
from typing import Any

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters, separators of lines, and marks that turn the direction of what follows."""
STRAY = re.compile("[\udc80-\udcff]")
"""Bytes of a file's name that are not UTF-8, as Python holds them."""


def encodable(text: str, encoding: str = "utf-8") -> str:
    """Return text for people, in which what the encoding has no bytes for is spelled out.

    A byte of a name that is not UTF-8 is `\\xff`, wherever it is shown; a shell takes that as $'\\xff'.
    """
    if text.isascii():
        return text
    text = STRAY.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", text)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def harmless(text: str) -> str:
    """Return text with every character spelled out that a terminal would obey."""
    return CONTROLS.sub(lambda found: _spelled(found[0]), text)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()


def finite(value: Any) -> Any:
    """Return JSON values with null in place of NaN and infinity, for which JSON has no word."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def as_json(value: Any, *, indent: int | None = None, encoding: str = "utf-8") -> str:
    """Return one JSON document that every reader takes, in characters that the encoding has."""
    try:
        return finite_json(value, indent=indent, encoding=encoding)
    except ValueError:  # looked for only here: an answer of the server should cost next to nothing
        return finite_json(finite(value), indent=indent, encoding=encoding)


def finite_json(value: Any, *, indent: int | None = None, encoding: str = "utf-8") -> str:
    """Return the same; refuse what is not finite. Names of any bytes are read back as they were: JSON has an
    escape for what people are shown as `\\xff`."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent, allow_nan=False)
    return text
