"""Call OpenAI's completions API for `specinfer exact`.

Log-probabilities are read in OpenAI's format (`tokens`, `top_logprobs`; vLLM, SGLang, SpecInfer) and in llama.cpp's
(`content`). Without log-probabilities, texts are compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specinfer.openai_api.server import ApiServer, ServerRefusedError

SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "specinfer": {"speculation": "off"},
    "llamacpp": {"speculative.n_max": 0},
}
"""Body fields that disable speculation, by `owned_by` of the server's models."""
_TOP = 5
"""Requested alternatives per token; OpenAI's maximum."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Text and tokens of an answer."""

    text: str
    tokens: tuple[str, ...] = ()
    """Texts of the tokens; empty if the server sends no tokens."""
    top: tuple[Mapping[str, float], ...] = ()
    """By position, the log-probabilities of likely tokens and the chosen token."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request sent with and without speculation."""

    prompt: str
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Side:
    """A server, with body fields that switch its speculation on or off."""

    server: ApiServer
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields added to every body."""

    def complete(self, model: str, question: Question) -> Completion:
        """Return the answer to a question."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": question.prompt,
            "max_tokens": question.max_tokens,
            "temperature": question.temperature,
            "seed": question.seed,
            "logprobs": _TOP,
            **self.extra,
        }
        return read_completion(self.server.get_json("completions", body), self.server.base_url)


def read_completion(answer: Any, place: str) -> Completion:
    """Return the completion in an answer's JSON; `place` appears in errors."""
    try:
        choice = answer["choices"][0]
        text, logprobs = choice["text"], choice.get("logprobs") or {}
        if not isinstance(text, str):
            raise TypeError(f"text = {text!r}: must be a string")
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
        raise ServerRefusedError(f"{place}: not a completion: {str(answer)[:200]}") from error


def _row(token: str, logprob: float | None, top: Mapping[str, float] | None) -> Mapping[str, float]:
    row = {} if logprob is None else {token: float(logprob)}
    return {**{str(name): float(value) for name, value in (top or {}).items()}, **row}
