"""Exchange one step's messages with the speculator services."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specinfer.engine.draft_group import DraftInputs, DraftQuery, checks
from specinfer.errors import UnavailableError
from specinfer.planning.step_report import DraftTime, tokens_read
from specinfer.remote.description import scope_of
from specinfer.remote.draft_codec import add_references, decode_outcome
from specinfer.remote.drafts import TreeShare, exchange_drafts
from specinfer.remote.policy import PoolPolicy
from specinfer.remote.service import SpeculatorService
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.target_outputs import TargetOutputs
from specinfer.tree import TokenTree
from specinfer.v1 import speculator_pb2

_FEATURE_BYTES = 2**23
"""Maximum bytes of features in a message of at most 16 MiB."""


class Drafts(NamedTuple):
    trees: dict[str, list[tuple[int, TokenTree]]]
    """Pairs (speculator number, tree), ascending by number, by request id."""
    times: list[DraftTime]
    """Times of all services that answered."""


NO_DRAFTS = Drafts({}, [])


class DraftRound:
    """Collects a step's answers; late answers are only counted."""

    def __init__(
        self, step: int, policy: PoolPolicy, target: TargetOutputs, share: TreeShare, traceparent: str = ""
    ) -> None:
        """Start the exchange of a step.

        `share` limits each speculator's tree per request; `traceparent` is sent to services.
        """
        self._step, self._policy, self._target = step, policy, target
        self._fits, self._share, self._traceparent = checks(policy.vocab_size), share, traceparent
        self._trees: dict[str, list[tuple[int, TokenTree]]] = {}
        self._times: list[DraftTime] = []
        self.over = False
        """True once the next step has begun."""

    def _check(self, tree: TokenTree, entry: StepEntry) -> None:
        """Check a tree against its request and the share."""
        self._fits(tree, entry)
        self._share.check(tree)

    def drafts(self) -> Drafts:
        """Return copies of the answers so far, as more may arrive."""
        in_order = {name: sorted(trees, key=lambda item: item[0]) for name, trees in self._trees.items()}
        return Drafts(in_order, list(self._times))

    def add(self, request_id: str, trees: Sequence[tuple[int, TokenTree]]) -> None:
        if trees:
            self._trees.setdefault(request_id, []).extend(trees)

    async def ask(self, service: SpeculatorService, asked: Mapping[str, DraftQuery]) -> None:
        """Exchange a message with a service; add its trees and time."""
        started = self._policy.clock()
        request, features_until = self._message(service, asked)
        service.busy = True
        try:
            reply = await exchange_drafts(
                service.address, service.stream, request, service.description, self._policy.hung_s
            )
        except UnavailableError:
            service.statistics.count("failed", _drafts(asked))
            raise
        finally:
            service.busy = False
        self._take(service, asked, reply, features_until)
        service.last_seconds = self._policy.clock() - started
        read = tokens_read([len(entry.delta_token_ids) for entry in request.entries])
        self._times.append(service.draft_time(reply, read))

    def _message(
        self, service: SpeculatorService, asked: Mapping[str, DraftQuery]
    ) -> tuple[speculator_pb2.DraftRequest, dict[str, int]]:
        """Return the message to a service, and end positions of its features.

        The positions, by request id, are valid once the service has accepted the message.
        """
        policy = self._policy
        inputs = DraftInputs(
            self._target, _FEATURE_BYTES // len(asked), lambda request: scope_of(request, policy.scoped)
        )
        entries = [service.encode(item, inputs) for item in asked.values()]
        if service.reads_references:
            add_references(entries, {name: it.entry.state.request.references for name, it in asked.items()})
        features, layers = self._target.features, service.feature_layers
        until = {e.request_id: features.until(e.features_start, e.target_features, layers) for e in entries}
        request = speculator_pb2.DraftRequest(
            step_id=self._step, entries=entries, client=policy.client, traceparent=self._traceparent
        )
        return request, until

    def _take(
        self,
        service: SpeculatorService,
        asked: Mapping[str, DraftQuery],
        reply: speculator_pb2.DraftReply,
        features_until: Mapping[str, int],
    ) -> None:
        service.losses = 0
        in_time = not self.over
        service.answered += in_time
        service.missed += not in_time
        if reply.HasField("learning"):
            service.learning = reply.learning
        open_ = dict(asked)
        for result in reply.entries:
            until = features_until.get(result.request_id, 0)
            outcome = decode_outcome(result, service.members)
            trees = service.accept(open_, outcome, self._check, in_time, until)
            open_.pop(result.request_id, None)  # one answer per request, or its trees would be merged twice
            if in_time:
                self.add(result.request_id, trees)
        service.statistics.count("failed", _drafts(open_))  # requests without an answer


def _drafts(asked: Mapping[str, DraftQuery]) -> int:
    return sum([len(item.speculators) for item in asked.values()])
