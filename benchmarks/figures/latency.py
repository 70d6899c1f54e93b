"""Figure 7: milliseconds per token of a request through the services, by mode and batch."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, stdev
from typing import Any

from benchmarks.drafts.end_to_end import part_of
from benchmarks.drafts.prompts import EvaluationPrompt
from benchmarks.load import Load, generate_all, sustained
from specinfer.cli.local.system import LocalOptions, LocalSystem
from specinfer.client import AsyncClient, acceptance_length
from specinfer.drafters.pools import Flags
from specinfer.v1 import generation_pb2

INCREMENTAL, SEQUENCE, TREE = "incremental", "sequence", "tree"
MODES = {
    INCREMENTAL: generation_pb2.SPECULATION_OFF,
    SEQUENCE: generation_pb2.SPECULATION_SEQUENCE,
    TREE: generation_pb2.SPECULATION_TREE,
}
_FIRST_TOKENS = 8
"""Tokens of one batch, before the clock starts."""


@dataclass(slots=True)
class Turns:
    """One mode at one batch size, turn by turn."""

    latency_ms: list[float] = field(default_factory=list)
    """Per token of one of the requests that share the steps."""
    steps: int = 0
    accepted: int = 0

    def beside(self, incremental: "Turns") -> dict[str, Any]:
        """Return what is reported; gains are over incremental decoding in the same turn."""
        gains = [base / own for own, base in zip(self.latency_ms, incremental.latency_ms, strict=True)]
        return {
            "latency_ms": self.latency_ms,
            "mean_ms": mean(self.latency_ms),
            "gain": mean(gains),
            "gain_error": stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0,
            "tokens_per_step": acceptance_length(self.steps, self.accepted),
        }


@dataclass(frozen=True, slots=True)
class LatencySetup:
    """The model, the speculators and the requests."""

    model: str
    speculators: Mapping[str, Flags]
    batches: Sequence[int]
    new_tokens: int
    turns: int
    sequence_length: int


ByMode = dict[str, dict[str, Any]]


def latencies(
    setup: LatencySetup,
    prompts: Sequence[EvaluationPrompt],
    say: Callable[[str], None],
    keep: Callable[[int, ByMode], None],
) -> None:
    """Tells `keep` each batch's figures by mode as soon as they stand.

    Modes take turns, forwards and backwards, as the machine's speed drifts.
    """
    flags = {"max-batch": str(max(setup.batches)), "sequence-length": str(setup.sequence_length)}
    verifier = {"weights": "bf16"}  # of every model alike: the widened one has no blocks
    options = LocalOptions(model=setup.model, gateway=flags, verifier=verifier, speculators=setup.speculators)
    with LocalSystem(options, say) as system:
        asyncio.run(_by_batch(system.address, setup, prompts, say, keep))


async def _by_batch(
    address: str,
    setup: LatencySetup,
    prompts: Sequence[EvaluationPrompt],
    say: Callable[[str], None],
    keep: Callable[[int, ByMode], None],
) -> None:
    client = AsyncClient(address)
    try:
        say("reading prompts")
        reading = Load(max(setup.batches), generation_pb2.SPECULATION_OFF, 1)
        await generate_all(client, [prompt.tokens for prompt in prompts], reading)
        for batch in setup.batches:
            turns = {mode: Turns() for mode in MODES}
            for turn in range(setup.turns):
                say(f"batch {batch}, turn {turn + 1} of {setup.turns}")
                part = [prompt.tokens for prompt in part_of(prompts, turn, batch)]
                for mode in list(MODES)[:: -1 if turn % 2 else 1]:
                    load = Load(batch, MODES[mode], setup.new_tokens, ignore_eos=False)
                    await _turn(client, part, load, turns[mode])
            keep(batch, {mode: own.beside(turns[INCREMENTAL]) for mode, own in turns.items()})
    finally:
        await client.close()


async def _turn(client: AsyncClient, prompts: Sequence[Sequence[int]], load: Load, turns: Turns) -> None:
    await generate_all(client, prompts[: load.batch], replace(load, new_tokens=_FIRST_TOKENS))
    answers, rate = await sustained(client, prompts, load)
    turns.latency_ms.append(1000 * load.batch / rate)
    turns.steps += sum(answer.summary.stats.steps for answer in answers)
    turns.accepted += sum(answer.summary.stats.accepted for answer in answers)
