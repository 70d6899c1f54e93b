"""Keep the target's hidden states and predictions for drafters. Pure.

A step returns the outputs that any drafter still lacks; they are kept until every drafter has received them.
Features are the target's hidden states after chosen layers.

    context positions   0 .......... start ........ stop
    of a drafter        sent         | kept here    | requested with the next step
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specinfer.request.hidden_states import States
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import Speculation
from specinfer.tree import TokenTree

MAX_KEPT_BYTES = 2**24
"""Bytes of a request's features above which no further features are requested.

So much is stored only if a drafter does not read its features.
"""


class Returned(Protocol):
    """Fields of a verifier's answer for one request that `contradiction` checks."""

    cached_len: int
    features: bytes
    features_start: int

    @property
    def top_k_token_ids(self) -> Sequence[int]:
        """[nodes * k] token ids."""


class Reader(Protocol):
    """A group of drafters that may read outputs of the target."""

    features_len: dict[str, int]
    """End position of the received hidden states, by request id."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers whose hidden states the group reads, ascending."""

    @property
    def target_top_k(self) -> int:
        """Predicted tokens that the group reads per node; 0: none."""


class WantedFeatures(NamedTuple):
    """Features to request from a step."""

    layers: tuple[int, ...] = ()
    since: Mapping[str, int] = MappingProxyType({})
    """First context position to return, by request id; absent: no features."""
    token_bytes: int = 0

    def contradiction(self, request_id: str, answer: Returned) -> str:
        """Return the reason to reject an answer's features; else empty."""
        if not answer.features:
            return ""
        if request_id not in self.since:
            return "the verifier returned features that were not requested"
        tokens, rest = divmod(len(answer.features), self.token_bytes)
        if rest or not self.since[request_id] <= answer.features_start <= answer.cached_len - tokens:
            return (
                f"the verifier returned {len(answer.features)} bytes of features from position "
                f"{answer.features_start}, but {self.token_bytes} bytes per token were requested "
                f"from position {self.since[request_id]}"
            )
        return ""


