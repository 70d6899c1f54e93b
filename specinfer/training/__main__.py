"""`specinfer train`: commands that train speculators."""

import signal
import sys

import typer

from specinfer.errors import SpecInferError
from specinfer.options.usage import USAGE_ERROR, as_typed, usage_message
from specinfer.training.make_corpus import make_corpus
from specinfer.training.online.follow import train_follow
from specinfer.training.run import SIGNALS, InterruptionError
from specinfer.training.train_features import train_blockwise, train_eagle, train_medusa
from specinfer.training.train_speculator import train_speculator
from specinfer.training.train_ssm import train_ssm

PROGRAM = "specinfer train"
INTERRUPTED = 130
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train speculators for a target. `specinfer train scheduler` trains the gateway's learned planner.",
)
app.command("speculator")(train_speculator)
app.command("corpus")(make_corpus)
app.command("ssm")(train_ssm)
app.command("follow")(train_follow)
app.command("eagle")(train_eagle)
ENDING = "SIGINT (Ctrl-C) and SIGTERM save the state in --work; the same command continues from there."
MEDUSA = "Distil the target into Medusa's heads, which read its last hidden state."
BLOCKWISE = "Distil the target into heads that share its output head (blockwise parallel decoding)."
app.command("medusa", help=f"{MEDUSA}\n\n{ENDING}")(train_medusa)
app.command("blockwise", help=f"{BLOCKWISE}\n\n{ENDING}")(train_blockwise)


def main() -> None:
    """Run a command; exit with 130 after signals, 2 for invalid input."""
    for number in SIGNALS:  # shells ignore SIGINT in background jobs
        signal.signal(number, signal.default_int_handler)
    try:
        code = app(prog_name=PROGRAM, standalone_mode=False)  # typer turns Ctrl-C into the return value 130
    except InterruptionError as error:
        _exit(f"interrupted: {error}", INTERRUPTED)
    except USAGE_ERROR as error:
        message = usage_message(error)
        _exit(f"error: {message}" if message else "", 2)
    except SpecInferError as error:
        _exit(f"error: {as_typed(str(error), app, sys.argv[1:])}", 2)
    if code == INTERRUPTED:
        _exit("interrupted: finished work is kept, and the same command continues from it", INTERRUPTED)


def _exit(message: str, code: int) -> None:
    if message:
        print(f"{PROGRAM}: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
