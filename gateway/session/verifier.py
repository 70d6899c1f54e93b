"""Call the verifier: one message per step, for the whole batch."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import grpc

from gateway.session.verdicts import following_entries, made_trees, sound_verdicts
from specinfer.errors import FencedError, IncompatibleError, ServiceChangedError, UnavailableError
from specinfer.planning.pass_curve import PassCurve
from specinfer.remote.description import scope_of
from specinfer.remote.draft_codec import add_references
from specinfer.remote.resident import NO_ORDER, HostOrder
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.target_outputs import NOTHING_WANTED, WantedOutputs
from specinfer.service.stream import Channel, MessageStream
from specinfer.tree import TokenTree
from specinfer.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc
from specinfer.wire.codec import encode_constraint, encode_sampling, encode_tree

_RANGES = {
    "vocab_size": (1, 2**24),
    "max_context_len": (1, 2**31),
    "max_requests": (1, 2**20),
    "max_nodes": (1, 2**16),
    "max_step_tokens": (2, 2**24),
    "kv_capacity_tokens": (1, 2**40),
    "kv_block_tokens": (1, 2**16),
    "kv_window_tokens": (0, 2**31),
    "context_nanoseconds": (0, 10**12),
}
"""Accepted minimum and maximum of each limit in a verifier's description.

The maxima exceed any machine; they bound the planner's computations.
"""
_MAX_COSTS = 1024


def check_description(description: verifier_pb2.DescribeVerifierReply) -> None:
    """Check the limits in a verifier's description."""
    for name, (lowest, highest) in _RANGES.items():
        value = getattr(description, name)
        if not lowest <= value <= highest:
            raise IncompatibleError(
                f"the verifier states {name} = {value}: must be from {lowest} to {highest}"
            )
    if not description.pass_costs:
        raise IncompatibleError(
            "the verifier states no pass_costs (seconds of passes): its version must be the gateway's"
        )
    if len(description.pass_costs) > _MAX_COSTS:
        raise IncompatibleError(
            f"the verifier states {len(description.pass_costs)} pass_costs: must be at most {_MAX_COSTS}"
        )
    if any(cost.tokens < 1 for cost in description.pass_costs):
        raise IncompatibleError("the verifier states pass_costs with tokens = 0: must be at least 1")


_DESCRIBE_S = 5.0
"""Timeout in seconds of `Describe`."""
_SLOW = 20
"""A step's timeout includes this multiple of its expected pass."""


class Verdicts(NamedTuple):
    by_request: dict[str, Verdict]
    trees: dict[str, TokenTree]
    """Verified trees by request id."""
    compute_s: float
    """Seconds of verification, measured by the verifier; at most the call's time."""
    drafts: verifier_pb2.ResidentDrafts | None = None
    """Counts and times of speculators in the verifier's process; None without drafts."""


