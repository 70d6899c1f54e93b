"""Log-probabilities in the shapes of OpenAI's API. Pure."""

import codecs
from collections.abc import Sequence
from typing import Any

from specinfer.client import TokenLogprob, TokenLogprobs

_LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have (as in OpenAI's API and in vLLM)."""


class TextOffsets:
    """Where in a choice's text its tokens begin, in characters; one after another."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def add(self, token: bytes) -> int:
        """Where the next token begins: behind the characters that those before it completed."""
        begin = self._length
        self._length += len(self._decoder.decode(token))
        return begin


def chat_logprobs(rows: Sequence[TokenLogprobs], offsets: TextOffsets) -> dict[str, Any]:
    """`logprobs` of a choice of a conversation."""
    content = [{**_entry(row.chosen), "top_logprobs": [_entry(one) for one in row.top]} for row in rows]
    return {"content": content, "refusal": None}


def completion_logprobs(rows: Sequence[TokenLogprobs], offsets: TextOffsets) -> dict[str, Any]:
    """`logprobs` of a choice of a completion; the generated token is among the most probable
    ones in any case."""
    return {
        "tokens": [row.chosen.text for row in rows],
        "token_logprobs": [_number(row.chosen) for row in rows],
        "top_logprobs": [{one.text: _number(one) for one in (*row.top, row.chosen)} for row in rows],
        "text_offset": [offsets.add(row.chosen.token) for row in rows],
    }


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": _number(token), "bytes": list(token.token)}


def _number(token: TokenLogprob) -> float:
    return max(token.logprob, _LOWEST)
