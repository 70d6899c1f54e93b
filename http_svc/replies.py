"""Answers in the shapes of OpenAI's API. Pure."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from http_svc.logprobs import TextOffsets, chat_logprobs, completion_logprobs
from specinfer.client import (
    Answer,
    FinishReason,
    Piece,
    SpeculationStats,
    SpeculatorStats,
    TokenLogprobs,
    stats_to_json,
)

_FINISH = {
    FinishReason.LENGTH: "length",
    FinishReason.DEADLINE: "length",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.CONSTRAINT: "stop",
}
"""Other reasons are no ends of whole answers."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two forms in which answers are given."""

    prefix: str
    """Of ids."""
    whole: str
    """Value of `object` in an answer that comes at once."""
    chunk: str
    """Value of `object` in a part of a stream."""
    message: Callable[[str], dict[str, Any]]
    """What a choice has of a whole text."""
    delta: Callable[[str], dict[str, Any]]
    """What a choice has of a piece of text."""
    logprobs: Callable[[Sequence[TokenLogprobs], TextOffsets], dict[str, Any]]
    """What a choice says of its tokens, if log-probabilities were asked for."""
    opening: dict[str, Any] | None
    """What the first part of each choice says before any text."""


CHAT = Kind(
    prefix="chatcmpl-",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    message=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    delta=lambda text: {"delta": {"content": text} if text else {}},
    logprobs=chat_logprobs,
    opening={"delta": {"role": "assistant", "content": ""}},
)
COMPLETION = Kind(
    prefix="cmpl-",
    whole="text_completion",
    chunk="text_completion",
    message=lambda text: {"text": text},
    delta=lambda text: {"text": text},
    logprobs=completion_logprobs,
    opening=None,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What all parts of one call's answer have in common."""

    kind: Kind
    request_id: str
    model: str
    created: int
    """Seconds since 1970."""
    usage_comes: bool = False
    """Whether a stream ends with the usage; its other parts then say that they have none."""
    logprobs: bool = False
    """Whether log-probabilities were asked for."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The part with which a choice begins, if there is one."""
        return None if self.kind.opening is None else self._part(index, self.kind.opening, None)

    def part(self, index: int, piece: Piece, offsets: TextOffsets) -> dict[str, Any]:
        """A piece of a choice."""
        return self._part(index, self.kind.delta(piece.text), None, self._told(piece.token_logprobs, offsets))

    def end(self, index: int, finish: FinishReason) -> dict[str, Any]:
        """The end of a choice."""
        return self._part(index, self.kind.delta(""), _finish(finish))

    def _told(self, rows: Sequence[TokenLogprobs], offsets: TextOffsets) -> dict[str, Any] | None:
        return self.kind.logprobs(rows, offsets) if self.logprobs else None

    def usage(self, answers: Sequence[Answer], prompts: int) -> dict[str, Any]:
        """The part with which a stream ends, if usage was asked for."""
        return {**self._head(self.kind.chunk), "choices": [], "usage": usage_of(answers, prompts)}

    def whole(self, answers: Sequence[Answer], prompts: int) -> dict[str, Any]:
        """The answer at once."""
        choices = [
            {
                "index": index,
                **self.kind.message(answer.text),
                "logprobs": self._told(answer.token_logprobs, TextOffsets()),
                "finish_reason": _finish(answer.finish_reason),
            }
            for index, answer in enumerate(answers)
        ]
        return {**self._head(self.kind.whole), "choices": choices, "usage": usage_of(answers, prompts)}

    def _part(
        self,
        index: int,
        content: dict[str, Any],
        finish: str | None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}
        none = {"usage": None} if self.usage_comes else {}
        return {**self._head(self.kind.chunk), "choices": [choice], **none}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.kind.prefix + self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def usage_of(answers: Sequence[Answer], prompts: int) -> dict[str, Any]:
    """Tokens, a prompt's once however many choices it has, and what speculation did for all choices together.

    Args:
        answers: choices of the first prompt, then of the second, as many for each.
    """
    choices = len(answers) // prompts
    read = sum(answer.summary.prompt_tokens for answer in answers[::choices])
    generated = sum(answer.summary.new_tokens for answer in answers)
    return {
        "prompt_tokens": read,
        "completion_tokens": generated,
        "total_tokens": read + generated,
        "speculation": stats_to_json(_together([answer.stats for answer in answers])),
    }


def _together(stats: Sequence[SpeculationStats]) -> SpeculationStats:
    rows: dict[str, Counter[str]] = {}
    for row in (row for one in stats for row in one.speculators):
        told = {"drafted": row.drafted, "accepted": row.accepted, "wins": row.wins}
        rows.setdefault(row.name, Counter()).update(told)
    histograms = zip_longest(*(one.acceptance_histogram for one in stats), fillvalue=0)
    return SpeculationStats(
        steps=sum(one.steps for one in stats),
        drafted=sum(one.drafted for one in stats),
        accepted=sum(one.accepted for one in stats),
        acceptance_histogram=tuple(map(sum, histograms)),
        speculators=tuple(SpeculatorStats(name, **row) for name, row in rows.items()),
        lossy=any(one.lossy for one in stats),
    )


def _finish(reason: FinishReason) -> str:
    return _FINISH.get(reason, reason.value)
