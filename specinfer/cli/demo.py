"""`specinfer demo`: stream answers, and compare token trees with plain decoding.

The modes alternate, answer by answer, so that a drift of the machine's speed affects both. Figures are medians, since
a shared machine may pause during any answer.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, NamedTuple

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from specinfer.cli.chat.marked import legend, print_marked
from specinfer.cli.connection import API_KEY_VARIABLE, Connection
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.running import local_system, pull
from specinfer.cli.options.shared import DraftFlag
from specinfer.cli.show import output, progress_bar
from specinfer.client import Answer, AsyncClient, add_up
from specinfer.hub import DEFAULT_MODEL
from specinfer.hub.registry import known_models
from specinfer.hub.resolve import is_pulled
from specinfer.options.model_options import AUTO_DRAFT, DEFAULT_RULE, Acceptance, Dtype
from specinfer.request.fields import RequestFields
from specinfer.system.cache_directory import cache_directory
from specinfer.system.machine import available_memory
from specinfer.system.turns import alternate, quartiles, ratios

_FILE = """\
def total_price(items, discount):
    total = 0
    for item in items:
        total += item.price * item.count
    if discount:
        total -= total * discount / 100
    return round(total, 2)
"""
PROMPTS = {
    "chat": "Explain to a child in about a hundred words how a rainbow forms.",
    "code": "Write a Python function that returns the n-th Fibonacci number, and show how to call it.",
    "edit": f"Add a docstring and type hints to this function. Give only the whole function.\n\n{_FILE}",
}
"""A prompt of each kind. Sources differ in what they guess well."""
PLAIN, TREES = "plain decoding", "token trees"
MODES = {PLAIN: "off", TREES: "tree"}
PAIR = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
"""Registry names of target and draft, chosen if memory and disk suffice."""
_MEMORY_PER_BYTE, _MEMORY_BESIDES = 1.5, 2.5e9
"""Required memory: a multiple of the model files' bytes, plus a constant."""
_DISK_BESIDES = 1.5e9
"""Disk bytes needed in addition to the model files, during a download."""
ROUNDS = 3
"""Number of answers to each prompt in each mode."""


@dataclass(frozen=True, slots=True)
class DemoRun:
    """Answers of one mode, in the order of their generation."""

    mode: str
    answers: Sequence[Answer]

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each answer; reading the prompt does not count."""
        return [
            1 / answer.tpot_s if answer.tpot_s else len(answer.token_ids) / answer.ttft_s
            for answer in self.answers
        ]

    def of_prompt(self, number: int) -> "DemoRun":
        """Return the answers to one prompt of `PROMPTS`."""
        return DemoRun(self.mode, self.answers[number :: len(PROMPTS)])


class DemoModels(NamedTuple):
    model: str
    draft: str
    why: str


def choose(memory: int, disk: int) -> DemoModels:
    """Return `PAIR` if memory and disk suffice, else the default model.

    Args:
        memory: bytes of available memory.
        disk: free bytes on the disk of the model cache.
    """
    known = known_models()
    sizes = {name: known[name].megabytes * 10**6 for name in PAIR}
    size = sum([sizes[name] for name in PAIR if not is_pulled(name)])
    memory_needed = _MEMORY_PER_BYTE * sum(sizes.values()) + _MEMORY_BESIDES
    disk_needed = size + _DISK_BESIDES
    if memory < memory_needed:
        return _small(f"{memory_needed / 1e9:.0f} GB of memory are needed, {memory / 1e9:.1f} are available")
    if disk < disk_needed:
        return _small(f"{disk_needed / 1e9:.1f} GB of disk are needed, {disk / 1e9:.1f} are free")
    loads = f"{size / 1e9:.1f} GB to download once" if size else "both in the cache"
    return DemoModels(
        *PAIR, f"{PAIR[0]} with the draft {PAIR[1]} ({loads}; `--model {DEFAULT_MODEL}`: a small one)"
    )


def _small(reason: str) -> DemoModels:
    return DemoModels(DEFAULT_MODEL, AUTO_DRAFT, f"{DEFAULT_MODEL}: for {PAIR[0]} with its draft {reason}")


async def stream_answers(client: AsyncClient, max_new_tokens: int) -> None:
    """Stream an answer to every prompt to standard output."""
    output.print(legend(await client.status()))
    for kind, prompt in PROMPTS.items():
        output.print()
        heading = f"A prompt for {kind}: {prompt}"
        output.print(heading, style="bold", markup=False, highlight=False)
        answer = await print_marked(client, prompt, RequestFields(max_new_tokens=max_new_tokens))
        output.print(cost(answer), style="dim", highlight=False)


def cost(answer: Answer) -> str:
    """Describe an answer's tokens, steps and accepted drafts."""
    stats = answer.summary.stats
    guessed = ", ".join(
        [
            f"{speculator.accepted} guessed by {speculator.name}"
            for speculator in stats.speculators
            if speculator.accepted
        ]
    )
    text = f"{len(answer.token_ids)} tokens in {stats.steps} steps"
    return f"({text}: {guessed})" if guessed else f"({text})"


