"""One speculator service as the gateway sees it: what it holds, is asked, and what of its answer is sound.

It runs one speculator or several; the pool numbers them. Knows messages, not connections: those are the
pool's. Invariant: `held` never claims more than the service said.
"""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.clients.outage import LogPace
from gateway.planning.latency import DraftTime, SpeculatorSet
from gateway.requests.step import StepEntry
from specinfer.entry_status import EntryStatus
from specinfer.errors import MalformedTreeError
from specinfer.sampling import draft_seed
from specinfer.service.stream import MessageStream
from specinfer.tree import TokenTree
from specinfer.tree.topology import depths
from specinfer.v1 import speculator_pb2, speculator_pb2_grpc
from specinfer.wire.sampling_codec import encode_sampling
from specinfer.wire.tree_codec import decode_tree

log = logging.getLogger(__name__)

CONTEXT_CHUNK = 1024
"""Most context tokens sent to a service in one iteration."""


class Asked(NamedTuple):
    """What a service is asked for one request."""

    entry: StepEntry
    speculators: SpeculatorSet


@dataclass(slots=True)
class ServiceCounters:
    """What became of the drafts asked for."""

    answered: int = 0
    missed: int = 0
    malformed: int = 0


@dataclass(slots=True)
class SpeculatorService:
    """A service and its books."""

    address: str
    stub: speculator_pb2_grpc.SpeculatorStub
    stream: MessageStream[speculator_pb2.DraftRequest, speculator_pb2.DraftReply]
    members: range = range(0)
    """Its speculators by their numbers in the pool; empty until it was first reached."""
    drawing: SpeculatorSet = frozenset()
    """Those of its speculators that may draw."""
    description: speculator_pb2.DescribeSpeculatorReply | None = None
    """None while it is away."""
    held: dict[str, int] = field(default_factory=dict)
    """Context tokens it holds, by request."""
    refused: set[tuple[str, int]] = field(default_factory=set)
    """Requests and speculators that do not go together: the answer was an error."""
    losses: int = 0
    """How often it was lost since it last answered."""
    busy: bool = False
    last_seconds: float = 0.0
    """How long its last answer took."""
    counters: ServiceCounters = field(default_factory=ServiceCounters)
    failures: Counter[int] = field(default_factory=Counter)
    """Drafts that were refused, failed or malformed, by speculator."""
    _paces: dict[int, LogPace] = field(default_factory=lambda: defaultdict(LogPace))

    def asked(self, entries: Sequence[StepEntry], chosen: SpeculatorSet) -> dict[str, Asked]:
        """What this service has to do in a step."""
        everybody = frozenset(self.members)
        found = {}
        for entry in entries:
            wanted = everybody & chosen
            if not (entry.state.drawn_for or entry.state.sampling.greedy):
                wanted -= self.drawing  # it began before they came: its noise has been shown
            willing = frozenset(s for s in wanted if (entry.request_id, s) not in self.refused)
            if entry.drafts and willing:
                found[entry.request_id] = Asked(entry, willing)
        return found

    def will_draw(self, asked: Iterable[Asked]) -> bool:
        """Whether anything may be drawn for any of these; not where it only reads what it lacks."""
        return any(
            entry.state.drawn_for
            and bool(speculators & self.drawing)
            and self.held.get(entry.request_id, 0) + CONTEXT_CHUNK >= len(entry.state.tokens)
            for entry, speculators in asked
        )

    def encode(self, asked: Asked) -> speculator_pb2.DraftEntry:
        """The message that asks it."""
        entry, speculators = asked
        tokens, held = entry.state.tokens, self.held.get(entry.request_id, 0)
        if held >= len(tokens):
            held = 0  # never the case unless the service lies; RESYNC puts it right
        delta = tokens[held : held + CONTEXT_CHUNK]
        complete = held + len(delta) == len(tokens)
        most = self.description.max_nodes if self.description else 0
        chain = entry.limits.width == 1
        sampling = entry.state.sampling
        return speculator_pb2.DraftEntry(
            request_id=entry.request_id,
            base_len=held,
            delta_token_ids=delta,
            node_budget=min(entry.limits.nodes, most) if complete else 0,
            max_depth=entry.limits.depth,
            shape=speculator_pb2.TREE_SHAPE_SEQUENCE if chain else speculator_pb2.TREE_SHAPE_TREE,
            sampling=encode_sampling(sampling, with_seed=not entry.state.drawn_for),
            speculators=sorted(s - self.members.start for s in speculators),
            least_reach=entry.limits.least_reach,
            draw_seed=draft_seed(sampling.seed, self.members.start),
        )

    def accept(
        self, asked: Mapping[str, Asked], result: speculator_pb2.DraftResult, vocab_size: int
    ) -> list[tuple[int, TokenTree]]:
        """The sound trees of a result, by speculator; keeps the books in any case."""
        name = result.request_id
        if name not in asked or asked[name].entry.state.finish is not None:
            return []
        if result.status == int(EntryStatus.RESYNC):
            self.held[name] = 0
            return []
        if result.status != int(EntryStatus.OK):
            for speculator in asked[name].speculators:
                self._fail(speculator, result.message)
                self.refused.add((name, speculator))
            return []
        self.held[name] = result.held_len
        found: dict[int, TokenTree] = {}
        for draft in result.drafts:
            if draft.speculator >= len(self.members):
                self.counters.malformed += (
                    1  # nobody's: an answer must not blame another service's speculator
                )
                continue
            speculator = self.members.start + draft.speculator
            if draft.status == int(EntryStatus.ERROR):
                self._fail(speculator, draft.message)
                self.refused.add((name, speculator))
                continue
            try:
                if speculator not in asked[name].speculators or speculator in found:
                    raise MalformedTreeError("draft.speculator", draft.speculator, "was not asked for this")
                tree = _sound_tree(draft, speculator, asked[name].entry, vocab_size)
                if tree.has_draws and not self._may_draw(speculator, asked[name].entry):
                    raise MalformedTreeError("tree.proposals", "drawn", "it says that it does not draw")
                found[speculator] = tree
            except MalformedTreeError as error:
                self._fail(speculator, f"malformed tree: {error}")
                self.counters.malformed += 1
        return list(found.items())

    def _may_draw(self, speculator: int, entry: StepEntry) -> bool:
        """Greedy requests are verified without q, so for them draws do no harm."""
        state = entry.state
        return state.sampling.greedy or (state.drawn_for and speculator in self.drawing)

    def _fail(self, speculator: int, why: str) -> None:
        """Counts a draft that failed; logs the first, then the latest one at times."""
        self.failures[speculator] += 1
        if self._paces[speculator].due(time.monotonic()):
            described = self.description.speculators if self.description else ()
            names = dict(zip(self.members, (each.name for each in described), strict=False))
            who, count = names.get(speculator, f"number {speculator}"), self.failures[speculator]
            log.warning(
                "a draft of speculator %s at %s failed (%d so far): %s", who, self.address, count, why
            )

    def draft_time(self, reply: speculator_pb2.DraftReply) -> DraftTime:
        """What its last answer took."""
        told = zip(self.members, reply.speculator_us, strict=False)
        own = {s: min(us / 1e6, self.last_seconds) for s, us in told if us}  # not longer than the answer took
        return DraftTime(frozenset(self.members), own, max(0.0, self.last_seconds - sum(own.values())))

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops what is known of requests."""
        for request_id in request_ids:
            self.held.pop(request_id, None)
            self.refused.difference_update([(request_id, speculator) for speculator in self.members])


def _sound_tree(draft: speculator_pb2.Draft, speculator: int, entry: StepEntry, vocab_size: int) -> TokenTree:
    """Also checks what only the gateway can know: the root, and how deep this tree may be."""
    tree = decode_tree(draft.tree, speculator)
    tree.validate(vocab_size, entry.limits.nodes + 1)
    if tree.root_token_id != entry.state.tokens[-1]:
        raise MalformedTreeError("tree.token_ids[0]", tree.root_token_id, "not the last committed token")
    depth = int(depths(tree.parents).max())
    if depth > entry.limits.depth:
        raise MalformedTreeError("tree.depth", depth, f"deeper than {entry.limits.depth}")
    return tree
