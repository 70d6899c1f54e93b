"""Run the prompts of `specinfer bench`, and summarise the measurements."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

from specinfer.request.answer import Answer, add_up, stats_to_json
from specinfer.request.fields import RequestFields
from specinfer.request.stream import Generator
from specinfer.system.turns import alternate, ratios, standard_error

MODES = {"incremental": "off", "sequence": "sequence", "tree": "tree"}
Advance = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Parameters of a benchmark."""

    prompts: tuple[str, ...]
    modes: tuple[str, ...]
    batches: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int = 0
    chat: bool = True
    """True: prompts are user turns; base models have no template."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """Results of one mode at one batch size."""

    mode: str
    batch: int
    prompts: int
    new_tokens: int
    seconds: float
    turns: int
    """Number of parts of the prompts; every mode runs each part."""
    tokens_per_second: float
    tokens_per_second_error: float | None
    """Standard error over the turns; None for one turn."""
    speedup: float | None
    """Tokens per second relative to incremental decoding; None if not measured."""
    speedup_error: float | None
    """Standard error of `speedup` over the turns; None for one turn."""
    steps: int
    """Number of target passes, summed over requests."""
    acceptance_length: float
    """Tokens per step, with the bonus token."""
    acceptance_rate: float
    """Accepted nodes divided by verified nodes, without roots and bonus tokens."""
    identical_to_incremental: bool | None
    """True if all tokens equal those of incremental decoding.

    Sampled answers may differ if drafts are sampled, too.
    """
    identical_token_share: float | None
    """Share of tokens that come before their answer's first difference."""
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    speculators: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Turn:
    """Outcome of one mode on a part of the prompts."""

    answers: list[Answer]
    seconds: float

    @property
    def new_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.new_tokens / self.seconds


async def run_bench(client: Generator, plan: BenchPlan, advance: Advance) -> list[BenchRun]:
    """Run all modes and batch sizes; call `advance(label)` after each prompt.

    The machine's speed drifts, so the modes alternate over parts of the prompts, in reverse order every second
    time. Each turn is compared with incremental decoding on the same part.
    """
    await warm_up(client, plan)
    reports = []
    for batch in plan.batches:
        turns = await take_turns(client, plan, batch, advance)
        plain = turns.get("incremental")
        reports += [summarise(mode, batch, of_mode, plain) for mode, of_mode in turns.items()]
    return reports


async def warm_up(client: Generator, plan: BenchPlan) -> None:
    """Generate one answer that is not measured."""
    await _answer(client, plan, plan.prompts[0], "tree")


async def take_turns(
    client: Generator, plan: BenchPlan, batch: int, advance: Advance
) -> dict[str, list[Turn]]:
    """Return every mode's turns over the parts of the prompts, in order."""
    modes = sorted(plan.modes, key=list(MODES).index)
    turns: dict[str, list[Turn]] = {mode: [] for mode in modes}
    reading = replace(plan, max_new_tokens=1)
    for number, prompts in enumerate(parts(plan.prompts, batch)):
        # not measured: puts the prompts into the verifier's cache, so that all modes find them there
        await _take_turn(client, reading, prompts, "incremental", batch, lambda _: None)
        for mode in alternate(modes, number):
            turns[mode].append(await _take_turn(client, plan, prompts, mode, batch, advance))
    return turns


def parts(prompts: Sequence[str], batch: int) -> list[Sequence[str]]:
    """Return the prompts of each turn: one prompt at batch 1.

    Otherwise a turn has 3 * `batch` prompts, so that the batch is full most of the time, or fewer prompts for five
    turns, but at least `batch`.
    """
    size = 1 if batch == 1 else max(batch, min(3 * batch, len(prompts) // 5))
    batches = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    if len(batches) > 1 and len(batches[-1]) < batch:
        batches[-2:] = [[*batches[-2], *batches[-1]]]
    return batches


async def _take_turn(
    client: Generator, plan: BenchPlan, prompts: Sequence[str], mode: str, batch: int, advance: Advance
) -> Turn:
    """Run `prompts` in one mode, `batch` prompts at a time."""
    slots = asyncio.Semaphore(batch)

    async def one(prompt: str) -> Answer:
        async with slots:
            answer = await _answer(client, plan, prompt, MODES[mode])
        advance(f"{mode}, batch {batch}")
        return answer

    started = perf_counter()
    answers = list(await asyncio.gather(*(one(prompt) for prompt in prompts)))
    return Turn(answers, perf_counter() - started)


async def _answer(client: Generator, plan: BenchPlan, prompt: str, speculation: str) -> Answer:
    request = RequestFields(
        chat=plan.chat,
        max_new_tokens=plan.max_new_tokens,
        temperature=plan.temperature,
        speculation=speculation,
        seed=plan.seed,
        ignore_eos=True,
    )
    async with client.ask(prompt, request) as stream:
        return await stream.read()


def summarise(mode: str, batch: int, turns: Sequence[Turn], plain: Sequence[Turn] | None) -> BenchRun:
    """Summarise a mode's turns, and compare them with plain decoding's turns."""
    answers = [answer for turn in turns for answer in turn.answers]
    seconds = sum(turn.seconds for turn in turns)
    new_tokens = sum(turn.new_tokens for turn in turns)
    stats = add_up([answer.stats for answer in answers])
    same = speedups = speedup = None
    if plain is not None:
        plain_answers = [answer for turn in plain for answer in turn.answers]
        same = sum(_common_prefix(a, b) for a, b in zip(answers, plain_answers, strict=True))
        speedups = ratios([turn.rate for turn in turns], [turn.rate for turn in plain])
        speedup = new_tokens / seconds * sum(t.seconds for t in plain) / sum(t.new_tokens for t in plain)
    return BenchRun(
        mode=mode,
        batch=batch,
        prompts=len(answers),
        new_tokens=new_tokens,
        seconds=seconds,
        turns=len(turns),
        tokens_per_second=new_tokens / seconds,
        tokens_per_second_error=standard_error([turn.rate for turn in turns]),
        speedup=speedup,
        speedup_error=None if speedups is None else standard_error(speedups),
        steps=stats.steps,
        acceptance_length=stats.acceptance_length,
        acceptance_rate=stats.accepted / stats.drafted if stats.drafted else 0.0,
        identical_to_incremental=None if same is None else same == new_tokens,
        identical_token_share=None if same is None else same / new_tokens,
        ttft_ms=_percentiles([a.ttft_s for a in answers]),
        tpot_ms=_percentiles([a.tpot_s for a in answers]),
        speculators=stats_to_json(stats)["speculators"],
    )


def _common_prefix(a: Answer, b: Answer) -> int:
    pairs = zip(a.token_ids, b.token_ids, strict=False)
    different = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
    return min(len(a.token_ids), len(b.token_ids)) if different is None else different


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    values = [1000 * s for s in seconds]
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}


def write_runs(path: Path, runs: Sequence[BenchRun], about: dict[str, Any]) -> None:
    """Write the result file: origin and runs, as JSON."""
    path.write_text(json.dumps({"about": about, "runs": [asdict(run) for run in runs]}, indent=2) + "\n")