async def compare_modes(
    client: AsyncClient, max_new_tokens: int, advance: Callable[[str], None]
) -> list[DemoRun]:
    """Answer every prompt in every mode, alternating the modes."""
    by_mode: dict[str, list[Answer]] = {mode: [] for mode in MODES}
    for turn in range(ROUNDS):
        for prompt in PROMPTS.values():
            for mode in alternate(MODES, turn):
                answer = await client.generate(
                    prompt, max_new_tokens=max_new_tokens, speculation=MODES[mode], ignore_eos=True
                )
                by_mode[mode].append(answer)
                advance(mode)
    return [DemoRun(mode, answers) for mode, answers in by_mode.items()]


def print_comparison(runs: Sequence[DemoRun], title: str) -> None:
    """Print a table of the kinds of prompts, and a conclusion."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(title, overflow="fold")
    for name in ("tokens/s", "speed-up", "tokens a step"):
        table.add_column(name, justify="right")
    table.add_column("guessed by")
    for number, kind in enumerate(PROMPTS):
        table.add_row(kind, *_figures([run.of_prompt(number) for run in runs]))
    table.add_row("all", *_figures(runs))
    output.print()
    output.print(table)
    output.print(sentence(runs), markup=False, highlight=False)


def _figures(runs: Sequence[DemoRun]) -> list[str]:
    """Return the cells of a row: rates, speed-up, tokens a step, the share of each source."""
    plain, trees = runs
    stats = add_up([answer.stats for answer in trees.answers])
    tokens = sum(len(answer.token_ids) for answer in trees.answers)
    guessed = [f"{s.name} {s.accepted / tokens:.0%}" for s in stats.speculators if s.accepted]
    rates = " → ".join([f"{median(run.rates):.0f}" for run in runs])
    return [rates, f"{speedup(trees, plain):.2f}x", f"{stats.acceptance_length:.2f}", ", ".join(guessed)]


def speedup(run: DemoRun, plain: DemoRun) -> float:
    """Return a mode's median speed-up over plain decoding."""
    return median(ratios(run.rates, plain.rates))


def sentence(runs: Sequence[DemoRun]) -> str:
    """Return the comparison's conclusion."""
    plain, trees = runs
    low, _, high = quartiles(ratios(trees.rates, plain.rates))
    same = all(a.token_ids == b.token_ids for a, b in zip(trees.answers, plain.answers, strict=True))
    text = "the same text" if same else "text that differs: please report this"
    return (
        f"Token trees gave {speedup(trees, plain):.2f} times the speed of plain decoding (half of the answers "
        f"between {low:.2f} and {high:.2f} times), with {text}."
    )


def demo(
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 96,
    model: Annotated[
        str | None,
        typer.Option(
            help="Registry name, hub id, directory or GGUF file. Not given: a larger model with a draft if memory "
            "and disk suffice, else the default model."
        ),
    ] = None,
    draft: DraftFlag = None,
    acceptance: Acceptance = DEFAULT_RULE,
    dtype: Dtype = "bfloat16",
) -> None:
    """Start a system, stream answers, compare trees with plain decoding, and stop."""
    if model is None:
        model, suitable, reason = choose(available_memory(), _free_disk())
        draft = draft or suitable
        output.print(reason, markup=False, highlight=False)
    draft = draft or AUTO_DRAFT
    for name in (model, draft):
        if name in known_models():
            pull(name)
    verifier = {"acceptance": acceptance}
    options = LocalOptions(model=model, dtype=dtype, verifier=verifier, speculators={}, draft=draft)
    with local_system(options) as system:
        runs = asyncio.run(_run(Connection(system.address, os.environ.get(API_KEY_VARIABLE)), max_new_tokens))
    print_comparison(runs, model)


def _free_disk() -> int:
    """Return the free bytes on the disk of the model cache."""
    folder = cache_directory()
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free


async def _run(connection: Connection, max_new_tokens: int) -> list[DemoRun]:
    async with connection.client() as client:
        await stream_answers(client, max_new_tokens)
        with progress_bar() as bar:
            task = bar.add_task("comparing", total=len(MODES) * ROUNDS * len(PROMPTS))
            return await compare_modes(
                client, max_new_tokens, lambda mode: bar.update(task, advance=1, description=mode)
            )
