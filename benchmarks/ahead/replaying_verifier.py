"""A verifier that knows what its target says to some prompts, and says so after a fixed time.

    python -m benchmarks.ahead.replaying_verifier LISTEN[,LISTEN] TEXTS PASS_MS_FILE

TEXTS is a file of JSON: pairs of prompt and greedy continuation by the real target. A pass sleeps, as if it ran on a
device of its own, so that the processor is the speculators'. The file is read before every pass: milliseconds of a
pass, then, if there is a second number, those of each of its requests. At several addresses there are as many batches
of requests, which share the device: one pass at a time.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving.fixed_verifier import FixedVerifier
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.outcomes import EntryStatus
from specinfer.service.server import ServiceServer, run_until_signalled
from specinfer.service.settings import ServiceSettings
from specinfer.tokenizer import Tokenizer
from specinfer.v1 import common_pb2, tree_pb2, verifier_pb2, verifier_pb2_grpc

Texts = Sequence[tuple[Sequence[int], Sequence[int]]]


class ReplayingVerifier(FixedVerifier):
    """Accepts what its texts say."""

    def __init__(self, tokenizer: Tokenizer, texts: Texts, pass_ms: Path, device: asyncio.Lock) -> None:
        super().__init__(tokenizer, _seconds(pass_ms), sys.stderr)
        self._device = device
        self._texts: Mapping[tuple[int, ...], Sequence[int]] = {tuple(prompt): text for prompt, text in texts}
        self._contexts: dict[str, list[int]] = {}
        self._pass_ms = pass_ms

    async def Verify(
        self, requests: AsyncIterator[verifier_pb2.VerifyRequest], context: Any
    ) -> AsyncIterator[verifier_pb2.VerifyReply]:
        """One pass per message."""
        async for request in requests:
            async with self._device:
                began = time.perf_counter()
                reply = self._reply(request)
                seconds = _seconds(self._pass_ms, len(request.entries))
                await asyncio.sleep(seconds - (time.perf_counter() - began))
                reply.compute_us = round(1e6 * (time.perf_counter() - began))
            yield reply

    async def Release(self, request: common_pb2.ReleaseRequest, context: Any) -> common_pb2.ReleaseReply:
        """Forgets requests."""
        known = [self._contexts.pop(request_id, None) for request_id in request.request_ids]
        return common_pb2.ReleaseReply(released=sum(tokens is not None for tokens in known))

    def _verdict(self, entry: verifier_pb2.VerifyEntry) -> verifier_pb2.Verdict:
        held = self._contexts.setdefault(entry.request_id, []) if entry.base_len else []
        if len(held) != entry.base_len:
            status = common_pb2.ENTRY_STATUS_RESYNC
            return verifier_pb2.Verdict(request_id=entry.request_id, status=status, held_len=len(held))
        self._contexts[entry.request_id] = held
        held += entry.delta_token_ids
        accepted, bonus = self._accepted(held, entry.tree) if entry.HasField("tree") else ([], 0)
        held += [entry.tree.token_ids[node] for node in accepted]
        return verifier_pb2.Verdict(
            request_id=entry.request_id,
            status=int(EntryStatus.OK),  # type: ignore[arg-type]  # the enums share their numbers
            accepted_nodes=accepted,
            bonus_token_id=bonus,
            held_len=len(held),
        )

    def _accepted(self, context: Sequence[int], tree: tree_pb2.TokenTree) -> tuple[list[int], int]:
        """The nodes that the text goes along, and its token behind them."""
        rest = iter(self._rest_of(context))
        nodes = list[int]()
        token = next(rest)
        for node, parent in enumerate(tree.parents):  # parents come first, siblings differ
            if parent == (nodes[-1] if nodes else 0) and node and tree.token_ids[node] == token:
                nodes.append(node)
                token = next(rest)
        return nodes, token

    def _rest_of(self, context: Sequence[int]) -> Sequence[int]:
        for prompt, text in self._texts.items():
            if tuple(context[: len(prompt)]) == prompt:
                return text[len(context) - len(prompt) :]
        raise ValueError("a prompt without a text")


def _seconds(pass_ms: Path, requests: int = 0) -> float:
    whole, *each = map(float, pass_ms.read_text().split())
    return (whole + requests * sum(each)) / 1000


async def _serve(addresses: Sequence[str], texts: Texts, pass_ms: Path) -> None:
    tokenizer, device = Tokenizer.load(resolve_model(DEFAULT_MODEL)), asyncio.Lock()
    servers = list[ServiceServer]()
    for listen in addresses:
        server = ServiceServer(ServiceSettings(listen=listen, drain_seconds=0.2), ["specinfer.v1.Verifier"])
        servicer = ReplayingVerifier(tokenizer, texts, pass_ms, device)
        verifier_pb2_grpc.add_VerifierServicer_to_server(servicer, server.grpc)  # type: ignore[no-untyped-call]
        servers.append(server)
    first, *others = servers
    for server in others:
        await server.start()
    await run_until_signalled(first)


if __name__ == "__main__":
    listen, texts, pass_ms = sys.argv[1:]
    asyncio.run(_serve(listen.split(","), json.loads(Path(texts).read_text()), Path(pass_ms)))
