"""The application: which path is answered by what, and how errors look."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from http_svc.bodies import ChatBody, CompletionBody
from http_svc.door import Door
from http_svc.errors import ApiError, invalid_body
from http_svc.gateway_health import GatewayHealth
from http_svc.guard import Guard
from http_svc.metrics import HttpMetrics
from http_svc.page_files import add_page
from http_svc.settings import HttpSettings
from specinfer import __version__
from specinfer.client import AsyncClient, Patience


def build_app(settings: HttpSettings, registry: CollectorRegistry, ending: asyncio.Event) -> ASGIApp:
    """The whole application, with everything around it that calls pass.

    Args:
        ending: is set when calls that still run must end.

    Raises:
        SettingError: if a file of TLS does not fit.
    """
    addresses, metrics = settings.addresses, HttpMetrics(registry)
    patience = Patience(settings.patience_seconds, for_room=False)
    client = AsyncClient(addresses, tls=settings.gateway_tls, patience=patience)
    health = GatewayHealth(addresses, settings.gateway_tls)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await health.close()
        await client.close()

    app = FastAPI(title="SpecInfer", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    _add_api(app, Door(client, metrics, ending))
    _add_observation(app, health, registry)
    add_page(app)
    _add_errors(app)
    guarded = Guard(app, settings, metrics)
    if not settings.origins:
        return guarded
    return CORSMiddleware(
        guarded,
        allow_origins=settings.origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after"],
    )


def _add_api(app: FastAPI, door: Door) -> None:
    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        return await door.chat(body, request)

    @app.post("/v1/completions")
    async def complete(body: CompletionBody, request: Request) -> Response:
        return await door.complete(body, request)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        return await door.models(request)

    @app.get("/v1/models/{name:path}")
    async def model(name: str, request: Request) -> Response:
        return await door.model(name, request)

    @app.get("/v1/watch")
    async def watch(request: Request) -> Response:
        return await door.watch(request)


def _add_observation(app: FastAPI, health: GatewayHealth, registry: CollectorRegistry) -> None:
    @app.get("/health")
    async def answer_health() -> Response:
        problem = await health.problem()
        if problem:
            raise ApiError(503, problem, "unavailable", retry_after_s=1.0)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def answer_metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return invalid_body(error.errors()).response()

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if isinstance(error, ApiError):
            return error.response()
        if error.status_code == 400:  # FastAPI's, of bytes that no JSON parser takes
            return ApiError(400, "body: no JSON", "invalid_json").response()
        why = f"{request.method} {request.url.path}: {error.detail}"
        return ApiError(error.status_code, why, "invalid_request").response()

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return ApiError(500, f"internal error: {type(error).__name__}", "internal_error").response()
