"""Not looked into: its thousands of modules took pyright half a minute, and its types say little."""

from typing import Any

def __getattr__(name: str) -> Any: ...
