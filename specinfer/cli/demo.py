"""`specinfer demo`: answers streamed by the whole system, and what token trees gain on this machine.

Trees drafted by an independent service and trees drafted in the verifier's process are each compared with plain
decoding. The modes take turns, answer by answer, so that drift of the machine meets all alike; figures are
medians, since a pause of a shared machine may fall into any one answer.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from specinfer.cli.connection import API_KEY_VARIABLE, Connection
from specinfer.cli.local.running import local_system, pull
from specinfer.cli.local.system import LocalOptions
from specinfer.cli.options.choices import DtypeChoice
from specinfer.cli.options.shared import Dtype, Model
from specinfer.cli.show import output, progress_bar
from specinfer.client import Answer, AsyncClient, acceptance_length
from specinfer.drafters.draft import AUTO_DRAFT, default_services
from specinfer.hub import DEFAULT_MODEL
from specinfer.hub.registry import known_models

PROMPTS = (
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number, and show how to call it.",
    "Repeat this twice, then summarise it: The cat sat on the mat. The dog saw the cat and left the mat.",
)
PLAIN, SERVICE, RESIDENT = "plain decoding", "trees by a service", "trees in the verifier"
ROUNDS = 4
"""Answers to each prompt in each mode."""
_BAR, _FIGURES = 20, 58
"""Characters of the longest bar, and of the table before the bars."""


@dataclass(frozen=True, slots=True)
class DemoRun:
    """Answers of one mode, in the order of the turns."""

    mode: str
    answers: Sequence[Answer]

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each answer, from its first token to its last; of one that came at once, in all."""
        return [
            1 / answer.tpot_s if answer.tpot_s else len(answer.token_ids) / answer.ttft_s
            for answer in self.answers
        ]


def options_of(model: str, dtype: str, resident: bool) -> LocalOptions:
    """Return the system that drafts in the verifier's process, or by an independent service, the same way."""
    if resident:
        return LocalOptions(model=model, dtype=dtype, speculators={}, draft=AUTO_DRAFT)
    return LocalOptions(model=model, dtype=dtype, speculators=default_services(model))


async def stream_answers(client: AsyncClient, max_new_tokens: int) -> None:
    """Stream an answer to every prompt to standard output."""
    for number, prompt in enumerate(PROMPTS, 1):
        output.print()
        heading = f"Prompt {number} of {len(PROMPTS)}: {prompt}"
        output.print(heading, style="bold", markup=False, highlight=False)
        answer = await client.generate(
            prompt, lambda piece: typer.echo(piece, nl=False), max_new_tokens=max_new_tokens
        )
        typer.echo()
        stats = f"({len(answer.token_ids)} tokens in {answer.summary.stats.steps} steps)"
        output.print(stats, style="dim", highlight=False)


async def compare_modes(
    service: AsyncClient, resident: AsyncClient, max_new_tokens: int, advance: Callable[[str], None]
) -> list[DemoRun]:
    """Answer every prompt in every mode, in turns; `advance(mode)` is called after each answer."""
    modes = {PLAIN: (resident, "off"), SERVICE: (service, "tree"), RESIDENT: (resident, "tree")}
    found: dict[str, list[Answer]] = {mode: [] for mode in modes}
    for turn in range(-1, ROUNDS):
        for prompt in PROMPTS:
            for mode in list(modes)[:: -1 if turn % 2 else 1]:
                client, speculation = modes[mode]
                tokens = 8 if turn < 0 else max_new_tokens  # at first only to read the prompts
                answer = await client.generate(
                    prompt, max_new_tokens=tokens, speculation=speculation, ignore_eos=True
                )
                if turn >= 0:
                    found[mode].append(answer)
                    advance(mode)
    return [DemoRun(mode, answers) for mode, answers in found.items()]


def print_comparison(runs: Sequence[DemoRun], title: str) -> None:
    """Print a table of the modes with bars, and what it says in a sentence."""
    plain = runs[0]
    fastest = max(median(run.rates) for run in runs)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    longest = min(_BAR, output.width - _FIGURES)
    for name in (title, "tokens/s", "speed-up", "tokens a step", *([""] if longest > 0 else [])):
        table.add_column(name, justify="left" if name in ("", title) else "right")
    for run in runs:
        rate = median(run.rates)
        bar = ["█" * round(longest * rate / fastest)] if longest > 0 else []
        stats = [answer.summary.stats for answer in run.answers]
        length = acceptance_length(sum(s.steps for s in stats), sum(s.accepted for s in stats))
        gain = "" if run is plain else f"{speedup(run, plain):.2f}x"
        table.add_row(run.mode, f"{rate:.0f}", gain, f"{length:.2f}", *bar)
    output.print()
    output.print(table)
    output.print(sentence(runs), markup=False, highlight=False)


def speedup(run: DemoRun, plain: DemoRun) -> float:
    """Return the median ratio of a mode's answers to those of plain decoding in the same turns."""
    return median(_ratios(run, plain))


def _ratios(run: DemoRun, plain: DemoRun) -> list[float]:
    return [own / other for own, other in zip(run.rates, plain.rates, strict=True)]


def sentence(runs: Sequence[DemoRun]) -> str:
    """Return what the comparison says."""
    plain, *trees = runs
    best = max(trees, key=lambda run: speedup(run, plain))
    low, _, high = quantiles(_ratios(best, plain), n=4, method="inclusive")
    same = all(
        a.token_ids == b.token_ids for run in trees for a, b in zip(run.answers, plain.answers, strict=True)
    )
    text = "the same text" if same else "text that differs: please report this"
    return (
        f"Token trees gave {speedup(best, plain):.2f} times the speed of plain decoding (half of the answers "
        f"between {low:.2f} and {high:.2f} times), with {text}."
    )


def demo(
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 96,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = DtypeChoice.BFLOAT16,
) -> None:
    """Start everything, stream a few answers, compare token trees with plain decoding, shut down."""
    if model in known_models():
        pull(model)
    _demo(model, dtype, max_new_tokens)


def _demo(model: str, dtype: str, max_new_tokens: int) -> None:
    key = os.environ.get(API_KEY_VARIABLE)
    with (
        local_system(options_of(model, dtype, resident=False)) as service,
        local_system(options_of(model, dtype, resident=True)) as resident,
    ):
        connections = Connection(service.address, key), Connection(resident.address, key)
        runs = asyncio.run(_compare_modes(*connections, max_new_tokens))
    print_comparison(runs, model)


async def _compare_modes(service: Connection, resident: Connection, max_new_tokens: int) -> list[DemoRun]:
    async with service.client() as one, resident.client() as other:
        await stream_answers(other, max_new_tokens)
        with progress_bar() as bar:
            task = bar.add_task("comparing", total=3 * ROUNDS * len(PROMPTS))
            return await compare_modes(
                one, other, max_new_tokens, lambda mode: bar.update(task, advance=1, description=mode)
            )
