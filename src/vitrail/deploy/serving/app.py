"""The HTTP routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from vitrail import __version__
from vitrail.config import suggest
from vitrail.deploy.api_docs import make_docs
from vitrail.deploy.serving.access import AccessMiddleware, error_body, error_headers
from vitrail.deploy.serving.batching import Batcher, ImageResult, Operation
from vitrail.deploy.serving.limits import HTTPError, ServeLimits
from vitrail.deploy.serving.metrics import CONTENT_TYPE, Metrics
from vitrail.deploy.serving.schema import (
    BODY,
    ERRORS,
    AttentionResponse,
    EmbedResponse,
    Health,
    ModelInfo,
    PredictResponse,
    SimilarResponse,
)
from vitrail.deploy.serving.uploads import UploadBudget, parse_images, read_body

T = TypeVar("T")
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_Name = Annotated[str | None, Query(alias="model", max_length=200, description="The model's name.")]
_Top = Annotated[int, Query(ge=1, le=1000, description="Number of classes.")]
_Most = Annotated[int, Query(ge=1, le=100, description="Number of images.")]
_Row = Annotated[int, Path(alias="id", ge=0, lt=2**31, description="Id of a similar image.")]
_Layer = Annotated[int, Query(ge=-1000, le=1000, description="From 0; -1 is the last.")]
_Head = Annotated[
    int | None, Query(ge=0, le=1000, description="From 0; the mean of all heads if not given.")
]
_Method = Literal["raw", "rollout", "gradient"]


@dataclass
class Service:
    """What the routes share."""

    batcher: Batcher
    limits: ServeLimits
    metrics: Metrics
    budget: UploadBudget

    async def respond(
        self, request: Request, operation: Operation, name: str | None, options: dict[str, Any]
    ) -> Response:
        """Read a request's images, run the model on them and write the response."""
        model = self._choose(name)
        client = request.client.host if request.client else ""
        with self.budget.reservation(client) as reserve:
            body = await read_body(request, self.limits, reserve)
            kind = request.headers.get("content-type", "")
            images = parse_images(kind, body, self.limits)
            del body
            running = self.batcher.run(model, operation, options, images)
            results = await _unless_gone(request, running)
        return _write(model, results)

    async def thumbnail(self, request: Request, name: str | None, row: int) -> Response:
        """Give a small copy of an image of a model's index."""
        model = self.choose_indexed(name)
        running = self.batcher.run(model, "thumbnail", {"row": row}, [b""])
        ((good, content),) = await _unless_gone(request, running)
        kind = "image/jpeg" if good else "application/json"
        return Response(content, 200 if good else 404, media_type=kind)

    def choose_indexed(self, name: str | None) -> str:
        """Look up a model that has an index."""
        model = self._choose(name)
        if self.batcher.info[model]["index"] is None:
            raise HTTPError(404, "this model has no index; start the server with --index")
        return model

    def _choose(self, name: str | None) -> str:
        """Look up a model by name; the name never becomes a path."""
        known = self.batcher.info
        if name is None:
            return next(iter(known))
        if name not in known:
            hint = suggest(name, known) or f"; there are: {', '.join(known)}"
            raise HTTPError(404, f"no model of this name{hint}")
        return name


async def _leaving(request: Request) -> None:
    """Wait until the client disconnects; what it still sends is dropped."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _unless_gone(request: Request, running: Coroutine[Any, Any, T]) -> T:
    """Wait for a result as long as the client is connected."""
    task = asyncio.create_task(running)
    gone = asyncio.create_task(_leaving(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPError(499, "the client is gone")
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


def _write(model: str, results: list[ImageResult]) -> Response:
    """Join the images' results; if no image could be used, the request is refused."""
    if not any(good for good, _ in results):
        text = results[0][1]
        if len(results) > 1:
            text = b'{"error": "no image could be used", "images": [' + _join(results) + b"]}"
        return Response(text, 422, media_type="application/json")
    named = json.dumps(model).encode()
    text = b'{"model": ' + named + b', "images": [' + _join(results) + b"]}"
    return Response(text, media_type="application/json")


def _join(results: list[ImageResult]) -> bytes:
    return b", ".join(text for _, text in results)


