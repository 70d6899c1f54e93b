"""Description of the API at `/openapi.json`."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from specinfer import __version__


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Body of every answer with an error."""

    error: ErrorDetail


_WHY = {
    400: "A field is missing, invalid, unknown or not supported; or the request exceeds the context.",
    401: "No key, or an unknown one.",
    403: "The key does not allow this.",
    404: "An unknown model, request or path.",
    408: "The body came too slowly.",
    409: "The `Idempotency-Key` was used for another request, or another call cancelled the request.",
    413: "The body is too large.",
    429: "The queue is full or a quota used up; `Retry-After` has the seconds to wait.",
    500: "An internal error of this service or of a gateway.",
    502: "A gateway's stream missed tokens.",
    503: "No gateway is ready, or too many calls run.",
}
Responses = dict[int | str, dict[str, Any]]
_ERRORS: Responses = {status: {"model": ErrorBody, "description": reason} for status, reason in _WHY.items()}
_JSON: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
_EVENTS: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
GENERATED: Responses = {
    **_ERRORS,
    200: {"description": "The answer: one object, or events with `stream`.", "content": _JSON | _EVENTS},
}
"""OpenAPI responses of paths that generate text."""
WHOLE: Responses = {**_ERRORS, 200: {"description": "The answer.", "content": _JSON}}
"""OpenAPI responses of the other paths."""
STREAMED: Responses = {**_ERRORS, 200: {"description": "Events.", "content": _EVENTS}}
KEYLESS: Responses = {503: _ERRORS[503], 200: {"description": "The answer.", "content": _JSON}}
TEXT: Responses = {
    200: {"description": "The answer.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
_OPEN = ("/health", "/metrics")
"""Paths that need no key."""


def describe(app: FastAPI) -> dict[str, Any]:
    """Return an application's OpenAPI description, with errors and keys."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    schema = get_openapi(title="SpecInfer", version=__version__, routes=app.routes)
    for path, methods in schema["paths"].items():
        for method in methods.values():
            method["responses"].pop("422", None)  # bad bodies are answered with 400
            method["security"] = [] if path in _OPEN else [{}, {"key": []}]
    schemas = schema["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    about = "A key of the gateway. A gateway without keys accepts any key, or none."
    key = {"type": "http", "scheme": "bearer", "description": about}
    schema["components"]["securitySchemes"] = {"key": key}
    app.openapi_schema = schema
    return schema
