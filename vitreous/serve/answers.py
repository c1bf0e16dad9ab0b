"""The schemas of the server's JSON for its OpenAPI document, and how request bodies are described there."""

from typing import Any

from pydantic import BaseModel


class Score(BaseModel):
    """A class and its probability."""

    label: str
    probability: float


class Answer(BaseModel):
    """The model's answer for one image; `label` is null if it abstains. A bad image has `error` alone.

    `labels` is present if an image may have several: all that reach their thresholds.
    """

    file: str | None
    label: str | None = None
    labels: list[str] | None = None
    probability: float | None = None
    top: list[Score] | None = None
    error: str | None = None


class Answers(BaseModel):
    """One answer for each image, in the order in which they were sent."""

    predictions: list[Answer]


class Maps(BaseModel):
    """Where attention goes: for each head a map over the patches, and what the prefix tokens get."""

    kind: str
    layer: int
    grid: tuple[int, int]
    maps: list[list[list[float]]]
    prefix: list[list[float]]


class Relevance(BaseModel):
    """A class, and what supports it: a map over the patches."""

    label: str
    grid: tuple[int, int]
    map: list[list[float]]


class Problem(BaseModel):
    """Any error: a fixed word, a fixed sentence, and the id under which the log has this request."""

    error: str
    message: str
    request_id: str
    predictions: list[Answer] | None = None


class Health(BaseModel):
    """Whether the server is alive, or ready."""

    status: str


BINARY = {"schema": {"type": "string", "format": "binary"}}
FORM = {
    "schema": {
        "type": "object",
        "properties": {"image": {"type": "array", "items": {"type": "string", "format": "binary"}}},
        "required": ["image"],
    }
}
IMAGES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": FORM, "application/octet-stream": BINARY, "image/png": BINARY},
    }
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route, including those that the guard can return on every route."""
    return {status: {"model": Problem} for status in (400, 401, 403, 500, *statuses)}
