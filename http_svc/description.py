"""`/openapi.json`: paths, bodies, answers and errors as they are."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from specinfer import __version__


class ErrorDetail(BaseModel):
    """Cause of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Answer of every call that fails."""

    error: ErrorDetail


_WHY = {
    400: "A field is bad, unknown or not supported; or the request is longer than the context.",
    401: "No key, or an unknown one.",
    403: "Something that the key does not allow.",
    404: "Another model than the one served, or an unknown request or path.",
    408: "A body that comes too slowly.",
    409: "An `Idempotency-Key` that was used for something else, or a request cancelled from elsewhere.",
    413: "A body that is too large.",
    429: "A full queue, or a quota that is used up; `Retry-After` says when to come back.",
    500: "A fault of this service or of a gateway.",
    502: "A gateway that left tokens out.",
    503: "No gateway that can work, or too many calls.",
}
Responses = dict[int | str, dict[str, Any]]
_ERRORS: Responses = {status: {"model": ErrorBody, "description": reason} for status, reason in _WHY.items()}
_JSON: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
_EVENTS: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
GENERATED: Responses = {
    **_ERRORS,
    200: {"description": "The answer: at once, or as events with `stream`.", "content": _JSON | _EVENTS},
}
"""Answers of calls that generate."""
WHOLE: Responses = {**_ERRORS, 200: {"description": "The answer.", "content": _JSON}}
"""Answers of other calls."""
STREAMED: Responses = {**_ERRORS, 200: {"description": "Events.", "content": _EVENTS}}
KEYLESS: Responses = {503: _ERRORS[503], 200: {"description": "The answer.", "content": _JSON}}
TEXT: Responses = {
    200: {"description": "The answer.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
_OPEN = ("/health", "/metrics")
"""Paths that ask for no key."""


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the description of an application's paths."""
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
    about = "A key of the gateway; without keys there, any or none."
    key = {"type": "http", "scheme": "bearer", "description": about}
    schema["components"]["securitySchemes"] = {"key": key}
    app.openapi_schema = schema
    return schema
