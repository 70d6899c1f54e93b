"""Call OpenAI-compatible servers."""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specinfer.errors import InvalidInputError, SpecInferError, UnavailableError

_PATIENCE_S = 600.0
_MAX_WORDS = 2000
_MAX_BYTES = 1 << 28
"""Maximum bytes of an answer; a longer answer is an error."""


class ServerRefusedError(SpecInferError):
    """A server refused a request, or its answer is unreadable."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call."""

    status: int
    headers: Mapping[str, str]
    """Headers by lower-case names."""
    content: Any
    """Parsed JSON of the body, or the body's text if invalid."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A server under a base URL, which ends in `/v1`."""

    base_url: str
    api_key: str | None = None

    @classmethod
    def at(cls, url: str, api_key: str | None = None) -> "ApiServer":
        """Return the server at a URL, with or without `/v1`."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidInputError("base_url", url, "must be http://HOST:PORT or https://HOST:PORT")
        path = parts.path.rstrip("/")
        return cls(
            f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else path + '/v1'}", api_key
        )

    def model(self) -> tuple[str, str]:
        """Return id and `owned_by` of the model that the server lists first."""
        listed = self.get_json("models", None)
        try:
            first = listed["data"][0]
            return str(first["id"]), str(first.get("owned_by", ""))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ServerRefusedError(f"{self.base_url}/models lists no model: {str(listed)[:200]}") from error

    def get_json(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """Return the JSON answer to a GET, or a POST of `body`."""
        reply = self.call(path, body)
        if reply.status != http.HTTPStatus.OK or isinstance(reply.content, str):
            words = reply.content if isinstance(reply.content, str) else json.dumps(reply.content)
            shown = "".join(one if one.isprintable() else " " for one in words[:_MAX_WORDS])
            raise ServerRefusedError(f"{self.base_url}/{path}: status {reply.status}: {shown}")
        return reply.content

    def call(self, path: str, body: Mapping[str, Any] | None) -> Reply:
        """Return the answer to a GET, or to a POST of `body`."""
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.base_url}/{path}", data, headers)
        try:
            try:
                answer = _opener(request.host).open(request, timeout=_PATIENCE_S)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                return read_reply(
                    answer.status, answer.headers.items(), _read(answer, f"{self.base_url}/{path}")
                )
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"{self.base_url}/{path}: {error or type(error).__name__}") from error


def _opener(host: str) -> urllib.request.OpenerDirector:
    """Return an opener that uses the environment's proxy, except for loopback."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    here = name == "localhost" or name == "::1" or name.startswith("127.")
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if here else []))


def _read(answer: Any, url: str) -> bytes:
    content: bytes = answer.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise UnavailableError(f"{url}: the answer has more than {_MAX_BYTES} bytes")
    if answer.length:  # missing bytes of the announced length
        raise http.client.IncompleteRead(content, answer.length)
    return content


def read_reply(status: int, headers: Any, body: bytes) -> Reply:
    """Parse an answer; content that is not valid JSON stays text."""
    text = body.decode(errors="replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = text
    return Reply(status, {name.lower(): value for name, value in headers}, content)
