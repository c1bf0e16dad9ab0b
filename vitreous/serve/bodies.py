"""From a request to its encoded images: multipart or raw, limited while it arrives. None is decoded."""

from dataclasses import dataclass, field

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from vitreous.serve.admission import Hold
from vitreous.serve.settings import NOT_AN_IMAGE, Refusal, Settings, too_large

RAW = ("application/octet-stream", "")
SIGNATURES = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"II+\0",
)
SMALL_PIXELS = 128 * 128
MAX_NAME = 255
MAX_FIELDS = 64
"""Parts of a form besides its images, at most; they are ignored."""
BAD_FORM = Refusal(422, "bad_form", "the multipart form can't be read")
EMPTY = Refusal(422, "no_image", "the request has no image: send one as the body, or as files of a form")
WRONG_TYPE = Refusal(
    415,
    "wrong_type",
    "send the image as the body (image/*, application/octet-stream) or as multipart/form-data",
)


@dataclass
class Upload:
    """One encoded image, and the name that its sender gave to it."""

    file: str | None
    data: bytes = b""
    hold: Hold | None = None
    """Its reservation of decoding time; None for images that take next to nothing."""


def length(request: Request, settings: Settings) -> int:
    """Return the length that a request announces; without one, the largest that is allowed."""
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal():
        return settings.max_body
    if int(announced) > settings.max_body:
        raise too_large(settings.max_body)
    return int(announced)


async def uploads(request: Request, settings: Settings) -> list[Upload]:
    """Read the body, up to the allowed size, and return its images."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    form = kind == b"multipart/form-data"
    if not form and not kind.startswith(b"image/") and kind.decode("latin-1") not in RAW:
        raise WRONG_TYPE.fresh()
    body = await _body(request, settings)
    if not form:
        return [Upload(None, body)] if body else _none()
    boundary = options.get(b"boundary")
    if not boundary or len(boundary) > 200:
        raise BAD_FORM.fresh()
    found = _Form(boundary, settings.max_images).parse(body)
    return found or _none()


def looks_like_image(data: bytes) -> bool:
    """Tell whether bytes begin like one of the formats that are read."""
    webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    avif = data[4:8] == b"ftyp" and data[8:12] in (b"avif", b"avis", b"mif1")
    return data.startswith(SIGNATURES) or webp or avif


def is_small(data: bytes) -> bool:
    """Tell whether an image is decoded faster than it is handed to a thread: a PNG of few pixels and bytes,
    without compressed text, which may unpack to a thousand times its size."""
    if len(data) > 1 << 16 or data[:8] != SIGNATURES[1] or data[12:16] != b"IHDR":
        return False
    if b"zTXt" in data or b"iTXt" in data or b"iCCP" in data:
        return False
    return int.from_bytes(data[16:20]) * int.from_bytes(data[20:24]) <= SMALL_PIXELS


def checked(data: bytes) -> bytes:
    """Return the bytes, or refuse what is not an image."""
    if not looks_like_image(data):
        raise NOT_AN_IMAGE.fresh()
    return data


def _none() -> list[Upload]:
    raise EMPTY.fresh()


async def _body(request: Request, settings: Settings) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > settings.max_body:
            raise too_large(settings.max_body)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


@dataclass
class _Form:
    """The files of a multipart form; fields that are not files are ignored."""

    boundary: bytes
    most: int
    found: list[Upload] = field(default_factory=list)
    header: bytes = b""
    value: bytes = b""
    parts: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    content: list[bytes] = field(default_factory=list)

    def parse(self, body: bytes) -> list[Upload]:
        """Return the images of the form, in its order."""
        parser = MultipartParser(
            self.boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._field,
                "on_header_value": self._value,
                "on_header_end": self._header_end,
                "on_part_data": self._data,
                "on_part_end": self._end,
            },
        )
        try:
            parser.write(body)
            parser.finalize()
        except FormParserError:
            raise BAD_FORM.fresh() from None
        return self.found

    def _begin(self) -> None:
        self.parts += 1
        if self.parts > self.most + MAX_FIELDS:
            raise Refusal(413, "too_many", f"the form has more than {self.most + MAX_FIELDS} parts")
        self.headers, self.content = {}, []

    def _field(self, data: bytes, start: int, end: int) -> None:
        self.header += data[start:end]

    def _value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]

    def _header_end(self) -> None:
        self.headers[self.header.lower()] = self.value
        self.header = self.value = b""

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.content.append(data[start:end])

    def _end(self) -> None:
        _, options = parse_options_header(self.headers.get(b"content-disposition", b""))
        name = options.get(b"filename")
        if name is None:
            return
        if len(self.found) == self.most:
            raise Refusal(413, "too_many", f"the request has more than {self.most} images")
        self.found.append(Upload(name.decode("utf-8", "backslashreplace")[:MAX_NAME], b"".join(self.content)))
