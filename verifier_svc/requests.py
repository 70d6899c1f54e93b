"""Decodes the entries of messages into the jobs of a step, and encodes its verdicts.

A request is known from the message that starts it over (base_len 0) until it is forgotten. Invariant: a known
request's tokens are its first base_len tokens, which are cached, and the newest message's delta.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specinfer.engine.host import Grant, Host, HostPlan, HostStep
from specinfer.engine.local_pool import MemberCounts
from specinfer.errors import FaultError, InvalidInputError, SpecInferError
from specinfer.request.statuses import EntryStatus, LogprobRow
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import GenerationRequest, RequestState, Speculation
from specinfer.scheduling.target_outputs import NOTHING_WANTED, WantedFeatures, WantedOutputs
from specinfer.system.log_lines import about
from specinfer.tree import TokenTree, TreeLimits
from specinfer.tree.cut import Keeps
from specinfer.v1 import common_pb2, speculator_pb2, verifier_pb2
from specinfer.wire.codec import decode_constraint, decode_limits, decode_sampling, decode_tree, encode_tree

log = logging.getLogger(__name__)
_UNLIMITED = 2**31
_NO_TREE = TreeLimits(0, 0)
_SPECULATION = {
    speculator_pb2.TREE_SHAPE_UNSPECIFIED: Speculation.OFF,
    speculator_pb2.TREE_SHAPE_TREE: Speculation.TREE,
    speculator_pb2.TREE_SHAPE_SEQUENCE: Speculation.SEQUENCE,
}


@dataclass(frozen=True, slots=True)
class DecodedStep:
    plan: HostPlan
    grant: Grant
    refused: dict[int, tuple[str, Verdict]] = field(default_factory=dict)
    """Index of each refused entry in the message -> (request id, verdict)."""

    def verdicts(self, served: HostStep) -> list[tuple[str, Verdict]]:
        """Return (request id, verdict) of each entry of the message, served or refused."""
        rest = iter(served.verdicts.items())
        places = range(len(self.refused) + len(served.verdicts))
        return [self.refused[place] if place in self.refused else next(rest) for place in places]


class HostedRequests:
    """Known requests of the gateway. Only the engine's thread may use it."""

    def __init__(self, host: Host) -> None:
        self._host, self._states = host, dict[str, RequestState]()
        host.verifier.on_release = self.forget

    def decode(self, message: verifier_pb2.VerifyRequest, no_features: SpecInferError | None) -> DecodedStep:
        """Decode a message; refuse entries that are invalid, unknown or duplicate.

        Args:
            no_features: error for entries that request hidden states; None if the model can return them.
        """
        entries: list[StepEntry] = []
        given: dict[str, TokenTree] = {}
        verbatim: set[str] = set()
        refused: dict[int, tuple[str, Verdict]] = {}
        seen: set[str] = set()
        for place, part in enumerate(message.entries):
            request_id = part.request_id
            decoded = self._decoded(part, request_id in seen, no_features)
            seen.add(request_id)
            if isinstance(decoded, Verdict):
                refused[place] = request_id, decoded
                continue
            entry, tree = decoded
            entries.append(entry)
            if not part.HasField("tree_plan"):
                verbatim.add(request_id)
            if tree is not None and (request_id in verbatim or len(tree) > 1):
                given[request_id] = tree
        grant, asked = message.grant, _asked(message, no_features)
        speculators = frozenset(grant.speculators)
        plan = HostPlan(entries, speculators, _keeps(grant), given, frozenset(verbatim), asked)
        return DecodedStep(plan, Grant(max(1, grant.steps), grant.microseconds / 1e6), refused)

    def _decoded(
        self, part: verifier_pb2.VerifyEntry, twice: bool, no_features: SpecInferError | None
    ) -> tuple[StepEntry, TokenTree | None] | Verdict:
        """Return an entry and its tree, or a refused entry's verdict.

        `twice`: the message has an earlier entry of the request.
        """
        request_id = part.request_id
        if twice:
            error = InvalidInputError("request_id", request_id, "is in the message twice")
            return Verdict(EntryStatus.ERROR, str(error))
        try:
            if part.HasField("features_from") and no_features is not None:
                raise no_features
            tree = decode_tree(part.tree) if part.HasField("tree") else None
            return self._entry(part), tree
        except _UnknownError:
            return Verdict(EntryStatus.RESYNC)
        except SpecInferError as error:
            return Verdict(EntryStatus.ERROR, error.for_logs)
        except Exception as error:
            log.exception("an entry could not be decoded; it is refused", extra=about(request_id))
            return Verdict.refused(FaultError("internal error", error))

    def note(self, step: HostStep) -> None:
        """Forget tokens that were not computed, and failed requests without a cache."""
        for name, verdict in step.verdicts.items():
            state = self._states.get(name)  # None if idle so long that this step forgot it
            if state is not None and verdict.status is EntryStatus.OK and name not in step.trees:
                del state.tokens[verdict.cached_len :]
        failed = [name for name, verdict in step.verdicts.items() if verdict.status is not EntryStatus.OK]
        if unknown := [request_id for request_id in failed if not self._host.verifier.holds(request_id)]:
            self.forget(unknown)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Forget requests here and in the resident drafters."""
        names = list(request_ids)
        for request_id in names:
            self._states.pop(request_id, None)
        self._host.forget(names)

    def _entry(self, part: verifier_pb2.VerifyEntry) -> StepEntry:
        """Return the step's entry; store the message's tokens in the request."""
        delta = tuple(part.delta_token_ids)
        if not delta:
            raise InvalidInputError("delta_token_ids", [], "must not be empty")
        if part.prompt_len > len(delta) and part.base_len == 0:
            reason = f"must be at most {len(delta)}, the tokens of delta_token_ids"
            raise InvalidInputError("prompt_len", part.prompt_len, reason)
        state = self._states.get(part.request_id)
        if part.base_len == 0:
            state = self._begin(part, delta, state)
        elif state is None or len(state.tokens) < part.base_len:
            raise _UnknownError
        else:
            self._extend(state, part.base_len, delta)
            state.sampling, state.finish = decode_sampling(part.sampling), None
        if not part.HasField("tree_plan"):
            final = part.HasField("tree")
            return StepEntry(state, part.base_len, delta, final, _NO_TREE, 0, read_limit=part.read_limit)
        if part.read_limit:
            raise InvalidInputError("read_limit", part.read_limit, "must be 0 for an entry with a tree_plan")
        plan = part.tree_plan
        speculation = _SPECULATION.get(plan.shape, Speculation.TREE)
        if state.request.speculation is not speculation:
            state.request = replace(state.request, speculation=speculation)
        state.drawn_for = plan.drawn_for
        reach, limits = max(0, plan.max_positions - part.base_len - len(delta)), decode_limits(plan)
        if limits.depth > reach:
            limits = replace(limits, depth=reach)
        return StepEntry(state, part.base_len, delta, True, limits, reach, plan.forced)

    def _begin(
        self, part: verifier_pb2.VerifyEntry, delta: Sequence[int], before: RequestState | None
    ) -> RequestState:
        """Start a request over; drafters keep caches of equal tokens."""
        tokens = list(delta)
        if before is not None and before.tokens[: len(tokens)] != tokens:
            self._host.forget([part.request_id])
        state = self._states[part.request_id] = _state_of(part, tokens)
        return state

    def _extend(self, state: RequestState, base_len: int, delta: Sequence[int]) -> None:
        """Replace a request's tokens after the first `base_len`."""
        known = state.tokens[base_len:]
        if known != list(delta[: len(known)]):
            self._host.forget([state.request.request_id])  # drafters have read other tokens
        state.tokens[base_len:] = delta


