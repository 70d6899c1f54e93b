"""Hidden states of the target on their way from the verifier to the speculator services that read them. Pure.

The gateway looks into them only to pick layers: it asks the verifier for all that any service wants, keeps
what a service has not got yet, and sends each what it lacks. Where nobody wants any, nothing is asked for.

    context positions   0 .......... start ........ stop
    of a service        sent         | kept here    | asked for with the next step
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from specinfer.speculators.states import States
from specinfer.v1 import speculator_pb2, verifier_pb2

MOST_KEPT_BYTES = 2**24
"""Of one request: a service that takes none for long lacks them, until it is asked again."""


class FeatureWish(NamedTuple):
    """Which features a step is to return."""

    layers: tuple[int, ...] = ()
    since: Mapping[str, int] = MappingProxyType({})
    """By request, the first context position; those that are not named want none."""
    token_bytes: int = 0

    def contradiction(self, request_id: str, answer: verifier_pb2.Verdict) -> str:
        """What of an answer's features cannot be for the wish; empty if nothing."""
        if not answer.features:
            return ""
        if request_id not in self.since:
            return "the verifier returned features that were not asked for"
        tokens, rest = divmod(len(answer.features), self.token_bytes)
        if rest or not self.since[request_id] <= answer.features_start <= answer.held_len - tokens:
            return (
                f"the verifier returned {len(answer.features)} bytes of features from position "
                f"{answer.features_start} on, asked for from {self.since[request_id]}, "
                f"{self.token_bytes} a token"
            )
        return ""


class FeatureRelay:
    """What is kept of all requests of a lane."""

    def __init__(self, hidden: int) -> None:
        """The target's hidden states have so many numbers."""
        self.hidden = hidden
        self.layers: tuple[int, ...] = ()
        """That any service wants."""
        self._kept: dict[str, States] = {}
        self._floor: dict[str, int] = {}
        """Context positions before which the verifier has none."""

    def want(self, layers: Sequence[Sequence[int]]) -> None:
        """From now on services want these layers."""
        wanted = tuple(sorted({layer for each in layers for layer in each}))
        if wanted != self.layers:
            self.layers = wanted
            self._kept.clear()

    def wanted_from(self, request_id: str, held: Sequence[int]) -> int | None:
        """The position from which features are to be asked for, or None for no features.

        Args:
            held: per service that wants them, the position up to which it got them.
        """
        if not self.layers or not held:
            return None
        least = max(min(held), self._floor.get(request_id, 0))
        kept = self._kept.get(request_id)
        if kept is None or not kept.start <= least <= kept.stop:
            self._kept.pop(request_id, None)
            return least
        if kept.nbytes > MOST_KEPT_BYTES:
            return None
        return kept.stop

    def arrived(self, request_id: str, asked: int, start: int, data: bytes) -> None:
        """What a verdict brought, asked for from a position and beginning at one."""
        states = np.frombuffer(data, np.int16).reshape(-1, len(self.layers), self.hidden)
        if start > asked:
            self._floor[request_id] = start
        kept = self._kept.get(request_id)
        if kept is not None and kept.stop == start:
            kept.append(states)
        else:
            self._kept[request_id] = States(start, states)

    def bytes_of(self, layers: Sequence[int]) -> int:
        """Of one token's features."""
        return 2 * self.hidden * len(layers)

    def until(self, entry: speculator_pb2.DraftEntry, layers: Sequence[int]) -> int:
        """The context position up to which a service has features once it took a message."""
        tokens = len(entry.target_features) // self.bytes_of(layers) if layers else 0
        return entry.features_start + tokens

    def take(self, request_id: str, held: int, layers: Sequence[int], most: int) -> tuple[int, bytes]:
        """What a service lacks that got features up to a position: where they begin, at most so many
        bytes of them."""
        kept = self._kept.get(request_id)
        if kept is None or not layers or held >= kept.stop:
            return held, b""
        start = max(held, kept.start)
        places = [self.layers.index(layer) for layer in layers]
        count = max(1, most // self.bytes_of(layers))
        states = kept.read(start, count)[:, places]
        return start, np.ascontiguousarray(states).tobytes()

    def drop(self, request_id: str, held: Sequence[int]) -> None:
        """Forgets what every service got."""
        kept = self._kept.get(request_id)
        if kept is not None and held:
            kept.drop(min(held))

    def forget(self, request_ids: Sequence[str]) -> None:
        """Requests that ended."""
        for request_id in request_ids:
            self._kept.pop(request_id, None)
            self._floor.pop(request_id, None)
