"""Drafts on the wire: message limits, exchange, and checks of trees."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from specinfer.errors import MalformedTreeError, ServiceChangedError, UnavailableError
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.target_outputs import Predicted
from specinfer.service.stream import MessageStream
from specinfer.tree import TokenTree, TreeLimits, check_draft
from specinfer.tree.check import CANDIDATES_PER_NODE, SUPPORT_PER_NODE
from specinfer.v1 import common_pb2, speculator_pb2, speculator_pb2_grpc, tree_pb2, verifier_pb2
from specinfer.wire.tree_codec import decode_tree, max_bytes

log = logging.getLogger(__name__)

CONTEXT_CHUNK = 1024
"""Maximum context tokens of a request per message."""
DraftStream = MessageStream[speculator_pb2.DraftRequest, speculator_pb2.DraftReply]
CALL_S = 5.0
"""Time for a call that no step waits for."""
FIRST_ANSWER_S = 1.0
"""Time that services have to describe themselves before steps begin without them."""


async def describe_speculators(
    address: str, stub: speculator_pb2_grpc.SpeculatorStub
) -> speculator_pb2.DescribeSpeculatorReply:
    """Return a service's description of itself.

    Raises:
        UnavailableError: if it does not answer.
    """
    try:
        request = speculator_pb2.DescribeSpeculatorRequest()
        reply: speculator_pb2.DescribeSpeculatorReply = await stub.Describe(request, timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        raise UnavailableError(f"{address}: {error.details()}") from error
    return reply


async def describe_together(
    services: Sequence[tuple[str, speculator_pb2_grpc.SpeculatorStub]], patience_s: float
) -> list[speculator_pb2.DescribeSpeculatorReply | UnavailableError]:
    """Return services' descriptions of themselves, in their order.

    All are called at once; an error stands for each that does not answer in time.
    """
    calls = [asyncio.ensure_future(describe_speculators(address, stub)) for address, stub in services]
    if calls:
        await asyncio.wait(calls, timeout=patience_s)
    for call in calls:
        call.cancel()  # does nothing to those that are done
    descriptions = await asyncio.gather(*calls, return_exceptions=True)
    return [_described(address, answer) for (address, _), answer in zip(services, descriptions, strict=True)]


def _described(
    address: str, answer: speculator_pb2.DescribeSpeculatorReply | BaseException
) -> speculator_pb2.DescribeSpeculatorReply | UnavailableError:
    """Return one description.

    Raises:
        BaseException: if it is a fault of ours.
    """
    if isinstance(answer, asyncio.CancelledError):
        return UnavailableError(f"{address}: does not say in time what it is")
    if isinstance(answer, BaseException) and not isinstance(answer, UnavailableError):
        raise answer
    return answer


def speculator_keys(service: str, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return keys by which a service's speculators are recognised after a restart.

    A key is service, name, and place among those of this name.
    """
    return [(service, name, names[:place].count(name)) for place, name in enumerate(names)]


async def exchange_drafts(
    address: str,
    stream: DraftStream,
    request: speculator_pb2.DraftRequest,
    description: speculator_pb2.DescribeSpeculatorReply | None,
    patience_s: float,
) -> speculator_pb2.DraftReply:
    """Send a message; return the answer of the described process.

    Args:
        address: of the service.
        stream: to the service.
        request: the message to send.
        description: of the process that must answer.
        patience_s: timeout of the answer.

    Raises:
        UnavailableError: if there is none.
        ServiceChangedError: if another process answers.
    """
    reply = await stream.exchange(request, patience_s)
    if reply.step_id != request.step_id:
        stream.reset()
        raise UnavailableError(f"{address}: answered step {reply.step_id} instead of {request.step_id}")
    expected = description.instance_id if description else ""
    if expected and reply.instance_id and reply.instance_id != expected:
        raise ServiceChangedError(f"{address}: another process answers there now")
    return reply


