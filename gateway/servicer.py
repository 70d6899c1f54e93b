"""Protobuf in and out of the generation loop, nothing else."""

import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from gateway.clients.speculator import SpeculatorService
from gateway.loop import GenerationLoop
from gateway.requests.request import (
    FinishReason,
    GenerationRequest,
    RequestState,
    Speculation,
    SpeculationStats,
)
from specinfer.errors import InvalidInputError, NotFoundError, SpecInferError, UnavailableError
from specinfer.tokenizer import Tokenizer
from specinfer.v1 import generation_pb2, generation_pb2_grpc, verifier_pb2
from specinfer.wire.sampling_codec import decode_sampling
from specinfer.wire.status import abort

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
DEFAULT_MAX_NEW_TOKENS = 128
MAX_REQUEST_ID = 256


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What the gateway knows of the target model."""

    model: str
    vocab_size: int
    max_context_len: int
    eos_token_ids: tuple[int, ...]
    lossy: bool = False
    dtype: str = ""
    executor: str = ""
    device: str = ""
    weights: str = ""

    @classmethod
    def of(cls, description: verifier_pb2.DescribeVerifierReply) -> "TargetInfo":
        """From the verifier's own description."""
        return cls(
            description.model,
            description.vocab_size,
            description.max_context_len,
            tuple(description.eos_token_ids),
            description.kv_window_tokens > 0,
            description.dtype,
            description.executor,
            description.device,
            description.weights,
        )