class FeatureRelay:
    """Keeps hidden states of one target's requests."""

    def __init__(self, hidden: int) -> None:
        """Start empty; `hidden` is the size of the target's hidden states."""
        self.hidden = hidden
        self.layers: tuple[int, ...] = ()
        """Layers that any service reads, ascending."""
        self._kept: dict[str, States] = {}
        self._floor: dict[str, int] = {}
        """First context position with features at the verifier, by request id."""

    def want(self, layers: Sequence[Sequence[int]]) -> None:
        wanted = tuple(sorted({layer for layers_of_reader in layers for layer in layers_of_reader}))
        if wanted != self.layers:
            self.layers = wanted
            self._kept.clear()

    def wanted_from(self, request_id: str, sent: Sequence[int]) -> int | None:
        """Return the first position of features to request; None: no request.

        Args:
            sent: end position of the features sent to each service that reads features.
        """
        if not self.layers or not sent:
            return None
        least = max(min(sent), self._floor.get(request_id, 0))
        kept = self._kept.get(request_id)
        if kept is None or not kept.start <= least <= kept.stop:
            self._kept.pop(request_id, None)
            return least
        if kept.nbytes > MAX_KEPT_BYTES:
            return None
        return kept.stop

    def arrived(self, request_id: str, asked: int, start: int, data: bytes) -> None:
        """Store features from position `start`; `asked` is the requested position."""
        states = np.frombuffer(data, np.int16).reshape(-1, len(self.layers), self.hidden)
        if start > asked:
            self._floor[request_id] = start
        kept = self._kept.get(request_id)
        if kept is not None and kept.stop == start:
            kept.append(states)
        else:
            self._kept[request_id] = States(start, states)

    def bytes_of(self, layers: Sequence[int]) -> int:
        return 2 * self.hidden * len(layers)

    def until(self, start: int, data: bytes, layers: Sequence[int]) -> int:
        """Return the end position of features `data` that begin at `start`."""
        return start + (len(data) // self.bytes_of(layers) if layers else 0)

    def take(
        self, request_id: str, position: int, layers: Sequence[int], max_bytes: int
    ) -> tuple[int, bytes]:
        """Return the first position and data of features from `position`.

        The data has at most `max_bytes` bytes, but at least one token's features if there are any.
        """
        kept = self._kept.get(request_id)
        if kept is None or not layers or position >= kept.stop:
            return position, b""
        start = max(position, kept.start)
        places = [self.layers.index(layer) for layer in layers]
        count = max(1, max_bytes // self.bytes_of(layers))
        states = kept.read(start, count)[:, places]
        return start, np.ascontiguousarray(states).tobytes()

    def drop(self, request_id: str, positions: Sequence[int]) -> None:
        """Forget the features that every service has received."""
        kept = self._kept.get(request_id)
        if kept is not None and positions:
            kept.drop(min(positions))

    def forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._kept.pop(request_id, None)
            self._floor.pop(request_id, None)


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions of the target at the nodes of a tree."""

    tree: TokenTree
    top_k: NDArray[np.int64]
    """[nodes, k] most probable next tokens of each node."""


class TopKRelay:
    """Keeps the latest predictions of one target's requests."""

    def __init__(self) -> None:
        self.k = 0
        """Maximum predicted tokens per node that any service reads."""
        self._latest: dict[str, Predicted] = {}

    def want(self, widths: Sequence[int]) -> None:
        """Set the predicted tokens per node that each service reads."""
        wanted = max(widths, default=0)
        if wanted != self.k:
            self.k = wanted
            self._latest.clear()

    def arrived(self, request_id: str, tree: TokenTree, ids: Sequence[Sequence[int]]) -> None:
        """Store a verdict's predictions [nodes, k] for a tree."""
        self._latest[request_id] = Predicted(tree, np.array(ids, np.int64))

    def take(self, request_id: str, k: int) -> "Predicted | None":
        """Return k predictions per node of the latest tree, if any."""
        latest = self._latest.get(request_id)
        return None if latest is None or not k else Predicted(latest.tree, latest.top_k[:, :k])

    def forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._latest.pop(request_id, None)


class WantedOutputs(NamedTuple):
    """Outputs of the target to request from a step."""

    features: WantedFeatures = WantedFeatures()
    top_k: Mapping[str, int] = MappingProxyType({})
    """Number of tokens per node to return, by request id; absent: none."""

    def contradiction(self, request_id: str, nodes: int, answer: Returned) -> str:
        """Return the reason to reject an answer's outputs; else empty."""
        ids, wanted = len(answer.top_k_token_ids), nodes * self.top_k.get(request_id, 0)
        if ids and ids != wanted:
            return f"the verifier returned {ids} predicted token ids instead of {wanted}"
        return self.features.contradiction(request_id, answer)


NOTHING_WANTED = WantedOutputs()


class TargetOutputs:
    """Keeps hidden states and predictions of one target's requests."""

    def __init__(self, hidden: int) -> None:
        """Start empty; `hidden` is the size of the target's hidden states."""
        self.features, self.top_k = FeatureRelay(hidden), TopKRelay()

    def wanted(
        self,
        entries: Sequence[StepEntry],
        readers: Sequence[Reader],
        reads: Callable[[int, str], bool] = lambda _place, _request_id: True,
    ) -> WantedOutputs:
        """Return the target's outputs to request for these readers.

        Args:
            reads: maps (index of a reader, request id) to whether the reader drafts for the request.
        """
        wanting = [entry for entry in entries if entry.state.request.speculation is not Speculation.OFF]
        self.top_k.want([reader.target_top_k for reader in readers])
        k = self.top_k.k
        top_k = {entry.request_id: k for entry in wanting if entry.final} if k else {}
        return WantedOutputs(self._features(wanting, readers, reads), top_k)

    def _features(
        self, entries: Sequence[StepEntry], every: Sequence[Reader], reads: Callable[[int, str], bool]
    ) -> WantedFeatures:
        """Return the requests' hidden states that at least one reader lacks."""
        features = self.features
        readers = [(place, reader) for place, reader in enumerate(every) if reader.feature_layers]
        features.want([reader.feature_layers for _, reader in readers])
        since = {}
        for request_id in [entry.request_id for entry in entries] if readers else ():
            positions = [
                reader.features_len.get(request_id, 0)
                for place, reader in readers
                if reads(place, request_id)
            ]
            features.drop(request_id, positions)
            start = features.wanted_from(request_id, positions)
            if start is not None:
                since[request_id] = start
        return WantedFeatures(features.layers, since, features.bytes_of(features.layers))

    def arrived(
        self, wanted: WantedOutputs, trees: Mapping[str, TokenTree], verdicts: Mapping[str, Verdict]
    ) -> None:
        """Keep the outputs that a step returned."""
        for name, asked in wanted.features.since.items():
            verdict = verdicts[name]
            if verdict.features:
                self.features.arrived(name, asked, verdict.features_start, verdict.features)
        for name in wanted.top_k:
            if verdicts[name].top_k:
                self.top_k.arrived(name, trees[name], verdicts[name].top_k)

    def forget(self, request_ids: Sequence[str]) -> None:
        self.features.forget(request_ids)
        self.top_k.forget(request_ids)