def sound_draft(
    message: tree_pb2.TokenTree, speculator: int, root: int, limits: TreeLimits, vocab_size: int
) -> TokenTree:
    """Return the tree of a message, its proposals those of `speculator`.

    Args:
        message: the tree as it came.
        speculator: number of its proposals.
        root: the last committed token.
        limits: limits of the request.
        vocab_size: the tokens must be smaller.

    Raises:
        MalformedTreeError: naming the first broken invariant.
    """
    tree = decode_tree(message, speculator)
    check_draft(tree, root, limits, vocab_size)
    return tree


@dataclass(frozen=True, slots=True)
class TreeShare:
    """Bounds of one speculator's tree for one request."""

    candidates: int
    """Children of all proposals, repeats counted."""
    support: int
    """Tokens of all q."""
    encoded_bytes: int
    """Bytes of its part of the merged tree."""

    @classmethod
    def of(cls, max_nodes: int, step_bytes: int, requests: int, speculators: int) -> "TreeShare":
        """Return the share of a step with so many requests.

        Args:
            max_nodes: maximum nodes of a tree for the verifier, root included.
            step_bytes: maximum bytes of a step's trees in the message.
            requests: at least one.
            speculators: of the whole pool, at least one.
        """
        return cls(
            CANDIDATES_PER_NODE * max_nodes // speculators,
            SUPPORT_PER_NODE * max_nodes // speculators,
            step_bytes // (requests * speculators),
        )

    def check(self, tree: TokenTree) -> None:
        """Check a tree that is valid otherwise.

        Raises:
            MalformedTreeError: naming the bound that it breaks.
        """
        sizes = {
            "candidates": (sum([len(p.children) for p in tree.proposals]), self.candidates),
            "q_token_ids": (sum([len(p.q_token_ids) for p in tree.proposals]), self.support),
            "bytes": (max_bytes(tree), self.encoded_bytes),
        }
        for name, (count, limit) in sizes.items():
            if count > limit:
                raise MalformedTreeError(
                    f"tree.{name}", count, f"more than this speculator's share of {limit}"
                )


def sound_tree(
    message: tree_pb2.TokenTree, speculator: int, entry: StepEntry, vocab_size: int, share: TreeShare
) -> TokenTree:
    """Decode a tree; check it against the request and the share.

    Raises:
        MalformedTreeError: naming the first broken invariant.
    """
    tree = sound_draft(message, speculator, entry.delta[-1], entry.limits, vocab_size)
    share.check(tree)
    return tree


def encode_top_k(predicted: Predicted | None) -> speculator_pb2.TargetTopK | None:
    """Return the message of the target's predictions."""
    if predicted is None:
        return None
    return speculator_pb2.TargetTopK(
        token_ids=predicted.tree.token_ids.tolist(),
        parents=predicted.tree.parents.tolist(),
        top_k_token_ids=predicted.top_k.ravel().tolist(),
    )


async def release_at(
    address: str, stub: speculator_pb2_grpc.SpeculatorStub, request_ids: Sequence[str], client: str
) -> None:
    """Release a client's requests at a service; log a failure only.

    Requests that are not released expire there.
    """
    try:
        await stub.Release(common_pb2.ReleaseRequest(request_ids=request_ids, client=client), timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        log.warning("%s could not release: %s", address, error.details())


_MAX_TOKENS = 2**20
"""Maximum tokens of references in a message, in addition to one request.

They take 3 MiB, next to 8 MiB of features, of 16 MiB in all. A request has 2**17 at most.
"""


def add_references(
    entries: Sequence[speculator_pb2.DraftEntry] | Sequence[verifier_pb2.VerifyEntry],
    references: Mapping[str, Sequence[Sequence[int]]],
) -> None:
    """Give each entry that starts over the references of its request.

    They are a hint: all beyond their share of the message is left out.
    """
    starting = [entry for entry in entries if entry.base_len == 0]
    for entry in starting:
        left = _MAX_TOKENS // len(starting)
        for text in references[entry.request_id]:
            if left:
                entry.references.add(token_ids=text[:left])
            left -= min(left, len(text))
