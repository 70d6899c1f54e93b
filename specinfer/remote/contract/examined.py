"""Call a tested speculator service, and check each answer."""

from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np

from specinfer.errors import MalformedTreeError, SpecInferError, UnavailableError
from specinfer.remote.drafts import (
    CALL_S,
    DraftStream,
    describe_speculators,
    exchange_drafts,
)
from specinfer.request.statuses import EntryStatus
from specinfer.service.stream import MessageStream
from specinfer.tree import TokenTree, TreeLimits, check_draft
from specinfer.v1 import common_pb2, speculator_pb2, speculator_pb2_grpc
from specinfer.wire.codec import decode_tree

CLIENT = "specinfer-check"
ANY_TOKEN = 2**31 - 1
_USUAL_TOKENS = 1000
"""Exclusive upper bound of the token ids in test contexts."""
OK, RESYNC, ERROR = (int(status) for status in (EntryStatus.OK, EntryStatus.RESYNC, EntryStatus.ERROR))


class BrokenContractError(SpecInferError):
    """The service breaks a rule of the protocol."""


class NotApplicableError(SpecInferError):
    """A rule does not apply to this service."""


class Examined:
    """The tested service, its description, and calls to it."""

    def __init__(self, address: str, channel: grpc.aio.Channel, patience_s: float, seed: int = 0) -> None:
        """Create a connection.

        After `patience_s` without an answer the service counts as dead. `seed` determines the test's entries.
        """
        self.address, self._patience_s = address, patience_s
        self.rng = np.random.default_rng(seed)
        self._stub = speculator_pb2_grpc.SpeculatorStub(channel)  # type: ignore[no-untyped-call]
        self._stream: DraftStream = MessageStream(address, lambda: self._stub.Draft())
        self._steps = 0
        self._asked: dict[str, set[str]] = {}
        """Ids of all sent requests, by client."""
        self.description = speculator_pb2.DescribeSpeculatorReply()
        self.described = False

    async def describe(self) -> speculator_pb2.DescribeSpeculatorReply:
        """Request the service's description."""
        self.description = await describe_speculators(self.address, self._stub)
        self.described = True
        return self.description

    @property
    def nodes(self) -> int:
        """Node budget of the test's entries, at most the service's maximum."""
        return min(8, self.description.max_nodes)

    def vocab_size(self, speculator: int) -> int:
        """Return a speculator's vocabulary size; `ANY_TOKEN` if unlimited."""
        return self.description.speculators[speculator].vocab_size or ANY_TOKEN

    def context(self, length: int) -> list[int]:
        """Return token ids with equal halves, so that n-gram drafters draft."""
        sizes = [
            speculator.vocab_size for speculator in self.description.speculators if speculator.vocab_size
        ]
        once: list[int] = self.rng.integers(0, min([_USUAL_TOKENS, *sizes]), -(-length // 2)).tolist()
        return (once + once)[:length]

    def entry(
        self, request_id: str, delta: Sequence[int], base_len: int = 0, **fields: Any
    ) -> speculator_pb2.DraftEntry:
        """Return a greedy entry with the usual budget and inputs."""
        defaults: dict[str, Any] = {
            "node_budget": self.nodes,
            "max_depth": self.nodes,
            "shape": speculator_pb2.TREE_SHAPE_TREE,
            "sampling": common_pb2.SamplingParams(temperature=0.0),
        }
        target_fields = self._of_the_target(base_len, delta)
        if self.description.reads_references and base_len == 0:
            target_fields["references"] = [speculator_pb2.Reference(token_ids=self.context(20))]
        named: dict[str, Any] = {
            "request_id": request_id,
            "base_len": base_len,
            "delta_token_ids": delta,
        }
        return speculator_pb2.DraftEntry(**(named | defaults | target_fields | fields))

    async def ask(
        self, entries: Sequence[speculator_pb2.DraftEntry], client: str = CLIENT
    ) -> list[speculator_pb2.DraftResult]:
        """Send entries; return one result per entry, in the same order."""
        self._steps += 1
        self._asked.setdefault(client, set()).update(entry.request_id for entry in entries)
        request = speculator_pb2.DraftRequest(step_id=self._steps, entries=entries, client=client)
        reply = await exchange_drafts(self.address, self._stream, request, self.description, self._patience_s)
        names = [entry.request_id for entry in entries], [result.request_id for result in reply.entries]
        if names[0] != names[1]:
            raise BrokenContractError(f"the answer has entries {names[1]} instead of {names[0]}")
        if reply.instance_id != self.description.instance_id:
            instance_id = self.description.instance_id
            raise BrokenContractError(
                f"instance_id is {instance_id!r} in Describe and {reply.instance_id!r} in Draft"
            )
        return list(reply.entries)

    async def one(self, entry: speculator_pb2.DraftEntry, client: str = CLIENT) -> speculator_pb2.DraftResult:
        """Return the result of a single entry, as `ask` does."""
        (result,) = await self.ask([entry], client)
        return result

    async def served(
        self, entry: speculator_pb2.DraftEntry, client: str = CLIENT
    ) -> speculator_pb2.DraftResult:
        """Return the result of a single entry; its status must be OK."""
        result = await self.one(entry, client)
        expect_status(result, OK, f"{len(entry.delta_token_ids)} tokens from position {entry.base_len}")
        expected_len = entry.base_len + len(entry.delta_token_ids)
        if result.cached_len != expected_len:
            raise BrokenContractError(f"cached_len is {result.cached_len} instead of {expected_len}")
        return result

    async def release(self, request_ids: Sequence[str], client: str = CLIENT) -> int:
        """Release requests; return the number of known requests in the reply."""
        request = common_pb2.ReleaseRequest(request_ids=request_ids, client=client)
        try:
            reply: common_pb2.ReleaseReply = await self._stub.Release(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            raise UnavailableError(f"{self.address}: {error.details()}") from error
        return reply.released

    async def close(self) -> None:
        """Release all requests, and end the stream."""
        self._stream.reset()
        for client, names in self._asked.items():
            await self.release(sorted(names), client)

    def trees(
        self, entry: speculator_pb2.DraftEntry, result: speculator_pb2.DraftResult
    ) -> dict[int, TokenTree]:
        """Check a result's trees; return them by speculator."""
        asked = set(entry.speculators) or set(range(len(self.description.speculators)))
        limits, trees = TreeLimits(entry.node_budget, entry.max_depth), dict[int, TokenTree]()
        for draft in result.drafts:
            if draft.speculator not in asked or draft.speculator in trees:
                wanted = f"one draft each of speculators {sorted(asked)} was requested"
                raise BrokenContractError(f"unexpected draft of speculator {draft.speculator}: {wanted}")
            if draft.status != OK:
                name = self.description.speculators[draft.speculator].name
                raise BrokenContractError(
                    f"speculator {name} failed to draft: {draft.message or 'no reason'}"
                )
            size, root = self.vocab_size(draft.speculator), entry.delta_token_ids[-1]
            try:
                tree = decode_tree(draft.tree, draft.speculator)
                check_draft(tree, root, limits, size)
            except MalformedTreeError as error:
                raise BrokenContractError(f"speculator {draft.speculator}: {error}") from error
            parents = tree.parents[1:].tolist()
            if entry.shape == speculator_pb2.TREE_SHAPE_SEQUENCE and len(set(parents)) < len(parents):
                raise BrokenContractError(
                    f"speculator {draft.speculator}: sent branches, but TREE_SHAPE_SEQUENCE requires a chain"
                )
            trees[draft.speculator] = tree
        return trees

    def _of_the_target(self, base_len: int, delta: Sequence[int]) -> dict[str, Any]:
        """Return random hidden states and predictions, if the service reads any."""
        fields: dict[str, Any] = {}
        layers, size, k = (
            len(self.description.feature_layers),
            self.description.feature_size,
            self.description.target_top_k,
        )
        if layers and size and delta:
            first = max(base_len - 1, 0)
            shape = (base_len + len(delta) - 1 - first, layers, size)
            states = self.rng.normal(size=shape).astype(np.float32).view(np.uint32) >> 16  # to bfloat16
            fields = {"target_features": states.astype(np.uint16).tobytes(), "features_start": first}
        if k and delta:
            fields["target_top_k"] = speculator_pb2.TargetTopK(
                token_ids=delta[-1:], parents=[-1], top_k_token_ids=self.context(k)
            )
        return fields


def expect_status(result: speculator_pb2.DraftResult, status: int, what: str) -> None:
    """Check the status of an answer."""
    if result.status != status:
        names = {int(entry_status): entry_status.name for entry_status in EntryStatus}
        shown = f"{names.get(result.status, result.status)} {result.message}".strip()
        raise BrokenContractError(f"{what}: answered {shown} instead of {names[status]}")