class GenerationServicer(generation_pb2_grpc.GenerationServicer):
    """Serves `specinfer.v1.Generation`."""

    def __init__(self, loop: GenerationLoop, tokenizer: Tokenizer, target: TargetInfo) -> None:
        self._loop, self._tokenizer, self._target = loop, tokenizer, target

    async def Generate(
        self, message: generation_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[generation_pb2.GenerateReply]:
        """Streams tokens; the last message carries the summary."""
        try:
            request = self._decode(message)
            updates = await self._loop.submit(request)
        except SpecInferError as error:
            await abort(context, error)
        finished = False
        try:
            while not finished:
                update = await updates.get()
                finished = update.final is not None
                reply = generation_pb2.GenerateReply(
                    request_id=request.request_id,
                    token_ids=update.tokens,
                    text=update.text,
                    logprobs=update.logprobs if request.logprobs else (),
                )
                if update.final is not None:
                    if update.final.finish is FinishReason.ERROR:
                        kind = UnavailableError if update.final.retryable else SpecInferError
                        await abort(context, kind(update.final.error))
                    reply.summary.CopyFrom(self._summary(update.final))
                yield reply
        finally:
            self._loop.deliveries.subscribers.unsubscribe(request.request_id)
            if not finished:  # the client hung up; the request may have ended since
                with suppress(NotFoundError):
                    self._loop.cancel(request.request_id)

    async def Cancel(
        self, message: generation_pb2.CancelRequest, context: Context
    ) -> generation_pb2.CancelReply:
        """Stops a request."""
        try:
            self._loop.cancel(message.request_id)
        except SpecInferError as error:
            await abort(context, error)
        return generation_pb2.CancelReply()

    async def Status(
        self, message: generation_pb2.StatusRequest, context: Context
    ) -> generation_pb2.StatusReply:
        """The state of the system."""
        loop = self._loop
        return generation_pb2.StatusReply(
            model=self._target.model,
            max_context_len=self._target.max_context_len,
            waiting=loop.scheduler.waiting,
            running=loop.scheduler.running,
            verifier_ready=loop.verifier_ready,
            speculators=[row for service in loop.pool.services for row in self._states(service)],
            steps=loop.steps,
            new_tokens=loop.deliveries.new_tokens,
            lossy=self._target.lossy,
            dtype=self._target.dtype,
            executor=self._target.executor,
            device=self._target.device,
            weights=self._target.weights,
            planner=self._planner_state(),
        )

    def _planner_state(self) -> generation_pb2.PlannerState:
        """What the latest step was to do, and why."""
        choice, names = self._loop.choice, self._loop.pool.names
        return generation_pb2.PlannerState(
            speculators=[names[speculator] for speculator in sorted(choice.speculators)],
            tree_nodes=choice.nodes,
            step_nodes=choice.step_nodes,
            expected_tokens=choice.tokens,
            expected_seconds=choice.seconds,
            plain_tokens_per_second=choice.plain_speed,
            reason=choice.reason,
        )

    def _states(self, service: SpeculatorService) -> list[generation_pb2.SpeculatorState]:
        """One row per speculator; of a service that is away its address, or the names it had."""
        names = [self._loop.pool.names[speculator] for speculator in service.members] or [service.address]
        numbers = service.members or [-1]
        described = service.description.speculators if service.description else ()
        drafters = [speculator.drafter for speculator in described] or [""] * len(names)
        return [
            generation_pb2.SpeculatorState(
                name=name,
                drafter=drafter,
                ready=service.description is not None,
                answered=service.counters.answered,
                missed=service.counters.missed,
                failed=service.failures[speculator],
            )
            for speculator, name, drafter in zip(numbers, names, drafters, strict=True)
        ]

    def _decode(self, message: generation_pb2.GenerateRequest) -> GenerationRequest:
        if len(message.request_id) > MAX_REQUEST_ID:
            raise InvalidInputError(
                "request_id", message.request_id, f"longer than {MAX_REQUEST_ID} characters"
            )
        if message.speculation not in (0, *Speculation):
            raise InvalidInputError("speculation", message.speculation, "unknown")
        eos = () if message.ignore_eos else self._target.eos_token_ids
        limit = message.max_new_tokens if message.HasField("max_new_tokens") else DEFAULT_MAX_NEW_TOKENS
        request = GenerationRequest(
            request_id=message.request_id or secrets.token_hex(8),
            prompt=tuple(self._prompt(message)),
            max_new_tokens=limit,
            sampling=decode_sampling(message.sampling, default_seed=secrets.randbits(63)),
            stop_strings=tuple(message.stop_strings),
            stop_token_ids=frozenset([*message.stop_token_ids, *eos]),
            priority=message.priority,
            speculation=Speculation(message.speculation or Speculation.TREE),
            logprobs=message.logprobs,
        )
        request.check_against(self._target.vocab_size, self._target.max_context_len)
        return request

    def _prompt(self, message: generation_pb2.GenerateRequest) -> list[int]:
        match message.WhichOneof("prompt"):
            case "text":
                return self._tokenizer.encode(message.text)
            case "chat":
                messages = [{"role": m.role, "content": m.content} for m in message.chat.messages]
                if not messages:
                    raise InvalidInputError("chat.messages", [], "must not be empty")
                return self._tokenizer.encode_chat(messages)
            case "tokens":
                return list(message.tokens.ids)
        raise InvalidInputError("prompt", None, "one of text, chat and tokens is needed")

    def _summary(self, state: RequestState) -> generation_pb2.Summary:
        assert state.finish is not None
        end = state.finished_at or state.queued_at
        return generation_pb2.Summary(
            finish_reason=int(state.finish),  # type: ignore[arg-type]  # the enums share their numbers
            prompt_tokens=len(state.request.prompt),
            new_tokens=state.new_tokens,
            stats=self._stats(state.stats),
            ttft_seconds=(state.first_token_at or end) - state.queued_at,
            total_seconds=end - state.queued_at,
            queue_seconds=(state.admitted_at or end) - state.queued_at,
            seed=state.request.sampling.seed,
        )

    def _stats(self, stats: SpeculationStats) -> generation_pb2.SpeculationStats:
        names = self._loop.pool.names
        return generation_pb2.SpeculationStats(
            steps=stats.steps,
            drafted=stats.drafted,
            accepted=stats.accepted,
            acceptance_histogram=stats.histogram,
            speculators=[
                generation_pb2.SpeculatorStats(
                    name=names[index], drafted=c.drafted, accepted=c.accepted, wins=c.wins
                )
                for index, c in sorted(stats.speculators.items())
            ],
        )
