"""A verifier without a model: every pass takes the same time, every token follows from its position.

    python -m benchmarks.serving.fixed_verifier LISTEN MODEL STEP_MS STEPS_FILE

Into the file goes a line per step (`benchmarks.serving.steps`). The time between an answer and the next
message is all that the gateway and the way there and back add to a pass, however exactly this process
waits.
"""

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

from benchmarks.serving.steps import FixedStep
from specinfer.hub import resolve_model
from specinfer.outcomes import EntryStatus
from specinfer.service.server import ServiceServer, run_until_signalled
from specinfer.service.settings import ServiceSettings
from specinfer.tokenizer import Tokenizer
from specinfer.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc

_MAX_REQUESTS = 4096
_FIRST_TOKEN, _TOKENS = 32, 64
"""Tokens that are answered: ordinary ones of any vocabulary."""


class FixedVerifier(verifier_pb2_grpc.VerifierServicer):
    """Serves `specinfer.v1.Verifier`; accepts no drafts."""

    def __init__(self, tokenizer: Tokenizer, step_s: float, steps: TextIO) -> None:
        self._step_s, self._steps, self._held = step_s, steps, dict[str, int]()
        self._description = _description(tokenizer, step_s)

    async def Verify(
        self, requests: AsyncIterator[verifier_pb2.VerifyRequest], context: Any
    ) -> AsyncIterator[verifier_pb2.VerifyReply]:
        """One pass per message."""
        answered = 0.0
        async for request in requests:
            arrived = time.perf_counter()
            gap_s = arrived - answered if answered else 0.0
            reply = self._reply(request)
            await asyncio.sleep(self._step_s - (time.perf_counter() - arrived))
            answered = time.perf_counter()
            reply.compute_us = round(1e6 * (answered - arrived))
            yield reply
            plain = all(len(entry.delta_token_ids) == 1 for entry in request.entries)
            self._steps.write(
                FixedStep(arrived, len(request.entries), answered - arrived, gap_s, plain).line()
            )

    async def Describe(
        self, request: verifier_pb2.DescribeVerifierRequest, context: Any
    ) -> verifier_pb2.DescribeVerifierReply:
        """A model with a very large cache."""
        return self._description

    async def Release(self, request: common_pb2.ReleaseRequest, context: Any) -> common_pb2.ReleaseReply:
        """Forgets requests."""
        known = [self._held.pop(request_id, None) for request_id in request.request_ids]
        return common_pb2.ReleaseReply(released=sum(length is not None for length in known))

    def _reply(self, request: verifier_pb2.VerifyRequest) -> verifier_pb2.VerifyReply:
        return verifier_pb2.VerifyReply(
            step_id=request.step_id,
            entries=[self._verdict(entry) for entry in request.entries],
            instance_id=self._description.instance_id,
            model_fingerprint=self._description.model_fingerprint,
        )

    def _verdict(self, entry: verifier_pb2.VerifyEntry) -> verifier_pb2.Verdict:
        held = self._held.get(entry.request_id, 0) if entry.base_len else 0
        if held != entry.base_len:
            return verifier_pb2.Verdict(
                request_id=entry.request_id, status=common_pb2.ENTRY_STATUS_RESYNC, held_len=held
            )
        held += len(entry.delta_token_ids)
        self._held[entry.request_id] = held
        return verifier_pb2.Verdict(
            request_id=entry.request_id,
            status=int(EntryStatus.OK),  # type: ignore[arg-type]  # the enums share their numbers
            bonus_token_id=_FIRST_TOKEN + held % _TOKENS if entry.HasField("tree") else 0,
            held_len=held,
        )


def _description(tokenizer: Tokenizer, step_s: float) -> verifier_pb2.DescribeVerifierReply:
    return verifier_pb2.DescribeVerifierReply(
        model="fixed",
        vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        max_context_len=1 << 20,
        max_requests=_MAX_REQUESTS,
        max_nodes=64,
        max_step_tokens=1 << 20,
        kv_capacity_tokens=1 << 30,
        kv_block_tokens=16,
        pass_costs=[verifier_pb2.PassCost(tokens=n, microseconds=round(1e6 * step_s)) for n in (1, 1024)],
        instance_id=secrets.token_hex(8),
        model_fingerprint="fixed",
        text_fingerprint=tokenizer.text_fingerprint(),
    )


async def _serve(listen: str, model: str, step_ms: float, steps: Path) -> None:
    tokenizer = Tokenizer.load(resolve_model(model))
    server = ServiceServer(ServiceSettings(listen=listen, drain_seconds=0.2), ["specinfer.v1.Verifier"])
    with steps.open("w", buffering=1) as out:
        servicer = FixedVerifier(tokenizer, step_ms / 1000, out)
        verifier_pb2_grpc.add_VerifierServicer_to_server(servicer, server.grpc)  # type: ignore[no-untyped-call]
        await run_until_signalled(server)


if __name__ == "__main__":
    listen, model, step_ms, steps = sys.argv[1:]
    asyncio.run(_serve(listen, model, float(step_ms), Path(steps)))