class VerifierClient:
    """Client of `specinfer.v1.Verifier`."""

    def __init__(
        self,
        channel: Channel,
        hung_s: float = 10.0,
        fence: int = 0,
        scoped: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a client of the verifier at a channel.

        A step times out after `hung_s` seconds plus 20 times the expected pass. `fence` is the number of the
        gateway's lease; 0: no lease. With `scoped`, only requests of the same caller share cached prompts.
        """
        self.fence, self._scoped, self._clock = fence, scoped, clock
        self.instance_id = self.model_fingerprint = ""
        """Expected ids of process and model; empty: not checked."""
        self._hung_s, self._pass_curve, self._vocab_size = hung_s, PassCurve([(1, 0.0)]), 0
        self._stub = verifier_pb2_grpc.VerifierStub(channel)  # type: ignore[no-untyped-call]
        self._stream: MessageStream[verifier_pb2.VerifyRequest, verifier_pb2.VerifyReply] = MessageStream(
            "verifier", lambda: self._stub.Verify()
        )
        self._steps = 0
        self.granted = False
        """True while the verifier may repeat the current step's plan."""

    async def describe(self) -> verifier_pb2.DescribeVerifierReply:
        """Call `Describe`; later replies must come from this process and model."""
        try:
            reply: verifier_pb2.DescribeVerifierReply = await self._stub.Describe(
                verifier_pb2.DescribeVerifierRequest(), timeout=_DESCRIBE_S
            )
        except grpc.aio.AioRpcError as error:
            raise UnavailableError(f"the verifier does not describe itself: {error.details()}") from error
        self.expect(reply)
        return reply

    def expect(self, description: verifier_pb2.DescribeVerifierReply) -> None:
        """Require that later replies come from this process and model."""
        check_description(description)
        self._pass_curve, self._vocab_size = pass_curve(description), description.vocab_size
        self.instance_id, self.model_fingerprint = description.instance_id, description.model_fingerprint

    async def verify(
        self,
        entries: Sequence[StepEntry],
        trees: Mapping[str, TokenTree],
        traceparent: str = "",
        wanted: WantedOutputs = NOTHING_WANTED,
        order: HostOrder = NO_ORDER,
    ) -> list[Verdicts]:
        """Verify one step and its granted steps; return each step's verdicts.

        The verifier is also sent `traceparent`, the `wanted` outputs, and `order`, the plans of its own drafters.
        """
        self._steps += 1
        request = verifier_pb2.VerifyRequest(
            step_id=self._steps,
            entries=[
                self._encode(entry, trees.get(entry.request_id), wanted, order.plans.get(entry.request_id))
                for entry in entries
            ],
            fence=self.fence,
            traceparent=traceparent,
            feature_layers=wanted.features.layers,
            grant=order.grant,
        )
        if order.references:
            add_references(request.entries, order.references)
        nodes = [order.plans[e.request_id].node_budget for e in entries if e.request_id in order.plans]
        tokens = sum(nodes) + sum([e.max_read + len(trees.get(e.request_id, ())) for e in entries])
        granted_s = order.grant.microseconds / 1e6 if order.grant is not None else 0.0
        patience_s = self._hung_s + granted_s + _SLOW * self._pass_curve.at(max(1, tokens))
        started = self._clock()
        self.granted = request.grant.steps > 1
        try:
            reply = await self._stream.exchange(request, patience_s)
        finally:
            self.granted = False
        waited_s = self._clock() - started
        if reply.step_id != self._steps:
            self._stream.reset()
            raise UnavailableError(
                f"the verifier's reply has step_id = {reply.step_id}: must be {self._steps}, as in the request"
            )
        self._check_sender(reply)
        return self._answers(entries, trees, reply, waited_s, wanted)

    def close(self) -> None:
        """End the stream of steps; a draining verifier waits for this."""
        self._stream.reset()

    def _answers(
        self,
        entries: Sequence[StepEntry],
        trees: Mapping[str, TokenTree],
        reply: verifier_pb2.VerifyReply,
        waited_s: float,
        wanted: WantedOutputs,
    ) -> list[Verdicts]:
        """Return the checked verdicts of each step in a reply.

        Steps after a step with an invalid verdict are dropped.
        """
        answers: list[Verdicts] = []
        parts: list[verifier_pb2.VerifyReply | verifier_pb2.GrantedStep] = [reply, *reply.more]
        for part in parts:
            if answers:
                entries, trees, wanted = (
                    following_entries(entries, answers[-1].by_request),
                    {},
                    NOTHING_WANTED,
                )
                if not entries:
                    break
            made, broken = made_trees(entries, trees, part.entries, self._vocab_size)
            verdicts = sound_verdicts(entries, made, part.entries, self._vocab_size, wanted) | broken
            drafts = part.drafts if part.HasField("drafts") else None
            answers.append(Verdicts(verdicts, made, min(part.compute_us / 1e6, waited_s), drafts))
        return answers

    def _encode(
        self,
        entry: StepEntry,
        tree: TokenTree | None,
        wanted: WantedOutputs,
        plan: verifier_pb2.TreePlan | None,
    ) -> verifier_pb2.VerifyEntry:
        request, starts_over = entry.state.request, entry.base_len == 0
        return verifier_pb2.VerifyEntry(
            request_id=request.request_id,
            base_len=entry.base_len,
            delta_token_ids=entry.delta,
            tree=encode_tree(tree) if tree is not None else None,
            sampling=encode_sampling(entry.state.sampling, with_adjustments=starts_over),
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs,
            features_from=wanted.features.since.get(request.request_id),
            return_top_k=wanted.top_k.get(request.request_id, 0),
            prompt_len=len(request.prompt) if starts_over else 0,
            constraint=encode_constraint(request.constraint) if request.constraint and starts_over else None,
            tree_plan=plan,
            max_new_tokens=request.max_new_tokens if starts_over else 0,
            stop_token_ids=request.stop_token_ids if starts_over else (),
            cache_scope=scope_of(request, self._scoped) if starts_over else "",
            read_limit=entry.read_limit,
        )

    def _check_sender(self, reply: verifier_pb2.VerifyReply) -> None:
        """Check that the expected process answered, with our lease still valid.

        The process is checked first, as a lease is valid for one process only.
        """
        identity = (
            ("instance", reply.instance_id, self.instance_id),
            ("model", reply.model_fingerprint, self.model_fingerprint),
        )
        for what, theirs, expected in identity:
            if expected and theirs and theirs != expected:
                raise ServiceChangedError(f"the verifier's {what} is now {theirs} instead of {expected}")
        if reply.fenced:
            raise FencedError(
                f"the verifier's lease {self.fence} has ended: another gateway has a newer lease"
            )

    async def release(self, request_ids: Sequence[str]) -> None:
        """Free the verifier's cache of these requests; unreleased requests expire."""
        try:
            request = common_pb2.ReleaseRequest(request_ids=request_ids, fence=self.fence)
            await self._stub.Release(request, timeout=5.0)
        except grpc.aio.AioRpcError as error:
            raise UnavailableError(f"verifier: {error.details()}") from error


def pass_curve(verifier: verifier_pb2.DescribeVerifierReply) -> PassCurve:
    """Return the measured pass seconds in a checked description."""
    return PassCurve((cost.tokens, cost.microseconds / 1e6) for cost in verifier.pass_costs)
