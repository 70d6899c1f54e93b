"""The HTTP application: its paths, and the server that runs it."""

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic_core import PydanticSerializationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from http_svc.body.bodies import ChatBody, CompletionBody
from http_svc.body.tokens import DetokenizeBody, TokenizeBody
from http_svc.description import GENERATED, KEYLESS, STREAMED, TEXT, WHOLE, describe
from http_svc.entry import bounds
from http_svc.entry.callers import CallerKeys
from http_svc.entry.connection import bounded
from http_svc.entry.middleware import Guard, HttpMetrics
from http_svc.errors import MESSAGES, ApiError, invalid_body, still_loading
from http_svc.handlers import Door
from http_svc.infill import InfillBody
from http_svc.items.body import ResponsesBody
from http_svc.messages.body import CountBody, MessagesBody
from http_svc.models import GatewayHealth, Models
from http_svc.page_routes import add_page
from http_svc.settings import ApiSettings, GatewayAccess
from specinfer import __version__
from specinfer.client import AsyncClient, Patience
from specinfer.errors import SettingError
from specinfer.service.channel import split_address
from specinfer.service.entry_point import start_and_wait_for_signal
from specinfer.system.open_files import max_connections
from specinfer.system.progress import LatestWork

log = logging.getLogger(__name__)