def make_app(
    batcher: Batcher, limits: ServeLimits, metrics: Metrics, *, hosts: list[str], key: str | None
) -> AccessMiddleware:
    """Build the application with its access control."""
    service = Service(batcher, limits, metrics, UploadBudget(limits))
    # FastAPI's own pages would load scripts from a third party.
    app = FastAPI(
        title="vitrail", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    pages = _add_page(app)
    _add_operations(app, service)
    _add_state(app, service)
    _add_errors(app)
    _add_docs(app)
    return AccessMiddleware(
        app,
        open_routes={*pages, "/health"},
        hosts=hosts,
        key=key,
        check=lambda: batcher.check(1),
        metrics=metrics,
    )


def _refuse_unknown(request: Request) -> None:
    """Refuse a misspelled parameter, whose default would be taken in silence."""
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            hint = suggest(name, known) or f"; there are: {', '.join(known)}"
            raise HTTPError(422, f"unknown parameter {name[:80]!r}{hint}")


def _add_operations(app: FastAPI, service: Service) -> None:
    known: dict[str, Any] = {"dependencies": [Depends(_refuse_unknown)]}
    shared: dict[str, Any] = {"responses": ERRORS, "openapi_extra": BODY, **known}

    @app.post("/predict", response_model=PredictResponse, summary="Classify images", **shared)
    async def predict(request: Request, model: _Name = None, top: _Top = 5) -> Response:
        return await service.respond(request, "predict", model, {"top": top})

    @app.post("/embed", response_model=EmbedResponse, summary="Compute features", **shared)
    async def embed(request: Request, model: _Name = None) -> Response:
        return await service.respond(request, "embed", model, {})

    @app.post(
        "/attention", response_model=AttentionResponse, summary="Compute attention maps", **shared
    )
    async def attention(
        request: Request,
        model: _Name = None,
        method: _Method = "raw",
        layer: _Layer = -1,
        head: _Head = None,
        distances: bool = False,
        view: bool = False,
    ) -> Response:
        asked = {"method": method, "layer": layer, "head": head}
        asked |= {"distances": distances, "view": view}
        return await service.respond(request, "attention", model, asked)

    @app.post("/similar", response_model=SimilarResponse, summary="Find similar images", **shared)
    async def similar(request: Request, model: _Name = None, top: _Most = 8) -> Response:
        chosen = service.choose_indexed(model)
        return await service.respond(request, "similar", chosen, {"top": top})

    @app.get(
        "/similar/{id}",
        summary="Show an image of the index",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}}, **ERRORS},
        **known,
    )
    async def thumbnail(request: Request, row: _Row, model: _Name = None) -> Response:
        return await service.thumbnail(request, model, row)


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/models", summary="List the models")
    async def models() -> list[ModelInfo]:
        return [ModelInfo(name=name, **info) for name, info in service.batcher.info.items()]

    @app.get("/health", summary="Check the model processes", responses={503: {"model": Health}})
    async def health(response: Response) -> Health:
        healthy = service.batcher.healthy
        response.status_code = 200 if healthy else 503
        return Health(status="ok" if healthy else "a model process is restarting")

    @app.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    async def counts() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


def _add_page(app: FastAPI) -> set[str]:
    """Serve the page's files from memory: no path of a request ever reaches the disk."""
    paths: set[str] = set()
    style = files("vitrail.plotting").joinpath("base.css")
    for file in (style, *files("vitrail.deploy").joinpath("page").iterdir()):
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is None:
            continue
        path = "/" if file.name == "index.html" else f"/{file.name}"
        paths.add(path)
        app.add_api_route(path, _fixed(file.read_bytes(), kind), include_in_schema=False)
    return paths


def _fixed(content: bytes, kind: str) -> Any:
    async def give() -> Response:
        return Response(content, headers={"content-type": kind, "cache-control": "no-cache"})

    return give


def _add_docs(app: FastAPI) -> None:
    """Show every route, with a command that reaches it from where the page is read."""
    schema = app.openapi()

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        page = make_docs(schema, str(request.base_url))
        return Response(page, headers={"content-type": _TYPES["html"], "cache-control": "no-cache"})


def _add_errors(app: FastAPI) -> None:
    """Answer every error as JSON with a reason, and without internals."""

    @app.exception_handler(HTTPError)
    async def refused(_request: Request, error: HTTPError) -> Response:
        return Response(error_body(str(error)), error.status, error_headers(error))

    @app.exception_handler(HTTPException)
    async def http(_request: Request, error: HTTPException) -> Response:
        text = {404: "not found", 405: "method not allowed"}
        body = error_body(text.get(error.status_code, str(error.detail)))
        headers = {**(error.headers or {}), "content-type": "application/json"}
        return Response(body, error.status_code, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        problems = [f"{each['loc'][-1]}: {each['msg']}" for each in error.errors()]
        return Response(error_body("; ".join(problems)), 422, media_type="application/json")

    @app.exception_handler(Exception)
    async def broken(_request: Request, _error: Exception) -> Response:
        body = error_body("internal server error; the server's log says why")
        return Response(body, 500, media_type="application/json")
