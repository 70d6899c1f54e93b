"""Cache requests' texts for training, in memory, for a limited time.

One text in five, at random, is held out to judge weights, and never sent to training. If the cache is full, the caller
with the most tokens loses its oldest text, so that no caller displaces the others.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from threading import Lock

from specinfer.drafters.entries import DraftOutcome
from specinfer.request.statuses import EntryStatus
from specinfer.v1 import speculator_pb2
from specinfer.wire.client_ids import own_id

HELD_OUT = 0.2
"""Share of the texts that is held out."""
MAX_LENGTH = 1024
"""Maximum stored tokens of a text: the last tokens."""
EXPIRE_EVERY_S = 1.0
MIN_OUTPUT = 8
"""Minimum tokens of a kept answer."""


@dataclass(frozen=True, slots=True)
class Episode:
    number: int
    """Increasing number of the episode."""
    caller: int
    tokens: tuple[int, ...]
    prompt_len: int
    ended: float
    """End by the replay's clock, in seconds."""


@dataclass(slots=True)
class _Open:
    caller: int
    prompt_len: int
    tokens: list[int]
    touched: float


@dataclass(slots=True)
class _Shelf:
    training: deque[Episode] = field(default_factory=deque)
    held_out: deque[Episode] = field(default_factory=deque)
    tokens: int = 0

    def oldest(self) -> deque[Episode]:
        """Return the non-empty queue whose first episode is the oldest."""
        filled = [part for part in (self.training, self.held_out) if part]
        return min(filled, key=lambda part: part[0].number)


class Replay:
    """Collect texts of requests during drafting. Thread-safe."""

    def __init__(
        self,
        max_tokens: int,
        keep_s: float,
        clock: Callable[[], float],
        begins: int = 0,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Keep at most `max_tokens` tokens of finished requests, for `keep_s` seconds.

        Episode numbers start at `begins`, above the numbers of an earlier process, so that a running training can
        continue. `draw` returns random numbers in [0, 1), which decide which texts are held out.
        """
        self._max_tokens, self._keep_s, self._clock = max_tokens, keep_s, clock
        self._open: dict[str, _Open] = {}
        self._shelves: dict[int, _Shelf] = {}
        self._number, self._draw = begins, draw
        self._tokens = 0
        """Number of tokens of all kept episodes."""
        self._expired = clock()
        self._lock = Lock()

    def begin(self, request_id: str, caller: int, prompt_len: int, tokens: Sequence[int]) -> None:
        """Start a request's text; replace an unfinished text."""
        with self._lock:
            self._open[request_id] = _Open(caller, prompt_len, list(tokens), self._clock())

    def forget(self, request_id: str) -> None:
        """Drop an unfinished request's tokens."""
        with self._lock:
            self._open.pop(request_id, None)

    def continue_request(self, request_id: str, base_len: int, tokens: Sequence[int]) -> None:
        """Append tokens of a known request.

        If `base_len` shows that tokens are missing, the request is dropped.
        """
        with self._lock:
            episode = self._open.get(request_id)
            if episode is None:
                return
            if len(episode.tokens) != base_len:
                del self._open[request_id]
                return
            episode.tokens += tokens
            episode.touched = self._clock()

    def end(self, request_ids: Sequence[str]) -> None:
        """Store the texts of finished requests as episodes."""
        with self._lock:
            for request_id in request_ids:
                episode = self._open.pop(request_id, None)
                if episode is not None:
                    self._keep(episode)
            if self._clock() - self._expired >= EXPIRE_EVERY_S:
                self._expire()

    def end_idle(self, seconds: float) -> None:
        """End requests idle for `seconds`: their gateway may have ended."""
        before = self._clock() - seconds
        with self._lock:
            idle = [name for name, request in self._open.items() if request.touched < before]
        self.end(idle)

    def training(self, after: int) -> list[Episode]:
        """Return training episodes with numbers above `after`, oldest first."""
        return self._newer(after, lambda shelf: shelf.training)

    def held_out(self, after: int, max_count: int) -> list[Episode]:
        """Return the newest held-out episodes with numbers above `after`, at most `max_count`.

        Callers with enough episodes have equal shares. The result is ordered by number.
        """
        by_caller = defaultdict[int, list[Episode]](list)
        for episode in self._newer(after, lambda shelf: shelf.held_out):
            by_caller[episode.caller].append(episode)
        rows = zip_longest(*(reversed(episodes) for episodes in by_caller.values()))
        chosen = [episode for row in rows for episode in row if episode is not None][:max_count]
        return sorted(chosen, key=lambda episode: episode.number)

    def expires_s(self, episode: Episode) -> float:
        return max(0.0, episode.ended + self._keep_s - self._clock())

    @property
    def newest(self) -> int:
        """Number of the newest episode; 0 if there was none."""
        return self._number

    @property
    def tokens(self) -> int:
        return self._tokens

    def _newer(self, after: int, part: Callable[[_Shelf], deque[Episode]]) -> list[Episode]:
        with self._lock:
            self._expire()
            episodes = [
                episode
                for shelf in self._shelves.values()
                for episode in part(shelf)
                if episode.number > after
            ]
        return sorted(episodes, key=lambda episode: episode.number)

    def _keep(self, ended: _Open) -> None:
        if len(ended.tokens) - ended.prompt_len < MIN_OUTPUT:
            return
        cut = max(0, len(ended.tokens) - MAX_LENGTH)
        prompt_len = max(1, ended.prompt_len - cut)  # a text's first token cannot be predicted
        self._number += 1
        episode = Episode(self._number, ended.caller, tuple(ended.tokens[cut:]), prompt_len, self._clock())
        shelf = self._shelves.setdefault(ended.caller, _Shelf())
        (shelf.held_out if self._draw() < HELD_OUT else shelf.training).append(episode)
        shelf.tokens += len(episode.tokens)
        self._tokens += len(episode.tokens)
        while self._tokens > self._max_tokens:
            self._drop(max(self._shelves.values(), key=lambda kept_shelf: kept_shelf.tokens))

    def _expire(self) -> None:
        self._expired = self._clock()
        before = self._expired - self._keep_s
        for shelf in self._filled():
            while shelf.tokens and shelf.oldest()[0].ended < before:
                self._drop(shelf)
        self._shelves = {caller: shelf for caller, shelf in self._shelves.items() if shelf.tokens}

    def _filled(self) -> Iterator[_Shelf]:
        return (shelf for shelf in self._shelves.values() if shelf.tokens)

    def _drop(self, shelf: _Shelf) -> None:
        tokens = len(shelf.oldest().popleft().tokens)
        shelf.tokens -= tokens
        self._tokens -= tokens


MAX_TEMPERATURE = 1.0
"""Maximum temperature of stored texts; texts of higher temperatures are mostly noise."""


def record(replay: Replay, request: speculator_pb2.DraftRequest, outcomes: Sequence[DraftOutcome]) -> None:
    """Record the tokens of served entries whose callers allow training."""
    served = {outcome.request_id for outcome in outcomes if outcome.status is EntryStatus.OK}
    for entry in request.entries:
        request_id = own_id(request.client, entry.request_id)
        if request_id not in served:
            continue
        if entry.base_len:
            replay.continue_request(request_id, entry.base_len, entry.delta_token_ids)
            continue
        replay.forget(request_id)  # drop an earlier request of this id, whose release was lost
        if entry.HasField("learning") and entry.sampling.temperature <= MAX_TEMPERATURE:
            consent = entry.learning
            replay.begin(request_id, consent.caller, consent.prompt_len, entry.delta_token_ids)
