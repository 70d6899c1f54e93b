"""The `specinfer` command.

Invalid input prints one line and exits with code 2; other failures exit with code 1.
"""

import os
import secrets
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specinfer import __version__
from specinfer.cli.bench_command import bench
from specinfer.cli.chat.run import run
from specinfer.cli.check import check, explanation
from specinfer.cli.connection import API_KEY_VARIABLE, Connection, describe_verifier
from specinfer.cli.demo import demo
from specinfer.cli.exact import exact
from specinfer.cli.generate import attach, cancel, generate
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.running import local_system
from specinfer.cli.models import keys_app, models_app, models_list, models_pull, models_remove
from specinfer.cli.options.shared import (
    DEFAULT_ADDRESS,
    DraftFlag,
    SpeculatorAddresses,
    Speculators,
)
from specinfer.cli.options.up import GatewayFlags, HttpFlags, UpFlags, changed
from specinfer.cli.show import console
from specinfer.cli.status import get_status, ps, status
from specinfer.client import RequestFailedError
from specinfer.client.described import ready_line
from specinfer.drafters.pools import read_speculators
from specinfer.errors import InvalidInputError, NotFoundError, SpecInferError
from specinfer.hub import DEFAULT_MODEL
from specinfer.options.flag_groups import grouped
from specinfer.options.model_options import Model
from specinfer.options.option_names import no_such_option
from specinfer.options.usage import USAGE_ERROR, as_typed, usage_message
from specinfer.planning import PLANNERS
from specinfer.service.channel import check_target
from specinfer.system.cache_directory import CACHE_HELP
from specinfer.system.running import announced
from specinfer.system.threads import thread_count

PROGRAM = "specinfer"
_GATEWAY_KEY = "SPECINFER_GATEWAY_API_KEY"
"""Variable of the gateway's `--api-key`: other users can read options."""
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of commands that read no options themselves."""

app = typer.Typer(name=PROGRAM, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(models_app, name="models")
app.add_typer(keys_app, name="keys")
for command in (run, generate, attach, cancel, status, ps, bench, demo, check, exact):
    app.command()(grouped(command))
for name, same in (("pull", models_pull), ("list", models_list), ("rm", models_remove)):
    app.command(name)(same)


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
    """Show help or version, if no command is given."""


Listen = Annotated[str, typer.Option(help="Address of the gateway.")]
HttpListen = Annotated[
    str,
    typer.Option(
        envvar="SPECINFER_HTTP_LISTEN", help="Address of OpenAI's API over HTTP; none: no HTTP service."
    ),
]
ChatTemplate = Annotated[
    Path | None,
    typer.Option(
        help="File of a chat template (Jinja) to use instead of the model's.", exists=True, dir_okay=False
    ),
]


def planner_name(text: str) -> str:
    """Return a planner's name, or the absolute path of its weights."""
    if text in PLANNERS:
        return text
    if not Path(text).is_file():
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(PLANNERS)}, nor a file of weights")
    return str(Path(text).resolve())


Planner = Annotated[
    str | None,
    typer.Option(
        parser=planner_name,
        metavar="measured|learned|FILE",
        help="How the gateway predicts accepted tokens; FILE: learned, with weights of `specinfer train scheduler`.",
    ),
]
TensorParallel = Annotated[
    int, typer.Option(min=1, help="Processes, each with a device, that share the verifier's model.")
]
Explain = Annotated[bool, typer.Option("--explain", help="Print the automatic choices and their reasons.")]


