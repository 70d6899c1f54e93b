"""Commands that compare modes: `specinfer bench` on the user's prompts, `specinfer demo` on its own."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from specinfer.cli.about import about_this_run
from specinfer.cli.bench import Advance, BenchClient, BenchPlan, BenchRun, run_bench, write_runs
from specinfer.cli.connection import Connection, client_tls
from specinfer.cli.local.running import gateway, load_in_process
from specinfer.cli.local.system import LocalOptions
from specinfer.cli.options.choices import DtypeChoice, OffloadChoice
from specinfer.cli.options.shared import (
    GATEWAY_OPTIONS,
    LOCAL_OPTIONS,
    ApiKey,
    Dtype,
    LocalDevice,
    Model,
    Offload,
    Raw,
    Resident,
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
from specinfer.cli.show import output, print_runs, progress_bar
from specinfer.drafters.pools import read_resident, read_speculators
from specinfer.errors import InvalidInputError
from specinfer.hub import DEFAULT_MODEL
from specinfer.model.formats.registry import AUTO
from specinfer.prompts import read_prompts

FIGURES = ("tokens_per_second", "speedup")
"""Figures of a run, each with its standard error under the name with `_error` behind it."""
NOISE = 2.0
"""Standard errors of a ratio within which it may as well be 1: by chance one in twenty is not."""
Runs = Mapping[tuple[str, str, int], Mapping[str, Any]]
"""Runs by pool ("" where the result has one pool only), mode and batch size."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of one run in both results."""

    run: tuple[str, str, int]
    figure: str
    first: float
    second: float
    error: float | None
    """Standard error of the ratio; None where a result has no standard error of its own."""

    @property
    def ratio(self) -> float:
        """Ratio of the second to the first."""
        return self.second / self.first

    @property
    def verdict(self) -> str:
        """Judgement in one word or two."""
        if self.error is None:
            return "noise unknown"
        if abs(self.ratio - 1) <= NOISE * self.error:
            return "within noise"
        return "faster" if self.ratio > 1 else "slower"


def read_runs(path: Path) -> Runs:
    """Return the runs of a result file of `bench --json`.

    Raises:
        InvalidInputError: naming the file.
    """
    try:
        runs = json.loads(path.read_text())["runs"]
        return {(run.get("pool", ""), run["mode"], run["batch"]): run for run in runs}
    except OSError as error:
        raise InvalidInputError("result", str(path), error.strerror or "cannot be read") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError("result", str(path), "is no result of `specinfer bench`") from error


def differences(first: Runs, second: Runs) -> list[Difference]:
    """Return the differences of all figures that both results have."""
    found = []
    for run, a in first.items():
        b = second.get(run, {})
        for figure in FIGURES:
            if a.get(figure) and b.get(figure):
                error = _error_of_ratio(a, b, figure)
                found.append(Difference(run, figure, a[figure], b[figure], error))
    return found


def _error_of_ratio(a: Mapping[str, Any], b: Mapping[str, Any], figure: str) -> float | None:
    errors = [run.get(f"{figure}_error") for run in (a, b)]
    if None in errors:
        return None
    shares = [error / run[figure] for error, run in zip(errors, (a, b), strict=True)]
    return float(b[figure] / a[figure] * (shares[0] ** 2 + shares[1] ** 2) ** 0.5)


def compare(
    first: Annotated[
        Path,
        typer.Argument(metavar="A.json", help="Result of `bench --json`."),
    ],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Another one.")],
) -> None:
    """Say what differs between two results beyond their noise."""
    a, b = read_runs(first), read_runs(second)
    found = differences(a, b)
    if not found:
        raise InvalidInputError("result", str(second), f"has no run in common with {first}")
    output.print(_table(found))
    for name, missing in ((first, set(b) - set(a)), (second, set(a) - set(b))):
        if missing:
            output.print(
                f"not in {name}: {', '.join(_words(run) for run in sorted(missing))}",
                highlight=False,
                soft_wrap=True,
            )
    output.print(
        f"within noise: the ratio is 1 within {NOISE:g} standard errors", highlight=False, soft_wrap=True
    )


def _table(found: Sequence[Difference]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("run", "figure", "A", "B", "B / A", ""):
        table.add_column(name)
    for each in found:
        error = "" if each.error is None else f" ±{each.error:.3f}"
        numbers = f"{each.first:.2f}", f"{each.second:.2f}", f"{each.ratio:.3f}{error}"
        table.add_row(_words(each.run), each.figure.replace("_", " "), *numbers, each.verdict)
    return table


def _words(run: tuple[str, str, int]) -> str:
    pool, mode, batch = run
    return ", ".join([*([pool] if pool else []), mode, f"batch {batch}"])


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
    dtype: Dtype = DtypeChoice.BFLOAT16,
    weights: Weights = AUTO,
    offload: Offload = OffloadChoice.NONE,
    device: LocalDevice = None,
    speculator: Speculators = None,
    resident: Resident = None,
    local: Annotated[
        bool, typer.Option("--local", help="Measure in this process, without services.")
    ] = False,
) -> None:
    """Measure modes and batch sizes, through the real services or in one process.

    The modes take turns, prompt by prompt, so that drift of the machine meets all alike.
    """
    if context.invoked_subcommand is not None:
        return
    if local:
        refuse_with(
            context, ("address", "resident", *GATEWAY_OPTIONS), "excludes --local, which needs no gateway"
        )
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
    if local:
        here = {"dtype": dtype, "weights": weights, "offload": offload, "device": device or "cpu"}
        client = load_in_process(model, speculator, max_num_seqs=max(plan.batches), **here)
        finish_bench(_run_with_bar(client, plan), json_path)
        return
    options = LocalOptions(
        model=model,
        dtype=dtype,
        device=device,
        verifier={"weights": weights, "offload": offload},
        gateway={"max-batch": str(max(plan.batches))},
        speculators=read_speculators(speculator),
        resident=read_resident(resident),
    )
    with gateway(connection, options if address is None else None) as where:
        finish_bench(_run_with_bar(where.client(), plan), json_path)


def finish_bench(runs: Sequence[BenchRun], json_path: Path | None) -> None:
    """Print the runs, and write them to a file if one is named."""
    print_runs(runs)
    if json_path is not None:
        write_runs(json_path, runs, about_this_run())


def _run_with_bar(client: BenchClient, plan: BenchPlan) -> list[BenchRun]:
    """Run the plan behind a progress bar."""
    with progress_bar() as bar:
        total = len(plan.prompts) * len(plan.modes) * len(plan.batches)
        task = bar.add_task("warming up", total=total)
        return asyncio.run(_bench(client, plan, lambda label: bar.update(task, advance=1, description=label)))


async def _bench(client: BenchClient, plan: BenchPlan, advance: Advance) -> list[BenchRun]:
    async with client:
        return await run_bench(client, plan, advance)
