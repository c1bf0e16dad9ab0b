"""The application: its routes, from the simplest to the largest."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from importlib import resources
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from vitreous.inspection import position_similarity
from vitreous.inspection.attention import unwrap
from vitreous.models.vit import VisionTransformer
from vitreous.predict import Classifier
from vitreous.serve import answers
from vitreous.serve import attention as attention_rows
from vitreous.serve.card import card
from vitreous.serve.examples import Examples, examples
from vitreous.serve.guard import FAILED, Guard, error_response
from vitreous.serve.service import Service
from vitreous.serve.settings import (
    NO_CLASSES,
    NOT_AN_IMAGE,
    NOT_READY,
    UNREADABLE,
    Refusal,
    Settings,
)
from vitreous.version import __version__
from vitreous.written import as_json

IMAGE_PROBLEMS = (408, 413, 415, 422, 429, 503, 504)
UNKNOWN = {
    404: ("not_found", "there is nothing at this path"),
    405: ("method_not_allowed", "this path does not take that method"),
}
Handler = Callable[..., Coroutine[Any, Any, Response]]


class Shortcut:
    """ASGI middleware: predictions without parameters bypass FastAPI and its middlewares, which would have
    nothing to check and would cost as much as decoding a small image."""

    def __init__(self, app: ASGIApp, predict: Handler) -> None:
        self.app, self.predict = app, predict

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != "/predict" or scope["method"] != "POST" or scope["query_string"]:
            return await self.app(scope, receive, send)
        request = Request(scope, receive)
        try:
            response = await self.predict(request)
        except Refusal as refusal:
            response = error_response(refusal, request.state.request_id)
        await response(scope, receive, send)


def create_app(
    classifier: Classifier,
    name: str = "model",
    settings: Settings | None = None,
    give_up: Callable[[BaseException], None] | None = None,
    shown: Examples | None = None,
) -> ASGIApp:
    """Return the ASGI application that serves one classifier; `give_up` is called if it can't warm up.

    `shown` are the page's examples; None: the model's own, or those that come with the program."""
    settings = settings or Settings()
    service = Service(classifier, name, settings)

    app = FastAPI(
        title="vitreous",
        version=__version__,
        summary=f"Predictions and attention of {name}",
        docs_url=None,  # FastAPI's pages load scripts from other hosts
        redoc_url=None,
        lifespan=_lifespan(service, give_up),
    )
    _errors(app)
    _state_routes(app, service)
    predict = _image_routes(app, service)
    config = classifier.model.config
    if config.has_attention and config.frames is None:
        for add in (_attention_route, _relevance_route, _positions_route):
            add(app, service, unwrap(classifier.model))
    _page_routes(app, service, shown)
    routes = {getattr(route, "path", "") for route in app.routes}
    share = partial(
        CORSMiddleware,
        allow_origins=settings.origins,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
        expose_headers=["X-Shape", "X-Request-ID", "Retry-After"],
    )
    shared = [share] if settings.origins else []
    return Guard(Shortcut(app, predict), settings, service.meters, routes, *shared)


def _lifespan(service: Service, give_up: Callable[[BaseException], None] | None) -> Lifespan[FastAPI]:
    def ended(warming: "asyncio.Task[None]") -> None:
        if not warming.cancelled() and (error := warming.exception()) is not None and give_up is not None:
            give_up(error)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.open()
        warming = asyncio.create_task(service.warm())
        warming.add_done_callback(ended)
        yield
        if not warming.done():
            warming.cancel()
        service.close()

    return lifespan


def _errors(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return error_response(error, request.state.request_id)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        names = sorted({str(each["loc"][-1]) for each in error.errors()})
        message = f"out of range or malformed: {', '.join(names)}; see /openapi.json for what is allowed"
        return error_response(Refusal(422, "invalid", message), request.state.request_id)

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        word, message = UNKNOWN.get(error.status_code, ("invalid", "the request can't be answered"))
        refusal = Refusal(error.status_code, word, message, error.headers)
        return error_response(refusal, request.state.request_id)

    async def failed(request: Request, _: Exception) -> Response:
        return error_response(FAILED, request.state.request_id)  # it is raised again, and the guard logs it

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(Exception, failed)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, unknown)


def _state_routes(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_model=answers.Health, responses=answers.problems())
    async def healthz() -> Response:
        """Report that the process is alive."""
        return _json({"status": "alive"})

    @app.get("/readyz", response_model=answers.Health, responses=answers.problems(503))
    async def readyz() -> Response:
        """Report whether the model is warm and requests are accepted."""
        if not service.ready:
            raise NOT_READY.fresh()
        return _json({"status": "ready"})

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}, **answers.problems()})
    async def metrics() -> Response:
        """Return the metrics for Prometheus."""
        return Response(service.meters.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/model", responses=answers.problems())
    async def model() -> Response:
        """Return the model's card: architecture, classes, preprocessing, measured results."""
        return _json(card(service.classifier, service.name, service.settings))


