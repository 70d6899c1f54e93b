"""A server of OpenAI's completions API, as far as exactness is checked: a request, its tokens, their log-probabilities.

Read are the log-probabilities of OpenAI (`tokens`, `top_logprobs`), which vLLM, SGLang and SpecInfer send, and those of
llama.cpp (`content`). A server that sends none is compared by text.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specinfer.errors import InvalidInputError, SpecInferError, UnavailableError

SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "specinfer": {"speculation": "off"},
    "llamacpp": {"speculative.n_max": 0},
}
"""Fields of a body that switch speculation off, by `owned_by` of the server's models."""
_TOP = 5
"""Most likely tokens whose log-probabilities are requested; OpenAI's limit."""
_PATIENCE_S = 300.0


class ServerRefusedError(SpecInferError):
    """A server refused a request, or its answer cannot be read."""


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer."""

    text: str
    tokens: tuple[str, ...] = ()
    """Its tokens, as text; empty if the server does not send them."""
    top: tuple[Mapping[str, float], ...] = ()
    """Log-probabilities of each position's most likely tokens, the chosen one among them."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request that is sent to both sides."""

    prompt: str
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """A server under a base URL, which ends in `/v1`."""

    base_url: str
    api_key: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are added to every body."""

    @classmethod
    def at(cls, url: str, api_key: str | None = None) -> "Server":
        """Return the server at a URL, with or without `/v1`.

        Raises:
            InvalidInputError: if it is no URL of HTTP.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidInputError("base_url", url, "must be http://HOST:PORT or https://HOST:PORT")
        path = parts.path.rstrip("/")
        return cls(
            f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else path + '/v1'}", api_key
        )

    def model(self) -> tuple[str, str]:
        """Return id and `owned_by` of the model that the server lists first.

        Raises:
            UnavailableError: if the server does not answer.
            ServerRefusedError: if it lists none.
        """
        listed = self._call("models", None)
        try:
            first = listed["data"][0]
            return str(first["id"]), str(first.get("owned_by", ""))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ServerRefusedError(f"{self.base_url}/models lists no model: {str(listed)[:200]}") from error

    def complete(self, model: str, question: Question) -> Completion:
        """Return the answer to a question.

        Raises:
            UnavailableError: if the server does not answer.
            ServerRefusedError: if it refuses, with its words.
        """
        body: dict[str, Any] = {
            "model": model,
            "prompt": question.prompt,
            "max_tokens": question.max_tokens,
            "temperature": question.temperature,
            "seed": question.seed,
            "logprobs": _TOP,
            **self.extra,
        }
        return read_completion(self._call("completions", body), self.base_url)

    def _call(self, path: str, body: Mapping[str, Any] | None) -> Any:
        url = f"{self.base_url}/{path}"
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, data, headers), timeout=_PATIENCE_S
            ) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            words = error.read(2000).decode(errors="replace")
            raise ServerRefusedError(f"{url}: status {error.code}: {words}") from error
        except (OSError, ValueError) as error:
            raise UnavailableError(f"{url}: {error}") from error


def read_completion(answer: Any, place: str) -> Completion:
    """Return the completion in the JSON of an answer.

    Raises:
        ServerRefusedError: if there is none.
    """
    try:
        choice = answer["choices"][0]
        text, logprobs = str(choice["text"]), choice.get("logprobs") or {}
        if rows := logprobs.get("content"):  # llama.cpp
            tokens = tuple(str(row["token"]) for row in rows)
            top = tuple(
                {str(one["token"]): float(one["logprob"]) for one in (row, *row.get("top_logprobs", ()))}
                for row in rows
            )
            return Completion(text, tokens, top)
        tokens = tuple(map(str, logprobs.get("tokens") or ()))
        chosen = logprobs.get("token_logprobs") or [None] * len(tokens)
        tops = logprobs.get("top_logprobs") or [{}] * len(tokens)
        both = zip(tokens, chosen, tops, strict=True)
        return Completion(text, tokens, tuple(_row(*position) for position in both))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ServerRefusedError(f"{place}: no completion: {str(answer)[:200]}") from error


def _row(token: str, logprob: float | None, top: Mapping[str, float] | None) -> Mapping[str, float]:
    own = {} if logprob is None else {token: float(logprob)}
    return {**{str(name): float(value) for name, value in (top or {}).items()}, **own}
