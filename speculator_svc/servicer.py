"""Protobuf in and out of the speculator engine, nothing else."""

import time
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from specinfer.entry_status import EntryStatus
from specinfer.errors import SpecInferError
from specinfer.service.engine_thread import EngineThread
from specinfer.tree import TokenTree, TreeLimits
from specinfer.v1 import common_pb2, speculator_pb2, speculator_pb2_grpc
from specinfer.wire.sampling_codec import decode_sampling
from specinfer.wire.tree_codec import encode_tree
from speculator_svc.engine import DraftEntry, DraftOutcome, SpeculatorEngine
from speculator_svc.metrics import SpeculatorMetrics

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class SpeculatorServicer(speculator_pb2_grpc.SpeculatorServicer):
    """Serves `specinfer.v1.Speculator`."""

    def __init__(
        self,
        engine: SpeculatorEngine,
        thread: EngineThread,
        metrics: SpeculatorMetrics,
        description: speculator_pb2.DescribeSpeculatorReply,
    ) -> None:
        self._engine, self._thread, self._metrics = engine, thread, metrics
        self._description = description

    async def Draft(
        self, requests: AsyncIterator[speculator_pb2.DraftRequest], context: Context
    ) -> AsyncIterator[speculator_pb2.DraftReply]:
        """One reply per request message, in order."""
        async for request in requests:
            yield await self._thread.call(self._step, request)

    def _step(self, request: speculator_pb2.DraftRequest) -> speculator_pb2.DraftReply:
        started = time.perf_counter()
        decoded = [_decode(entry) for entry in request.entries]
        results = iter(self._engine.draft([item for item in decoded if isinstance(item, DraftEntry)]))
        outcomes = [item if isinstance(item, DraftOutcome) else next(results) for item in decoded]
        seconds = time.perf_counter() - started
        self._metrics.observe(outcomes, seconds)
        self._metrics.observe_held(self._engine.held_requests)
        return speculator_pb2.DraftReply(
            step_id=request.step_id,
            entries=[_encode(outcome) for outcome in outcomes],
            compute_us=round(seconds * 1e6),
            speculator_us=[round(own * 1e6) for own in self._engine.seconds],
        )

    async def Describe(
        self, request: speculator_pb2.DescribeSpeculatorRequest, context: Context
    ) -> speculator_pb2.DescribeSpeculatorReply:
        """The speculators and their limits."""
        return self._description

    async def Release(self, request: common_pb2.ReleaseRequest, context: Context) -> common_pb2.ReleaseReply:
        """Forgets requests."""
        released = await self._thread.call(self._engine.release, list(request.request_ids))
        self._metrics.observe_held(self._engine.held_requests)
        return common_pb2.ReleaseReply(released=released)


def _decode(entry: speculator_pb2.DraftEntry) -> DraftEntry | DraftOutcome:
    """The entry, or the outcome that says what is wrong with it."""
    width = 1 if entry.shape == speculator_pb2.TREE_SHAPE_SEQUENCE else None
    try:
        return DraftEntry(
            entry.request_id,
            entry.base_len,
            list(entry.delta_token_ids),
            TreeLimits(entry.node_budget, entry.max_depth, width, entry.least_reach),
            decode_sampling(entry.sampling),
            list(entry.speculators),
            entry.draw_seed,
            entry.sampling.HasField("seed"),
        )
    except SpecInferError as error:
        return DraftOutcome(entry.request_id, EntryStatus.ERROR, error.for_logs)


def _encode(outcome: DraftOutcome) -> speculator_pb2.DraftResult:
    return speculator_pb2.DraftResult(
        request_id=outcome.request_id,
        status=int(outcome.status),  # type: ignore[arg-type]  # the enums share their numbers
        message=outcome.message,
        drafts=[_encode_draft(speculator, found) for speculator, found in outcome.drafts],
        held_len=outcome.held_len,
    )


def _encode_draft(speculator: int, found: TokenTree | SpecInferError) -> speculator_pb2.Draft:
    if isinstance(found, SpecInferError):
        status = common_pb2.ENTRY_STATUS_ERROR
        return speculator_pb2.Draft(speculator=speculator, status=status, message=found.for_logs)
    status = common_pb2.ENTRY_STATUS_OK
    return speculator_pb2.Draft(speculator=speculator, status=status, tree=encode_tree(found))
