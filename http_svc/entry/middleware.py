"""ASGI middleware of every call: request id, key, limits and counters."""

import asyncio
import collections
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_svc.entry import bounds
from http_svc.entry.callers import key_in
from http_svc.errors import MESSAGES, ApiError, still_loading
from http_svc.settings import ApiSettings
from specinfer.client import Answer, add_up, new_request_id
from specinfer.service.metrics import TO_MINUTES_S, Declaring, declare_build_info
from specinfer.service.settings import KIBIBYTE, MEBIBYTE
from specinfer.system.log_lines import REQUEST_ID, counts_of
from specinfer.system.progress import LatestWork

access = logging.getLogger("http_svc.access")
"""Logger of a line per call."""


class HttpMetrics:
    """Metrics of HTTP calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        declare_build_info(registry)
        new = Declaring(registry, "specinfer_http_")
        self.running = new.gauge("calls_running", "Calls in progress.")
        self.calls = new.counter("calls", "Finished calls by path and HTTP status.", "endpoint", "status")
        self.seconds = new.histogram(
            "call_seconds", "Seconds of a call; a stream's until its end.", TO_MINUTES_S
        )
        self.hung_up = new.counter("hung_up", "Calls that the client left early.")
        self.resumed = new.counter("resumed", "Streams resumed with Last-Event-ID.")


REQUEST_ID_HEADER = "x-request-id"
ENDPOINTS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", MESSAGES, "/v1/models", "/v1/watch"),
    *("/infill", "/props", "/tokenize", "/detokenize", "/version", "/health", "/metrics"),
)
_OBSERVED = ("/health", "/metrics")
"""Paths of health checks and scrapes, answered for any `Host` header."""
_VERSION_HEADER, _VERSIONS = "anthropic-version", ("2023-06-01", "2026-10-21")
"""Header of Anthropic's clients, and its versions that `/v1/messages` answers."""
_SHOWN = 100
"""Maximum characters of a header quoted in an error."""
_SHARE = 4
"""Maximum ratio of a key's running calls to free ones.

One key alone can have four fifths of all.
"""
_LONGEST_ID = 200
"""Maximum characters of `X-Request-Id`; the gateway allows 256, with suffixes."""