@app.command()
@grouped
def up(
    listen: Listen = DEFAULT_ADDRESS,
    http_listen: HttpListen = "127.0.0.1:8000",
    model: Model = DEFAULT_MODEL,
    *,
    target: UpFlags,
    requests: GatewayFlags,
    http: HttpFlags,
    speculator: Speculators = None,
    speculator_address: SpeculatorAddresses = None,
    draft: DraftFlag = None,
    chat_template: ChatTemplate = None,
    planner: Planner = None,
    tensor_parallel: TensorParallel = 1,
    explain: Explain = False,
) -> None:
    """Run the whole system on this machine until Ctrl-C. TLS is that of the HTTP service."""
    http_flags = changed(http)
    if http_flags and http_listen == "none":
        name, value = next(iter(http_flags.items()))
        raise InvalidInputError(name.replace("-", "_"), value, "needs --http-listen HOST:PORT, not none")
    options = LocalOptions(
        model,
        target.dtype,
        target.device or None,
        verifier={**changed(target), "tensor-parallel": str(tensor_parallel)},
        listen=listen,
        gateway={
            **changed(replace(requests, api_key="")),
            **({"planner": planner} if planner else {}),
            **({"chat-template": str(chat_template.resolve())} if chat_template else {}),
        },
        speculators=read_speculators(speculator),
        addresses=tuple(
            check_target("--speculator-address", address) for address in speculator_address or ()
        ),
        draft=draft,
        metrics=True,
        http=None if http_listen == "none" else http_listen,
        http_flags=http_flags,
    )
    api_key = requests.api_key or os.environ.get(_GATEWAY_KEY) or os.environ.get(API_KEY_VARIABLE)
    if requests.api_key or (requests.api_keys and not api_key):
        os.environ[_GATEWAY_KEY] = api_key = (
            requests.api_key or secrets.token_urlsafe()
        )  # `_run` asks with it
    _run(options, explain, api_key)


def _run(options: LocalOptions, explain: bool, api_key: str | None) -> None:
    with local_system(options) as system:
        connection = Connection(system.address, api_key or None)
        scheme = "https" if "tls-certificate" in options.http_flags else "http"
        url = f"{scheme}://{options.http}" if options.http else ""
        about = ready_line(url, get_status(connection), thread_count(int(options.verifier.get("threads", 0))))
        ready = f"ready at {system.address}: {about}; logs in {system.logs}; Ctrl-C ends it"
        console.print(ready, markup=False, highlight=False, soft_wrap=True)
        if explain:
            for what, choice in explanation(options, describe_verifier(system.verifier)):
                console.print(f"{what}: {choice}", markup=False, highlight=False, soft_wrap=True)
        with announced("up", system.address, url):
            while True:
                system.check()
                time.sleep(0.5)


@app.command("batch", hidden=True, context_settings=_PASSED_ON)
def batch() -> None:
    """Refuse the command of earlier versions."""
    raise InvalidInputError(
        "command", "batch", "is the script examples/batch.py now: batch.py INPUT OUTPUT http://HOST:PORT"
    )


@app.command("serve", context_settings=_PASSED_ON)
def serve(context: typer.Context) -> None:
    """Serve OpenAI's API for a model in one process: serve MODEL (options: --help)."""
    _become("all_in_one", context.args)


@app.command("train", context_settings=_PASSED_ON)
def train(context: typer.Context) -> None:
    """Train speculators for a target, or the gateway's learned planner.

    Speculators: `speculator` in one command; `corpus`, `ssm` and others (--help). The planner: `scheduler`.
    """
    module, arguments = "specinfer.training", context.args
    if arguments[:1] == ["scheduler"]:
        module, arguments = "specinfer.planning.learned_training", arguments[1:]
    _become(module, arguments)


def _become(module: str, arguments: list[str]) -> None:
    """Replace this process by `python -m module`, so that signals reach the module."""
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def main() -> None:
    """Run the command; print an error as one line, and exit."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that children are stopped
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background jobs ignore it
    try:
        code = app(prog_name=PROGRAM, standalone_mode=False)  # typer turns Ctrl-C into the return value 130
    except USAGE_ERROR as error:
        _exit(_usage_message(error), 2)
    except (InvalidInputError, NotFoundError) as error:
        _exit(_as_typed(error), 2)
    except RequestFailedError as error:
        _exit(_as_typed(error), 2 if error.bad_input else 1)
    except SpecInferError as error:
        _exit(str(error), 1)
    except OSError as error:
        if error.filename is None:
            raise
        _exit(f"{error.filename}: {error.strerror or error}", 2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _usage_message(error: Exception) -> str:
    """Return typer's message; add the invalid value or a similar option's name."""
    message = usage_message(error)
    unknown, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if unknown and context is not None:
        known = [option for parameter in context.command.params for option in parameter.opts]
        return f"{unknown}: {no_such_option(unknown, known)}"
    for name in getattr(getattr(error, "param", None), "opts", ()):
        if name in sys.argv[:-1]:
            message += f" (got {sys.argv[sys.argv.index(name) + 1]!r})"
    return message


def _as_typed(error: Exception) -> str:
    return as_typed(str(error), app, sys.argv[1:])


def _exit(message: str, code: int) -> None:
    if message:  # empty after a help text
        print(f"{PROGRAM}: error: {message}", file=sys.stderr)
    sys.exit(code)
