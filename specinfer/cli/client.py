"""A client of the gateway: builds requests, streams replies, measures what a user would feel."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from specinfer.errors import SpecInferError, UnavailableError
from specinfer.service.channel import open_channel
from specinfer.v1 import common_pb2, generation_pb2, generation_pb2_grpc

SPECULATION = {
    "tree": generation_pb2.SPECULATION_TREE,
    "sequence": generation_pb2.SPECULATION_SEQUENCE,
    "off": generation_pb2.SPECULATION_OFF,
}


@dataclass(slots=True)
class Answer:
    """One finished request."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    summary: generation_pb2.Summary = field(default_factory=generation_pb2.Summary)
    ttft_s: float = 0.0
    """From sending to the first token."""
    tpot_s: float = 0.0
    """Mean time per token after the first message."""

    def to_json(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        s = self.summary
        reason = generation_pb2.FinishReason.Name(s.finish_reason).removeprefix("FINISH_REASON_").lower()
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            **({"logprobs": self.logprobs} if self.logprobs else {}),
            "finish_reason": reason,
            "prompt_tokens": s.prompt_tokens,
            "new_tokens": s.new_tokens,
            "seed": s.seed,
            "seconds": s.total_seconds,
            "ttft_ms": self.ttft_s * 1000,
            "tpot_ms": self.tpot_s * 1000,
            "steps": s.stats.steps,
            "drafted": s.stats.drafted,
            "accepted": s.stats.accepted,
            "acceptance_length": acceptance_length(s.stats.steps, s.stats.accepted),
            "acceptance_histogram": list(s.stats.acceptance_histogram),
            "speculators": {
                x.name: {"drafted": x.drafted, "accepted": x.accepted, "wins": x.wins}
                for x in s.stats.speculators
            },
        }


def acceptance_length(steps: int, accepted: int) -> float:
    """Tokens per step, the bonus token included."""
    return 1 + accepted / steps if steps else 0.0


def make_request(
    prompt: str,
    *,
    chat: bool,
    max_new_tokens: int,
    temperature: float,
    speculation: str,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: list[str] | None = None,
    ignore_eos: bool = False,
    logprobs: bool = False,
) -> generation_pb2.GenerateRequest:
    """The message of a request; the gateway checks the values."""
    request = generation_pb2.GenerateRequest(
        max_new_tokens=max_new_tokens,
        sampling=common_pb2.SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p),
        stop_strings=stop or [],
        ignore_eos=ignore_eos,
        speculation=SPECULATION[speculation],
        logprobs=logprobs,
    )
    if seed is not None:
        request.sampling.seed = seed
    if chat:
        request.chat.messages.add(role="user", content=prompt)
    else:
        request.text = prompt
    return request


class GatewayClient:
    """Talks to one gateway."""

    def __init__(self, address: str) -> None:
        self._address, self._channel = address, open_channel(address)
        self._stub = generation_pb2_grpc.GenerationStub(self._channel)  # type: ignore[no-untyped-call]

    async def generate(
        self, request: generation_pb2.GenerateRequest, on_text: Callable[[str], None] = lambda _: None
    ) -> Answer:
        """Streams one request to its end.

        Raises:
            RequestFailedError: with the gateway's status.
        """
        answer = Answer()
        started = time.perf_counter()
        first_count = 0
        last = started
        try:
            async for reply in self._stub.Generate(request):
                if reply.token_ids:
                    last = time.perf_counter()
                    if not answer.token_ids:
                        answer.ttft_s, first_count = last - started, len(reply.token_ids)
                answer.token_ids.extend(reply.token_ids)
                answer.logprobs.extend(reply.logprobs)
                answer.text += reply.text
                if reply.text:
                    on_text(reply.text)
                if reply.HasField("summary"):
                    answer.summary = reply.summary
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error
        later = len(answer.token_ids) - first_count
        answer.tpot_s = (last - started - answer.ttft_s) / later if later else 0.0
        return answer

    async def status(self) -> generation_pb2.StatusReply:
        """The state of the system."""
        try:
            reply: generation_pb2.StatusReply = await self._stub.Status(
                generation_pb2.StatusRequest(), timeout=5.0
            )
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error
        return reply

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    def _failure(self, error: grpc.aio.AioRpcError) -> SpecInferError:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(f"gateway at {self._address}: {error.details()}")
        return RequestFailedError(error)


class RequestFailedError(SpecInferError):
    """The gateway refused a request."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{error.details()} ({error.code().name})")
        self.bad_input = error.code() in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.ALREADY_EXISTS,
            grpc.StatusCode.NOT_FOUND,
        )


async def get_status(address: str) -> generation_pb2.StatusReply:
    """The state of the system behind a gateway."""
    client = GatewayClient(address)
    try:
        return await client.status()
    finally:
        await client.close()
