"""`specinfer bench`: measure modes and batch sizes on the user's prompts."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specinfer.cli.about import about_this_run
from specinfer.cli.bench import Advance, BenchPlan, BenchRun, run_bench, write_runs
from specinfer.cli.local.running import gateway, load_in_process
from specinfer.cli.options.shared import (
    GATEWAY_OPTIONS,
    LOCAL_OPTIONS,
    AccessFlags,
    DraftFlag,
    LocalFlags,
    Raw,
    Speculators,
    check_positive,
    check_writable,
    read_modes,
    read_numbers,
    refuse_with,
)
from specinfer.cli.show import print_runs, progress_bar
from specinfer.drafters.pools import read_speculators
from specinfer.errors import InvalidInputError
from specinfer.hub import DEFAULT_MODEL
from specinfer.options.model_options import Model
from specinfer.request.stream import Generator
from specinfer.text.prompts import read_prompts

BenchTokens = Annotated[int, typer.Option(min=1, help="Tokens per answer; end of sequence is ignored.")]
ResultPath = Annotated[Path | None, typer.Option("--json", help="File of the results.")]


PromptsPath = Annotated[
    Path | None, typer.Option(help=r"JSONL file of objects with `turns: \[text]`; needed.")
]
Modes = Annotated[str, typer.Option(help="Modes to measure, of incremental,sequence,tree.")]
Batches = Annotated[str, typer.Option(help="Numbers of concurrent requests, for example 1,4.")]
RunningGateway = Annotated[str | None, typer.Option(help="A running gateway; else starts a local system.")]
Here = Annotated[bool, typer.Option("--local", help="Measure in this process, without services.")]


def bench(
    context: typer.Context,
    prompts: PromptsPath = None,
    json_path: ResultPath = None,
    modes: Modes = "incremental,sequence,tree",
    batch: Batches = "1",
    max_new_tokens: BenchTokens = 128,
    limit: Annotated[int | None, typer.Option(help="Use only the first prompts.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of every request.")] = 0,
    raw: Raw = False,
    address: RunningGateway = None,
    *,
    access: AccessFlags,
    model: Model = DEFAULT_MODEL,
    target: LocalFlags,
    speculator: Speculators = None,
    draft: DraftFlag = None,
    local: Here = False,
) -> None:
    """Measure modes and batch sizes, with real services or in one process.

    The modes alternate, prompt by prompt, so that a drift of the machine's speed affects all of them.
    """
    _check_together(context, address, local)
    if prompts is None:
        raise InvalidInputError("prompts", "", "needed: a JSONL file of objects with `turns: [text]`")
    connection = access.connection(address or "")
    texts = read_prompts(prompts, check_positive("limit", limit))
    ways, sizes = read_modes("modes", modes), read_numbers("batch", batch)
    plan = BenchPlan(texts, ways, sizes, max_new_tokens, temperature, seed, not raw)
    if json_path is not None:
        check_writable("--json", json_path)
    if local:
        seqs = max(plan.batches)
        client = load_in_process(model, draft=draft, speculators=speculator, max_num_seqs=seqs, **target.here)
        finish_bench(_run_with_bar(client, plan), json_path)
        return
    options = target.system(
        model,
        gateway={"max-batch": str(max(plan.batches))},
        speculators=read_speculators(speculator),
        draft=draft,
    )
    with gateway(connection, options if address is None else None) as where:
        finish_bench(_run_with_bar(where.client(), plan), json_path)


def _check_together(context: typer.Context, address: str | None, local: bool) -> None:
    if local:
        refuse_with(
            context, ("address", *GATEWAY_OPTIONS), "cannot be used with --local: it needs no gateway"
        )
    if address is not None:
        refuse_with(context, LOCAL_OPTIONS, "cannot be used with --address: a gateway has its own setting")
    else:
        refuse_with(context, GATEWAY_OPTIONS, "needs --address: a local system has no TLS")


def finish_bench(runs: Sequence[BenchRun], json_path: Path | None) -> None:
    """Print the runs, and write them to a file if given."""
    print_runs(runs)
    if json_path is not None:
        write_runs(json_path, runs, about_this_run())


def _run_with_bar(client: Generator, plan: BenchPlan) -> list[BenchRun]:
    """Run the plan with a progress bar."""
    with progress_bar() as bar:
        total = len(plan.prompts) * len(plan.modes) * len(plan.batches)
        task = bar.add_task("warming up", total=total)
        return asyncio.run(_bench(client, plan, lambda label: bar.update(task, advance=1, description=label)))


async def _bench(client: Generator, plan: BenchPlan, advance: Advance) -> list[BenchRun]:
    async with client:
        return await run_bench(client, plan, advance)
