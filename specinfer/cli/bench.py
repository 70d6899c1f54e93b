"""`specinfer bench`: runs prompts through the real services and reports what was measured."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

from specinfer.cli.client import Answer, GatewayClient, acceptance_length, make_request

MODES = {"incremental": "off", "sequence": "sequence", "tree": "tree"}
Advance = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to run."""

    prompts: tuple[str, ...]
    modes: tuple[str, ...]
    batches: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int = 0
    chat: bool = True
    """Whether prompts are user turns; a base model has no template for them."""


@dataclass(frozen=True, slots=True)
class Run:
    """One mode at one batch size."""

    mode: str
    batch: int
    prompts: int
    new_tokens: int
    seconds: float
    tokens_per_second: float
    steps: int
    """Target passes, summed over requests."""
    acceptance_length: float
    """Tokens per step, bonus included."""
    acceptance_rate: float
    """Accepted over drafted, bonus excluded."""
    identical_to_incremental: bool | None
    """Every token equals that of incremental decoding at the same batch size. What is sampled need not, where
    drafts are drawn."""
    identical_token_share: float | None
    """Share of tokens before the first difference, over all prompts."""
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    speculators: dict[str, dict[str, int]]


async def run_bench(address: str, plan: BenchPlan, advance: Advance) -> list[Run]:
    """Runs every mode at every batch size; `advance(label)` is called after each prompt."""
    client = GatewayClient(address)
    runs: list[Run] = []
    try:
        await _answer(client, plan, plan.prompts[0], "tree")  # warm-up, not measured
        for batch in plan.batches:
            plain: list[Answer] | None = None
            for mode in sorted(plan.modes, key=list(MODES).index):
                label = f"{mode}, batch {batch}"
                started = perf_counter()
                answers = await _run_mode(client, plan, mode, batch, lambda label=label: advance(label))  # type: ignore[misc]
                seconds = perf_counter() - started
                plain = answers if mode == "incremental" else plain
                runs.append(summarise(mode, batch, answers, seconds, plain))
    finally:
        await client.close()
    return runs


async def _run_mode(
    client: GatewayClient, plan: BenchPlan, mode: str, batch: int, done: Callable[[], None]
) -> list[Answer]:
    """All prompts, `batch` of them at a time."""
    slots = asyncio.Semaphore(batch)

    async def one(prompt: str) -> Answer:
        async with slots:
            answer = await _answer(client, plan, prompt, MODES[mode])
        done()
        return answer

    return list(await asyncio.gather(*(one(prompt) for prompt in plan.prompts)))


async def _answer(client: GatewayClient, plan: BenchPlan, prompt: str, speculation: str) -> Answer:
    request = make_request(
        prompt,
        chat=plan.chat,
        max_new_tokens=plan.max_new_tokens,
        temperature=plan.temperature,
        speculation=speculation,
        seed=plan.seed,
        ignore_eos=True,
    )
    return await client.generate(request)


def summarise(
    mode: str, batch: int, answers: Sequence[Answer], seconds: float, plain: Sequence[Answer] | None
) -> Run:
    """One row of the result."""
    new_tokens = sum(len(a.token_ids) for a in answers)
    steps = sum(a.summary.stats.steps for a in answers)
    drafted = sum(a.summary.stats.drafted for a in answers)
    accepted = sum(a.summary.stats.accepted for a in answers)
    same = None if plain is None else [_common_prefix(a, b) for a, b in zip(answers, plain, strict=True)]
    return Run(
        mode=mode,
        batch=batch,
        prompts=len(answers),
        new_tokens=new_tokens,
        seconds=seconds,
        tokens_per_second=new_tokens / seconds,
        steps=steps,
        acceptance_length=acceptance_length(steps, accepted),
        acceptance_rate=accepted / drafted if drafted else 0.0,
        identical_to_incremental=None if same is None else sum(same) == new_tokens,
        identical_token_share=None if same is None else sum(same) / new_tokens,
        ttft_ms=_percentiles([a.ttft_s for a in answers]),
        tpot_ms=_percentiles([a.tpot_s for a in answers]),
        speculators=_by_speculator(answers),
    )


def _common_prefix(a: Answer, b: Answer) -> int:
    pairs = zip(a.token_ids, b.token_ids, strict=False)
    different = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
    return min(len(a.token_ids), len(b.token_ids)) if different is None else different


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    values = [1000 * s for s in seconds]
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}


def _by_speculator(answers: Sequence[Answer]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for answer in answers:
        for s in answer.summary.stats.speculators:
            row = total.setdefault(s.name, {"drafted": 0, "accepted": 0, "wins": 0})
            row["drafted"] += s.drafted
            row["accepted"] += s.accepted
            row["wins"] += s.wins
    return total


def write_runs(path: Path, runs: Sequence[Run], about: dict[str, Any]) -> None:
    """Writes the result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": about, "runs": [asdict(run) for run in runs]}, indent=2) + "\n")
