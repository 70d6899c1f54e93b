"""One speculator service as an engine sees it that owns its contexts: what it holds, is asked and answers.

Knows messages, not connections. Invariant: `held` never claims more than the service said. The gateway's
own (`specinfer/speculators/service.py`) also knows draws, shares of messages and whom to leave out.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specinfer.entry_status import EntryStatus
from specinfer.errors import MalformedTreeError
from specinfer.sampling import GREEDY
from specinfer.speculators.drafts import CONTEXT_CHUNK, DraftStream, sound_draft
from specinfer.speculators.faults import Refusals
from specinfer.tree import TokenTree, TreeLimits, most_depth
from specinfer.tree.token_tree import Int32
from specinfer.v1 import speculator_pb2, speculator_pb2_grpc
from specinfer.wire.sampling_codec import encode_sampling

log = logging.getLogger(__name__)


class Question(NamedTuple):
    """One request for which drafts are wanted."""

    request_id: str
    tokens: Int32
    """[T] its context; the last token becomes the root."""
    limits: TreeLimits


Drafts = list[tuple[int, TokenTree]]
"""(number of the speculator, its tree) for one request."""


@dataclass(slots=True)
class SpeculatorService:
    """A service and its books."""

    address: str
    channel: Any
    stub: speculator_pb2_grpc.SpeculatorStub
    stream: DraftStream
    numbers: tuple[int, ...] = ()
    """Of its speculators, in the order of Describe."""
    description: speculator_pb2.DescribeSpeculatorReply | None = None
    """None while it is away."""
    held: dict[str, int] = field(default_factory=dict)
    """Context tokens it holds, by request."""
    refusals: Refusals = field(default_factory=Refusals)
    """By place in Describe."""
    busy: bool = False
    """Whether it still works on a question."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Of drafts: ok, malformed, failed; of requests: resync; of rounds: late, missed, lost."""

    def begins(self, description: speculator_pb2.DescribeSpeculatorReply, numbers: tuple[int, ...]) -> None:
        """It was described: from now on it takes part, and holds nothing."""
        self.description, self.numbers = description, numbers
        self.held.clear()
        self.refusals.clear()

    def encode(self, question: Question) -> speculator_pb2.DraftEntry | None:
        """The message that asks it; None where none of its speculators takes the request."""
        assert self.description is not None
        name, tokens, limits = question
        positions = self.description.max_context_len
        if positions and len(tokens) > positions:
            return None
        willing = self.refusals.willing(name, range(len(self.numbers)))
        if not willing:
            return None
        held = self.held.get(name, 0)
        if held >= len(tokens):
            held = 0  # it said that it holds more than there is
        delta = tokens[held : held + CONTEXT_CHUNK].tolist()
        complete = held + len(delta) == len(tokens)
        return speculator_pb2.DraftEntry(
            request_id=name,
            base_len=held,
            delta_token_ids=delta,
            node_budget=min(limits.nodes, self.description.max_nodes) if complete else 0,
            max_depth=min(limits.depth, most_depth(0, len(tokens), positions)) if positions else limits.depth,
            shape=speculator_pb2.TREE_SHAPE_SEQUENCE if limits.width == 1 else speculator_pb2.TREE_SHAPE_TREE,
            sampling=encode_sampling(GREEDY, with_seed=False),
            speculators=willing,
        )

    def accept(
        self, asked: Mapping[str, Question], result: speculator_pb2.DraftResult, vocab_size: int
    ) -> Drafts:
        """The sound trees of a result; keeps the books."""
        name = result.request_id
        if name not in asked:
            self.outcomes["malformed"] += 1
            return []
        if result.status == int(EntryStatus.RESYNC):
            self.held[name] = 0
            self.outcomes["resync"] += 1
            return []
        if result.status != int(EntryStatus.OK):
            self.held[name] = min(self.held.get(name, 0), result.held_len)
            for place in range(len(self.numbers)):
                self._failed(name, place, result.status, result.message)
            return []
        self.held[name] = result.held_len
        found: Drafts = []
        failed = {draft.speculator for draft in result.drafts if draft.status != int(EntryStatus.OK)}
        for place in set(range(len(self.numbers))) - failed:
            self.refusals.served(name, place)
        for draft in result.drafts:
            if draft.speculator in failed:
                self._failed(name, draft.speculator, draft.status, draft.message)
            elif (tree := self._sound(draft, asked[name], vocab_size)) is not None:
                found.append(tree)
        self.outcomes["ok"] += len(found)
        return found

    def _sound(
        self, draft: speculator_pb2.Draft, question: Question, vocab_size: int
    ) -> tuple[int, TokenTree] | None:
        try:
            if draft.speculator >= len(self.numbers):
                raise MalformedTreeError("draft.speculator", draft.speculator, "was not asked")
            number, root = self.numbers[draft.speculator], int(question.tokens[-1])
            return number, sound_draft(draft.tree, number, root, question.limits, vocab_size)
        except MalformedTreeError as error:
            self.outcomes["malformed"] += 1
            log.debug("%s: malformed tree: %s", self.address, error.for_logs)
            return None

    def _failed(self, name: str, place: int, status: int, why: str) -> None:
        """Does not ask again what was answered by an error, and later what is only put off; says so once per
        service."""
        if not self.outcomes["failed"]:
            log.warning("a draft of %s failed, later ones are only counted: %s", self.address, why[:200])
        self.outcomes["failed"] += 1
        if status == int(EntryStatus.EXHAUSTED):
            self.refusals.put_off(name, place)
        else:
            self.refusals.refuse(name, place)

    def forget(self, request_ids: "list[str]") -> None:
        """Drops what is known of requests."""
        for name in request_ids:
            self.held.pop(name, None)
        self.refusals.forget(request_ids)