def _image_routes(app: FastAPI, service: Service) -> Handler:
    """Add the routes that take images; return the handler of a prediction without parameters."""
    most = max(1, len(service.classifier.labels))

    @app.post(
        "/predict",
        response_model=answers.Answers,
        responses=answers.problems(*IMAGE_PROBLEMS),
        openapi_extra=answers.IMAGES,
    )
    async def predict(request: Request, top: Annotated[int, Query(ge=1, le=most)] = min(5, most)) -> Response:
        """Label one image (the body) or several (a form); a bad one fails alone."""
        return await answered(request, top)

    async def answered(request: Request, top: int) -> Response:
        if not service.classifier.labels:
            raise NO_CLASSES.fresh()
        async with service.request(request) as uploads:
            if len(uploads) == 1:
                return _json({"predictions": [await _counted(service, service.answer(uploads[0], top))]})
            tasks = (_or_refusal(_counted(service, service.answer(each, top))) for each in uploads)
            found = await asyncio.gather(*tasks)
        entries = [
            {"file": upload.file, "error": each.code} if isinstance(each, Refusal) else each
            for upload, each in zip(uploads, found, strict=True)
        ]
        refusals = [each for each in found if isinstance(each, Refusal)]
        if len(refusals) < len(found):
            return _json({"predictions": entries})
        worst = NOT_AN_IMAGE if all(each.code == NOT_AN_IMAGE.code for each in refusals) else UNREADABLE
        raise worst.fresh(predictions=entries)

    @app.post(
        "/preprocess",
        responses={200: {"content": {"image/png": {}}}, **answers.problems(*IMAGE_PROBLEMS)},
        response_class=Response,
        openapi_extra=answers.IMAGES,
    )
    async def preprocess(request: Request) -> Response:
        """Return what the model sees of an image, as PNG: resized and cropped, not yet normalised."""
        async with service.request(request, images=1) as (upload,):
            seen = await service.as_png(upload)
        return Response(seen, media_type="image/png")

    return partial(answered, top=min(5, most))


def _attention_route(app: FastAPI, service: Service, model: VisionTransformer) -> None:
    config = model.config
    Layer = Annotated[int, Query(ge=-config.depth, lt=config.depth, description="Negative: from the last.")]
    Head = Annotated[str, Query(pattern=r"^(mean|all|[0-9]{1,3})$", description="mean, all, or a number.")]
    Patch = Annotated[
        str | None,
        Query(pattern=r"^(class|mean|all|[0-9]{1,5})$", description="class, mean, a number, or all."),
    ]
    kinds = {200: {"content": {"application/json": {}, "application/octet-stream": {}}}}

    @app.post(
        "/attention",
        response_model=answers.Maps,
        responses={**kinds, **answers.problems(*IMAGE_PROBLEMS)},
        openapi_extra=answers.IMAGES,
    )
    async def attention(
        request: Request,
        kind: attention_rows.Kind = "attention",
        layer: Layer = -1,  # type: ignore[valid-type]
        head: Head = "mean",  # type: ignore[valid-type]
        patch: Patch = None,  # type: ignore[valid-type]
    ) -> Response:
        """Return what one image's tokens attend to: maps of a layer and head from a patch or the class token.

        `kind=rollout` multiplies the layers up to `layer`. `patch=all` gives every token's row at once, as
        little-endian half floats; the header X-Shape has its shape (heads, tokens, tokens).
        """
        number = layer % config.depth
        if head.isdecimal() and int(head) >= config.heads:
            raise Refusal(422, "no_such_head", f"head must be mean, all, or 0 to {config.heads - 1}")
        async with service.request(request, images=1) as (upload,):
            images, mask = service.classifier.collate([await service.read(upload)])
            found = await service.inspect(lambda: attention_rows.links(model, images, mask, kind, number))
        found = attention_rows.heads(found, kind, head)
        if patch == "all":
            return _half_floats(found)
        default = "class" if config.class_token else "mean"
        rows = attention_rows.choose(found, config, patch or default)
        return _json(
            {"kind": kind, "layer": number, "grid": config.grid, **attention_rows.maps(rows, config)}
        )


