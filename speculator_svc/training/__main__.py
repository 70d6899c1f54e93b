"""`python -m speculator_svc.training corpus|ssm`, the same as `specinfer train`."""

import sys

import typer

from specinfer.errors import SpecInferError
from speculator_svc.training.make_corpus import make_corpus
from speculator_svc.training.train_ssm import train_ssm

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Train speculators for a target.")
app.command("corpus")(make_corpus)
app.command("ssm")(train_ssm)

if __name__ == "__main__":
    try:
        app(prog_name="specinfer train")
    except SpecInferError as error:
        print(f"specinfer train: error: {error}", file=sys.stderr)
        sys.exit(2)
