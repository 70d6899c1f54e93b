"""`specinfer train read`: let the target read text of this machine."""

from pathlib import Path
from typing import Annotated

import typer

from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.weights.draft_checkpoint import fingerprint_in, target_config
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.distil import console
from specinfer.training.reading.kept import KeptTexts
from specinfer.training.reading.reader import PASS_TOKENS, read_texts
from specinfer.training.reading.texts import machine_folders, pieces
from specinfer.training.run import Device, Target, Threads, place_for
from specinfer.training.train_features import feature_layers

TextPlaces = Annotated[
    list[Path] | None,
    typer.Option("--text", help="Files or folders to read; not given: installed Python and documentation."),
]


def train_read(
    out: Annotated[Path, typer.Option(help="Directory of the states; a rerun continues it.")],
    model: Target = DEFAULT_MODEL,
    text: TextPlaces = None,
    minutes: Annotated[float, typer.Option(help="Time for reading.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of the order of texts.")] = 0,
    threads: Threads = 0,
    device: Device = "auto",
) -> None:
    """Let the target read text of this machine, and keep its hidden states for training.

    Every text is kept when it is read: the same command continues after any end.
    """
    place, directory = place_for(device, threads), resolve_model(model)
    layers = feature_layers("", target_config(directory))
    kept = KeptTexts(out, fingerprint_in(directory), layers)
    runner = load_checked(directory, RunnerOptions(kv_tokens=2 * PASS_TOKENS, device=place))
    found = pieces(text or machine_folders(), seed)
    tokens = read_texts(runner, Tokenizer.load(directory), found, kept, layers, 60 * minutes)
    console.print(f"{out}: {tokens:,} tokens read", highlight=False, soft_wrap=True)
