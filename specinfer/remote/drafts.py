"""Exchange draft messages: limits, calls, and checks of trees."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from specinfer.errors import MalformedTreeError, ServiceChangedError, UnavailableError
from specinfer.service.stream import MessageStream
from specinfer.tree import TokenTree
from specinfer.tree.check import CANDIDATES_PER_NODE, SUPPORT_PER_NODE
from specinfer.v1 import common_pb2, speculator_pb2, speculator_pb2_grpc
from specinfer.wire.codec import max_bytes

log = logging.getLogger(__name__)

DraftStream = MessageStream[speculator_pb2.DraftRequest, speculator_pb2.DraftReply]
CALL_S = 5.0
"""Timeout in seconds of a call that no step waits for."""
FIRST_ANSWER_S = 1.0
"""Seconds to wait at start for services to describe themselves."""


async def describe_speculators(
    address: str, stub: speculator_pb2_grpc.SpeculatorStub
) -> speculator_pb2.DescribeSpeculatorReply:
    """Call `Describe` of a service."""
    try:
        request = speculator_pb2.DescribeSpeculatorRequest()
        reply: speculator_pb2.DescribeSpeculatorReply = await stub.Describe(request, timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        raise UnavailableError(f"{address}: {error.details()}") from error
    return reply


async def describe_together(
    services: Sequence[tuple[str, speculator_pb2_grpc.SpeculatorStub]], patience_s: float
) -> list[speculator_pb2.DescribeSpeculatorReply | UnavailableError]:
    """Call `Describe` of all services at once; return the answers in order.

    A service that does not answer within `patience_s` seconds gets an error instead.
    """
    calls = [asyncio.ensure_future(describe_speculators(address, stub)) for address, stub in services]
    if calls:
        await asyncio.wait(calls, timeout=patience_s)
    for call in calls:
        call.cancel()  # no effect on finished calls
    descriptions = await asyncio.gather(*calls, return_exceptions=True)
    return [_described(address, answer) for (address, _), answer in zip(services, descriptions, strict=True)]


def _described(
    address: str, answer: speculator_pb2.DescribeSpeculatorReply | BaseException
) -> speculator_pb2.DescribeSpeculatorReply | UnavailableError:
    """Return one description, or the error if the service is unavailable."""
    if isinstance(answer, asyncio.CancelledError):
        return UnavailableError(f"{address}: Describe was not answered in time")
    if isinstance(answer, BaseException) and not isinstance(answer, UnavailableError):
        raise answer
    return answer


def speculator_keys(service: str, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return keys by which a service's speculators are recognised after a restart.

    A key is (service, name, index among the speculators of this name).
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
        address: the service's address.
        stream: stream to the service.
        request: the message to send.
        description: description of the process that must answer.
        patience_s: timeout in seconds.
    """
    reply = await stream.exchange(request, patience_s)
    if reply.step_id != request.step_id:
        stream.reset()
        raise UnavailableError(f"{address}: answered step {reply.step_id} instead of {request.step_id}")
    expected = description.instance_id if description else ""
    if expected and reply.instance_id and reply.instance_id != expected:
        raise ServiceChangedError(f"{address}: the service has been replaced by another process")
    return reply


@dataclass(frozen=True, slots=True)
class TreeShare:
    """Limits of one speculator's tree for one request."""

    candidates: int
    """Maximum children in all proposals; repeated tokens count again."""
    support: int
    """Maximum token ids in the q distributions of all proposals."""
    encoded_bytes: int
    """Maximum bytes of this tree's part of the merged tree."""

    @classmethod
    def of(cls, max_nodes: int, step_bytes: int, requests: int, speculators: int) -> "TreeShare":
        """Return the share of one request and speculator in a step.

        Args:
            max_nodes: maximum nodes of a tree for the verifier, root included.
            step_bytes: maximum bytes of a step's trees in the message.
            requests: requests of the step, at least one.
            speculators: speculators of the whole pool, at least one.
        """
        return cls(
            CANDIDATES_PER_NODE * max_nodes // speculators,
            SUPPORT_PER_NODE * max_nodes // speculators,
            step_bytes // (requests * speculators),
        )

    def check(self, tree: TokenTree) -> None:
        """Check a valid tree against this share."""
        sizes = {
            "candidates": (sum([len(p.children) for p in tree.proposals]), self.candidates),
            "q_token_ids": (sum([len(p.q_token_ids) for p in tree.proposals]), self.support),
            "bytes": (max_bytes(tree), self.encoded_bytes),
        }
        for name, (count, limit) in sizes.items():
            if count > limit:
                reason = f"must be at most {limit}, the speculator's share of the step"
                raise MalformedTreeError(f"tree.{name}", count, reason)


async def release_at(
    address: str, stub: speculator_pb2_grpc.SpeculatorStub, request_ids: Sequence[str], client: str
) -> None:
    """Release a client's requests at a service; a failure is only logged.

    Requests that are not released expire at the service.
    """
    try:
        await stub.Release(common_pb2.ReleaseRequest(request_ids=request_ids, client=client), timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        log.warning("%s: Release failed, the requests expire there: %s", address, error.details())