class Guard:
    """Refuse calls without permission or capacity; pass others to the application."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ApiSettings,
        metrics: HttpMetrics,
        admit: Callable[[Headers], Awaitable[str]],
        loading: LatestWork | None = None,
    ) -> None:
        """Create the guard; `admit` returns a key's name, or raises an `ApiError`.

        While a model is `loading`, calls that need it are refused.
        """
        self._loading = loading
        self._app, self._settings, self._metrics, self._admit = app, settings, metrics, admit
        self._hosts, self._running = settings.hosts, 0
        self._of_key = collections.Counter[str]()
        """Running calls by API key."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call, as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, started, status = Headers(scope=scope), time.perf_counter(), [0]
        state = scope.setdefault("state", {})
        state["request_id"] = headers.get(REQUEST_ID_HEADER) or new_request_id()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                name = (REQUEST_ID_HEADER.encode(), state["request_id"].encode("latin-1", "replace"))
                message = {**message, "headers": [*message["headers"], name]}
            await send(message)

        send = _headers_only(send) if scope["method"] == "HEAD" else send
        scope = _normal(scope)
        with self._metrics.running.track_inprogress():
            await self._serve(scope, headers, receive, answer)
        seconds = time.perf_counter() - started
        self._metrics.seconds.observe(seconds)
        endpoint = next((path for path in ENDPOINTS if scope["path"].startswith(path)), "other")
        self._metrics.calls.add(1, endpoint, str(status[0] or 499))
        quiet = scope["path"] in _OBSERVED or (status[0] < 400 and endpoint == "other")
        access.log(logging.DEBUG if quiet else logging.INFO, "%s", access_line(scope, status[0], seconds))

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal.response(scope)(scope, receive, send)
            return
        REQUEST_ID.set(scope["state"]["request_id"])
        key = key_in(headers) or ""
        self._running += 1
        self._of_key[key] += 1
        try:
            if scope["method"] == "POST":  # before its body is read
                scope["state"]["caller"] = await self._admit(headers)
            await self._app(scope, self._bounded(receive), send)
        except ApiError as error:
            await error.response(scope)(scope, receive, send)
        finally:
            self._running -= 1
            self._of_key[key] -= 1
            if not self._of_key[key]:
                del self._of_key[key]

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        """Return the error for a call's headers; None if they are accepted."""
        identity = scope["state"]["request_id"]
        version = headers.get(_VERSION_HEADER, _VERSIONS[0])
        if scope["path"].startswith(MESSAGES) and version not in _VERSIONS:
            reason = f"{_VERSION_HEADER} = {version[:_SHOWN]!r}: must be {' or '.join(_VERSIONS)}"
            return ApiError(400, reason, "invalid_value", _VERSION_HEADER)
        if len(identity) > _LONGEST_ID or not (identity.isascii() and identity.isprintable()):
            scope["state"]["request_id"] = new_request_id()
            reason = f"X-Request-Id = {identity[:_SHOWN]!r}: must be printable ASCII, up to {_LONGEST_ID} characters"
            return ApiError(400, reason, "invalid_value", "X-Request-Id")
        host = headers.get("host", "")
        if scope["path"] not in _OBSERVED and not self._hosts.allow(host):
            reason = f"Host = {host[:_SHOWN]!r}: not an accepted name of this service (--allowed-hosts)"
            return ApiError(421, reason, "wrong_host", "Host")
        if scope["method"] == "POST" or scope["path"].startswith(("/v1/", "/props")):
            if self._loading is not None and not self._loading.ended:
                return still_loading(self._loading)
            max_calls, key = self._settings.max_calls, key_in(headers)
            free, of_key = max_calls - self._running, self._of_key[key] if key else 0
            if free <= 0:
                reason = f"max_calls = {max_calls}: that many calls run already"
                return ApiError(503, reason, "overloaded", retry_after_s=1.0)
            if of_key >= _SHARE * free:
                reason = f"max_calls = {max_calls}: {of_key} calls with this key run already, {free} places are left"
                return ApiError(429, reason, "rate_limit_exceeded", retry_after_s=1.0)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > bounds.MAX_BODY_BYTES:
            return self._too_large(length)
        return None

    def _bounded(self, receive: Receive) -> Receive:
        """Return a `receive` that limits the body's time and size."""
        size, more, waited_s = 0, True, 0.0

        async def counting() -> Any:
            nonlocal size, more, waited_s
            if not more:
                return await receive()
            started = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, bounds.body_time_s(size) - waited_s)):
                    message = await receive()
            except TimeoutError:
                raise _too_slow(size) from None
            waited_s += time.monotonic() - started
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
            if size > bounds.MAX_BODY_BYTES:
                raise self._too_large(f"more than {bounds.MAX_BODY_BYTES}")
            return message

        return counting

    def _too_large(self, size: str) -> ApiError:
        message = f"body = {size} bytes: at most {bounds.MAX_BODY_BYTES // MEBIBYTE} MiB"
        return ApiError(413, message, "body_too_large", "body")


def access_line(scope: Scope, status: int, seconds: float) -> str:
    """Return a call's log line; paths have no line breaks, and no more than `_SHOWN` characters."""
    state, path = scope["state"], scope["path"][:_SHOWN].encode("unicode_escape").decode()
    line = f"{scope['method']} {path} {status or 499} caller {state.get('caller') or '-'}"
    answers: Sequence[Answer] = state.get("answers", ())
    if any(answer.summary.prompt_tokens for answer in answers):
        stats, first = add_up([answer.stats for answer in answers]), answers[0].summary
        of_prompts = answers[:: len(answers) // state.get("prompts", 1)]
        read = sum(answer.summary.prompt_tokens for answer in of_prompts)
        new = sum(answer.summary.new_tokens for answer in answers)
        counts = counts_of(read, new, first.ttft_seconds, stats.steps)
        line += f", {counts}" if stats.steps else f", {read} tokens, answer not finished"
    return f"{line}, {seconds:.3f} s"


def _normal(scope: Scope) -> Scope:
    """Return a call without extra slashes in its path; HEAD becomes GET.

    uvicorn leaves the body of the answer to HEAD out.
    """
    path = re.sub("/+", "/", scope["path"])
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    return {**scope, "path": path.rstrip("/") or "/", "method": method}


def _headers_only(send: Send) -> Send:
    """Return a `send` that ends any answer after its headers."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})

    return answer


def _too_slow(size: int) -> ApiError:
    rate = f"send at least {bounds.BODY_RATE // KIBIBYTE} KiB a second"
    message = f"body: only {size} bytes came in {bounds.body_time_s(size):.0f} s; {rate}"
    return ApiError(408, message, "body_too_slow", "body")