class _UnknownError(Exception):
    """The verifier does not know the request's first base_len tokens."""


def _state_of(part: verifier_pb2.VerifyEntry, tokens: list[int]) -> RequestState:
    request = GenerationRequest(
        part.request_id,
        prompt=tuple(tokens[: part.prompt_len or len(tokens)]),
        max_new_tokens=part.max_new_tokens or _UNLIMITED,
        sampling=decode_sampling(part.sampling),
        stop_token_ids=frozenset(part.stop_token_ids),
        logprobs=part.logprobs,
        top_logprobs=part.top_logprobs if part.logprobs else 0,
        constraint=decode_constraint(part.constraint),
        references=tuple([tuple(text.token_ids) for text in part.references]),
        caller=part.cache_scope,
    )
    return RequestState(request, time.monotonic(), 0, request.sampling, tokens)


def _keeps(grant: verifier_pb2.Grant) -> Keeps:
    """Return the rule of a grant for cutting the batch's merged trees."""
    max_nodes, threshold = grant.step_nodes, grant.node_threshold
    return lambda kept, path_probability: kept < max_nodes and path_probability >= threshold


def _asked(message: verifier_pb2.VerifyRequest, no_features: SpecInferError | None) -> WantedOutputs:
    """Return the hidden states and top tokens that a message requests."""
    top_k = {part.request_id: part.return_top_k for part in message.entries if part.return_top_k}
    if no_features is not None or not message.feature_layers:
        return WantedOutputs(top_k=top_k) if top_k else NOTHING_WANTED
    since = {
        part.request_id: part.features_from for part in message.entries if part.HasField("features_from")
    }
    return WantedOutputs(WantedFeatures(tuple(message.feature_layers), since), top_k)


