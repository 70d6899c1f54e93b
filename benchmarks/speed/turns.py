"""Measure tokens per second through the services, alternating the modes.

The machine's speed drifts by a fifth within seconds. So modes alternate over parts of the prompts, and a mode is
compared with plain decoding on the same parts.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks.load import Load, generate_all, sustained
from benchmarks.prompts import EvaluationPrompt
from specinfer.client import Answer, AsyncClient, acceptance_length
from specinfer.v1 import generation_pb2

TURNS = 5
FIRST_TOKENS = 24
"""Number of first tokens of a batch that are not timed."""


@dataclass(slots=True)
class Tally:
    """Total time and tokens of requests that run one after another."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    accepted: int = 0

    def add(self, answer: Answer) -> None:
        """Add a request; its time includes reading the prompt."""
        self.seconds += answer.ttft_s + answer.tpot_s * (len(answer.token_ids) - 1)
        self.tokens += len(answer.token_ids)
        self.steps += answer.summary.stats.steps
        self.accepted += answer.summary.stats.accepted


@dataclass(slots=True)
class Measured:
    """Results of one mode at one batch size."""

    rates: list[float] = field(default_factory=list)
    """Tokens per second of each turn while the batch was full."""
    by_source: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))

    @property
    def acceptance_length(self) -> float:
        """Tokens per step."""
        tallies = self.by_source.values()
        return acceptance_length(sum(t.steps for t in tallies), sum(t.accepted for t in tallies))


def part_of(
    prompts: Sequence[EvaluationPrompt], turn: int, batch: int, turns: int = TURNS
) -> list[EvaluationPrompt]:
    """Return the prompts of a turn.

    A turn has 1 / `turns` of the prompts, but at least 3 * `batch`. Sources alternate, so every turn has every source.
    """
    by_source: dict[str, list[EvaluationPrompt]] = defaultdict(list)
    for prompt in prompts:
        by_source[prompt.source].append(prompt)
    rounds = [[of[i] for of in by_source.values() if i < len(of)] for i in range(len(prompts))]
    mixed = [prompt for some in rounds for prompt in some]
    size = min(len(mixed), max(-(-len(mixed) // turns), 3 * batch))
    first = turn * len(mixed) // turns
    return [mixed[(first + i) % len(mixed)] for i in range(size)]


async def warm_up(address: str, prompts: Sequence[EvaluationPrompt], batch: int) -> None:
    """Read all prompts once, so that they are cached for every mode."""
    client = AsyncClient(address)
    try:
        tokens = [prompt.tokens for prompt in prompts]
        await generate_all(client, tokens, Load(batch, generation_pb2.SPECULATION_OFF, 1))
    finally:
        await client.close()


async def run_turn(address: str, prompts: Sequence[EvaluationPrompt], load: Load, measured: Measured) -> None:
    """Run one mode's turn; add the results to `measured`."""
    client = AsyncClient(address)
    tokens = [prompt.tokens for prompt in prompts]
    try:
        await generate_all(client, tokens[: load.batch], replace(load, new_tokens=FIRST_TOKENS))
        answers, rate = await sustained(client, tokens, load)
    finally:
        await client.close()
    measured.rates.append(rate)
    for prompt, answer in zip(prompts, answers, strict=True):
        measured.by_source[prompt.source].add(answer)
