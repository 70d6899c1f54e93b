"""Convert gateways' statuses and invalid bodies to error objects, OpenAI's or Anthropic's.

{"error": {"message": "...", "type": "...", "param": "...", "code": "..."}}
{"type": "error", "error": {"type": "...", "message": "..."}}
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Scope

from specinfer.client import BrokenStreamError, RequestFailedError, StreamLostError
from specinfer.client.errors import Failure
from specinfer.errors import FaultError, InvalidInputError, SpecInferError, UnavailableError
from specinfer.system.progress import LatestWork

_Code = grpc.StatusCode
_STATUS: dict[grpc.StatusCode, tuple[int, str]] = {
    _Code.INVALID_ARGUMENT: (400, "invalid_value"),
    _Code.OUT_OF_RANGE: (400, "invalid_value"),
    _Code.FAILED_PRECONDITION: (400, "incompatible"),
    _Code.UNAUTHENTICATED: (401, "invalid_api_key"),
    _Code.PERMISSION_DENIED: (403, "permission_denied"),
    _Code.NOT_FOUND: (404, "not_found"),
    _Code.ALREADY_EXISTS: (409, "already_exists"),
    _Code.RESOURCE_EXHAUSTED: (429, "rate_limit_exceeded"),
    _Code.UNAVAILABLE: (503, "unavailable"),
    _Code.ABORTED: (503, "unavailable"),
    _Code.CANCELLED: (503, "unavailable"),
    _Code.DEADLINE_EXCEEDED: (504, "timeout"),
}
"""HTTP status and error code by gRPC status; other statuses give 500."""
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_OTHER_TYPES = {
    **_TYPES,
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's error types by status; others: `invalid_request_error`, `api_error`."""
MESSAGES = "/v1/messages"
"""Path whose errors have Anthropic's format."""
_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported": "unsupported_parameter",
}
"""Error codes by pydantic's error type; other types give `invalid_value`."""
_UNION_PART = re.compile(r"str|int|[A-Z]\w*|(?:list|dict|function-(?:after|before)|literal)\[.*")
"""Parts of pydantic's `loc` that name a union's branch, not a field."""


class CancelledElsewhereError(SpecInferError):
    """Another call cancelled the request, so its answer is incomplete."""


class EndingError(SpecInferError):
    """This service is shutting down, and its drain time is over."""


class ApiError(HTTPException):
    """An error with the HTTP status and body that the caller receives."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        headers = {} if retry_after_s is None else {"Retry-After": str(max(1, math.ceil(retry_after_s)))}
        super().__init__(status, message, headers)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.content: dict[str, Any] = {
            "error": {
                "message": message,
                "type": _TYPES.get(status, kind),
                "param": param,
                "code": code,
            }
        }

    def response(self, scope: Scope) -> JSONResponse:
        """Return the HTTP response to a call."""
        content = self.as_message if scope["path"].startswith(MESSAGES) else self.content
        return JSONResponse(content, self.status_code, self.headers)

    @property
    def as_message(self) -> dict[str, Any]:
        """The error in Anthropic's format."""
        status, kind = self.status_code, "invalid_request_error" if self.status_code < 500 else "api_error"
        error = {"type": _OTHER_TYPES.get(status, kind), "message": self.content["error"]["message"]}
        return {"type": "error", "error": error}


def still_loading(work: LatestWork) -> ApiError:
    """Return the error of calls while the model is loading."""
    percent = f", {work.percent} %" if work.percent else ""
    return ApiError(503, f"the model is loading: {work.name}{percent}", "loading", retry_after_s=1.0)


def internal_error(error: Exception) -> ApiError:
    """Return the error of an internal fault, with the exception's type only."""
    return ApiError(500, FaultError("internal error", error).for_logs, "internal_error")


def invalid_body(errors: Sequence[Any]) -> ApiError:
    """Return the error of an invalid body, from pydantic's errors.

    A union has an error for each branch; the error with the deepest field is reported.
    """
    first = max(errors, key=lambda error: len(error["loc"]))
    kind, param = first["type"], _param_of(first)
    if kind == "json_invalid":
        return ApiError(400, f"body: invalid JSON: {first['ctx']['error']}", "invalid_json")
    if not param:
        return ApiError(400, "body: must be a JSON object, sent as application/json", "invalid_json")
    same = [error["msg"] for error in errors if _param_of(error) == param]
    reason = "unknown field" if kind == "extra_forbidden" else "; or ".join(dict.fromkeys(same))
    if kind == "missing":
        message = f"{param}: required field is missing"
    elif "ctx" in first and "field" in first["ctx"]:
        message = reason
    else:
        message = str(InvalidInputError(param, first["input"], reason))
    return ApiError(400, message, _CODES.get(kind, "invalid_value"), param)


def _param_of(error: Any) -> str:
    """Return an error's field, such as `messages[0].role`; empty for the body."""
    named = error.get("ctx", {}).get("field")
    if named:
        return str(named)
    path = ""
    for part in error["loc"][1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _UNION_PART.fullmatch(part):
            path += f".{part}" if path else part
    return path


def api_error(
    error: SpecInferError, names: Mapping[str, str], explain: Callable[[str], str] = lambda message: message
) -> ApiError:
    """Return the error of a call that a gateway refused or lost.

    Args:
        error: the error that the gateway client raised.
        names: map from the gateway's field names to the caller's.
        explain: rewrites a gateway's message after its fields are renamed.
    """
    if isinstance(error, (RequestFailedError, StreamLostError)):
        return _of_failure(error.failure, names, explain)
    if isinstance(error, CancelledElsewhereError):
        return ApiError(409, str(error), "cancelled")
    if isinstance(error, EndingError):
        return ApiError(503, str(error), "unavailable", retry_after_s=1.0)
    if isinstance(error, InvalidInputError):
        message, param = _renamed(str(error), names)
        return ApiError(400, message, "invalid_value", param)
    if isinstance(error, UnavailableError):
        return ApiError(503, str(error), "unavailable", retry_after_s=error.retry_after_s)
    assert isinstance(error, BrokenStreamError), error
    return ApiError(502, str(error), "broken_stream")


def _of_failure(failure: Failure, names: Mapping[str, str], explain: Callable[[str], str]) -> ApiError:
    status, code = _STATUS.get(failure.code, (500, "internal_error"))
    message, param = _renamed(failure.details or failure.code.name, names)
    if " + " in (param or "") and "over the context" in message:
        code = "context_length_exceeded"
    message = explain(message)
    if param and not message.startswith(param):
        param = message.partition(":")[0]
    wait = failure.retry_after_s
    param = "Authorization" if status == 401 else param
    if status in (429, 503) and wait is None and not failure.hopeless:
        wait = 1.0
    return ApiError(status, message, code, param, wait)


def _renamed(message: str, names: Mapping[str, str]) -> tuple[str, str | None]:
    """Rename the field at a message's start; return message and field."""
    field, mark, rest = message.partition(" = ")
    if not mark or not re.fullmatch(r"[\w.\[\] +-]{1,80}", field):
        return message, None
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    renamed = re.sub(rf"\b(?:{pattern})\b", lambda match: names[match[0]], field) if names else field
    return f"{renamed} = {rest}", renamed