_LAST_WORDS_S = 5
"""Seconds after the drain time for running calls' last events."""
_BACKLOG = 2048
"""Maximum connections in the kernel's accept queue."""


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signal: uvicorn would raise captured signals again after serving."""
        yield


class HttpServer:
    """uvicorn server of one application; use `start` and `stop`, or `run_until_signalled`."""

    def __init__(self, settings: ApiSettings, app: ASGIApp, ending: asyncio.Event) -> None:
        """Create a server; it sets `ending` when running calls must end."""
        self._settings, self._ending = settings, ending
        tls = settings.tls
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                http=bounded(bounds.HEADER_SECONDS, max_connections(bounds.CONNECTIONS)),
                h11_max_incomplete_event_size=bounds.HEADER_BYTES,
                timeout_keep_alive=bounds.IDLE_SECONDS,
                lifespan="on",
                timeout_graceful_shutdown=math.ceil(settings.drain_seconds) + _LAST_WORDS_S,
                ssl_certfile=tls.certificate,
                ssl_keyfile=tls.key,
                ssl_ca_certs=None if tls.client_ca is None else str(tls.client_ca),
                ssl_cert_reqs=ssl.CERT_NONE if tls.client_ca is None else ssl.CERT_REQUIRED,
            )
        )
        self._serving: asyncio.Task[None] | None = None
        logging.getLogger("uvicorn").setLevel(logging.WARNING)

    async def start(self) -> int:
        """Bind, start serving and return the port."""
        bound = bind(self._settings.listen)
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110  uvicorn has no event
            await asyncio.sleep(0.005)
        if self._serving.done():
            await self._serving
        port: int = bound.getsockname()[1]
        scheme = "https" if self._settings.tls.wanted else "http"
        log.info("serving %s on %s (port %d)", scheme, self._settings.listen, port)
        return port

    async def stop(self, seconds: float | None = None) -> None:
        """Refuse new calls; after `seconds`, end running calls.

        `seconds` defaults to the setting `drain_seconds`.
        """
        self._server.should_exit = True
        if self._serving is not None:
            within = self._settings.drain_seconds if seconds is None else seconds
            await asyncio.wait({self._serving}, timeout=within)
            self._ending.set()
            await self._serving

    async def run_until_signalled(self) -> None:
        """Start, wait for SIGTERM or SIGINT, drain."""
        await start_and_wait_for_signal(self.start)
        await self.stop()


def bind(listen: str) -> socket.socket:
    """Return a listening TCP socket."""
    host, port = split_address("listen", listen, lowest_port=0)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = f"cannot be listened on: {error.strerror or error}; choose another address"
        raise SettingError("listen", listen, reason) from error


def build_app(
    settings: ApiSettings,
    gateways: GatewayAccess,
    registry: CollectorRegistry,
    ending: asyncio.Event,
    shown: CollectorRegistry | None = None,
    loading: LatestWork | None = None,
) -> ASGIApp:
    """Return the application with its routes and middleware.

    Args:
        settings: settings of the HTTP service.
        gateways: addresses and TLS of the gateways that answer calls.
        registry: registry of the service's metrics.
        ending: set when running calls must end.
        shown: registry served at `/metrics`; None: `registry`.
        loading: the start of a model in this process; None: there is none.
    """
    metrics, patience = HttpMetrics(registry), Patience(gateways.patience_seconds, for_room=False)
    client = AsyncClient(gateways.addresses, tls=gateways.tls, patience=patience)
    health = GatewayHealth(gateways.addresses, gateways.tls)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await health.close()
        await client.close()

    app = FastAPI(
        title="SpecInfer",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    models = Models(given=settings.model_names)
    callers = CallerKeys(client, models)
    _add_api(app, Door(callers, models, metrics, ending))
    _add_observation(app, health, shown or registry, loading)
    add_page(app)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    _add_errors(app)
    guarded = Guard(app, settings, metrics, callers.admit, loading)
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
    @app.post("/v1/chat/completions", responses=GENERATED)
    async def chat(body: ChatBody, request: Request) -> Response:
        return await door.chat(body, request)

    @app.post("/v1/completions", responses=GENERATED)
    async def complete(body: CompletionBody, request: Request) -> Response:
        return await door.complete(body, request)

    @app.post("/v1/responses", responses=GENERATED)
    async def respond(body: ResponsesBody, request: Request) -> Response:
        return await door.respond(body, request)

    @app.post(MESSAGES, responses=GENERATED)
    async def message(body: MessagesBody, request: Request) -> Response:
        return await door.message(body, request)

    @app.post(f"{MESSAGES}/count_tokens", responses=WHOLE)
    async def count_tokens(body: CountBody, request: Request) -> Response:
        return await door.count_tokens(body, request)

    @app.post("/infill", responses=GENERATED)
    async def infill(body: InfillBody, request: Request) -> Response:
        return await door.infill(body, request)

    @app.post("/tokenize", responses=WHOLE)
    async def tokenize(body: TokenizeBody, request: Request) -> Response:
        return await door.tokenize(body, request)

    @app.post("/detokenize", responses=WHOLE)
    async def detokenize(body: DetokenizeBody, request: Request) -> Response:
        return await door.detokenize(body, request)

    @app.get("/v1/models", responses=WHOLE)
    async def models(request: Request) -> Response:
        return await door.models(request)

    @app.get("/v1/models/{name:path}", responses=WHOLE)
    async def model(name: str, request: Request) -> Response:
        return await door.model(name, request)

    @app.get("/props", responses=WHOLE)
    async def props(request: Request) -> Response:
        return await door.props(request)

    @app.get("/version", responses=WHOLE)
    async def version() -> Response:
        return JSONResponse({"version": __version__})

    @app.get("/v1/watch", responses=STREAMED)
    async def watch(request: Request) -> Response:
        return await door.watch(request)


def _add_observation(
    app: FastAPI, health: GatewayHealth, registry: CollectorRegistry, loading: LatestWork | None
) -> None:
    @app.get("/health", responses=KEYLESS)
    async def answer_health() -> Response:
        if loading is not None and not loading.ended:
            refused = still_loading(loading)
            refused.content |= {"status": "loading", "phase": loading.name, "percent": loading.percent}
            raise refused
        problem = await health.problem()
        if problem:
            raise ApiError(503, problem, "unavailable", retry_after_s=1.0)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", responses=TEXT)
    async def answer_metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return invalid_body(error.errors()).response(request.scope)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if isinstance(error, ApiError):
            return error.response(request.scope)
        if error.status_code == 400:  # FastAPI's error for a body that is not UTF-8
            return ApiError(400, "body: must be JSON in UTF-8", "invalid_json").response(request.scope)
        methods = (error.headers or {}).get("Allow", "")
        allow = {"Allow": f"{'GET, HEAD' if 'GET' in methods else methods}, OPTIONS"} if methods else None
        if allow and request.method == "OPTIONS":
            return Response(status_code=204, headers=allow)
        reason = f"{request.method} {request.url.path}: {error.detail}"
        refusal = ApiError(error.status_code, reason, "invalid_request").response(request.scope)
        refusal.headers.update(allow or {})
        return refusal

    @app.exception_handler(UnicodeEncodeError)
    async def no_text(request: Request, error: UnicodeEncodeError) -> Response:
        return ApiError(
            400, "body: has a lone surrogate, which UTF-8 cannot encode", "invalid_value"
        ).response(request.scope)

    @app.exception_handler(PydanticSerializationError)
    async def no_json(request: Request, error: PydanticSerializationError) -> Response:
        reason = "tools: nested too deeply for JSON, or a text has a lone surrogate"
        return ApiError(400, reason, "invalid_value", "tools").response(request.scope)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return ApiError(500, f"internal error: {type(error).__name__}", "internal_error").response(
            request.scope
        )
