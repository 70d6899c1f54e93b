"""Keeps the latest drafts of requests, for steps that come again before a token was added."""

from collections.abc import Sequence

from specinfer.scheduling.entries import StepEntry
from specinfer.tree import TokenTree


class LatestDrafts:
    """Drafts of one group of drafters by request.

    A deferred request has the same context in its next step. The group has read all of it, so there is nothing to send;
    and drafting again could select by token.
    """

    def __init__(self) -> None:
        self._drafts: dict[str, tuple[int, Sequence[tuple[int, TokenTree]]]] = {}

    def note(self, entry: StepEntry, drafts: Sequence[tuple[int, TokenTree]]) -> None:
        """Keep drafts for the context of an entry; its request may have more tokens by now."""
        self._drafts[entry.request_id] = _context_len(entry), drafts

    def of(self, entry: StepEntry) -> Sequence[tuple[int, TokenTree]]:
        """Return the drafts for exactly this context; none if a token was added."""
        length, drafts = self._drafts.get(entry.request_id, (0, ()))
        return drafts if length == _context_len(entry) else ()

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drop what is known of requests."""
        for request_id in request_ids:
            self._drafts.pop(request_id, None)

    def clear(self) -> None:
        """Drop everything."""
        self._drafts.clear()


def _context_len(entry: StepEntry) -> int:
    return entry.base_len + len(entry.delta)