def _relevance_route(app: FastAPI, service: Service, model: VisionTransformer) -> None:
    config = model.config
    Label = Annotated[
        int | None, Query(ge=0, lt=max(1, config.num_classes), description="A class; the likeliest if none.")
    ]

    @app.post(
        "/relevance",
        response_model=answers.Relevance,
        responses=answers.problems(*IMAGE_PROBLEMS),
        openapi_extra=answers.IMAGES,
    )
    async def relevance(request: Request, label: Label = None) -> Response:  # type: ignore[valid-type]
        """Return what supports a class: a map over the patches that sums to 1, weighted by gradients."""
        if not service.classifier.labels:
            raise NO_CLASSES.fresh()
        async with service.request(request, images=1) as (upload,):
            images, mask = service.classifier.collate([await service.read(upload)])
            number, found = await service.inspect(lambda: attention_rows.speaks(model, images, mask, label))
        name = service.classifier.labels[number]
        return _json({"label": name, "grid": config.grid, "map": found})


def _positions_route(app: FastAPI, service: Service, model: VisionTransformer) -> None:
    @app.get(
        "/positions",
        responses={200: {"content": {"application/octet-stream": {}}}, **answers.problems(404)},
        response_class=Response,
    )
    async def positions() -> Response:
        """Return how alike the position embeddings of any two patches are, as little-endian half floats."""
        similarity = position_similarity(model)
        if similarity is None:
            raise Refusal(404, "no_positions", "this model does not know where its patches are")
        patches = model.config.patches
        return _half_floats(torch.from_numpy(similarity.values).reshape(patches, patches))


def _page_routes(app: FastAPI, service: Service, shown: Examples | None) -> None:
    page = resources.files("vitreous.serve") / "web"
    index = (page / "index.html").read_bytes()

    async def made() -> Examples:
        # In a thread: the first call imports a library, which takes seconds
        return shown or await asyncio.to_thread(examples, service.classifier)

    @app.get("/", include_in_schema=False)
    async def explorer() -> Response:
        return Response(index, media_type="text/html; charset=utf-8", headers={"Cache-Control": "no-cache"})

    @app.get("/examples", include_in_schema=False)
    async def example_names() -> Response:
        return _json(list(await made()))

    @app.get("/examples/{name:path}", include_in_schema=False)
    async def example(name: str) -> Response:
        found = (await made()).get(name)
        if found is None:
            raise HTTPException(404)
        return Response(found[1], media_type=found[0])

    app.mount("/web", StaticFiles(directory=str(page)), name="web")


async def _counted(service: Service, answer: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    try:
        found = await answer
    except Refusal as refusal:
        service.meters.images.labels(refusal.code).inc()
        raise
    service.meters.images.labels("answered").inc()
    return found


async def _or_refusal(answer: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any] | Refusal:
    try:
        return await answer
    except Refusal as refusal:
        return refusal


def _json(value: Any) -> Response:
    return Response(as_json(value), media_type="application/json")


def _half_floats(values: torch.Tensor) -> Response:
    shape = ",".join(map(str, values.shape))
    packed = attention_rows.packed(values)
    return Response(packed, headers={"X-Shape": shape}, media_type="application/octet-stream")