def encode_verdict(request_id: str, verdict: Verdict, tree: TokenTree | None = None) -> verifier_pb2.Verdict:
    """Encode a verdict, with its merged `tree` if the gateway lacks it."""
    message = verifier_pb2.Verdict(
        request_id=request_id,
        status=int(verdict.status),  # type: ignore[arg-type]  # the enums share their numbers
        message=verdict.message,
        accepted_nodes=verdict.accepted,
        bonus_token_id=verdict.bonus,
        logprobs=[row.chosen for row in verdict.logprobs],
        top_logprobs=[_top(row) for row in verdict.logprobs if row.top],
        cached_len=verdict.cached_len,
        top_k_token_ids=[token for ids in verdict.top_k for token in ids],
        finished=verdict.finished,
        cached_tokens=verdict.cached_tokens,
        tree=encode_tree(tree) if tree is not None else None,
    )
    if verdict.features:
        message.features, message.features_start = verdict.features, verdict.features_start
    return message


def made_trees(step: HostStep) -> Mapping[str, TokenTree]:
    """Return merged trees that the gateway does not know, by request id."""
    verbatim = step.plan.verbatim
    return {name: tree for name, tree in step.trees.items() if name not in verbatim and len(tree) > 1}


def encode_drafts(step: HostStep, speculators: int) -> verifier_pb2.ResidentDrafts | None:
    """Encode statistics of a step's resident drafts; None if there were none."""
    if not step.draft_times:
        return None
    own_seconds = {number: seconds for times in step.draft_times for number, seconds in times.own_s.items()}
    return verifier_pb2.ResidentDrafts(
        microseconds=round(step.draft_s * 1e6),
        read_tokens=sum([times.read for times in step.draft_times]),
        speculators=[
            _encode_counts(own_seconds.get(number, 0.0), step.drafted.get(number))
            for number in range(speculators)
        ],
    )


def _encode_counts(seconds: float, counts: MemberCounts | None) -> verifier_pb2.ResidentDraft:
    counts = counts or MemberCounts()
    return verifier_pb2.ResidentDraft(
        microseconds=round(seconds * 1e6),
        nodes=counts.nodes,
        failed=counts.failed,
        malformed=counts.malformed,
    )


def _top(row: LogprobRow) -> common_pb2.TopLogprobs:
    return common_pb2.TopLogprobs(
        token_ids=[token for token, _ in row.top], logprobs=[value for _, value in row.top]
    )
