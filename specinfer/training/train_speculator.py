"""`specinfer train speculator`: make training data, train and report within a given time."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from specinfer.drafters.draft import automatic_draft
from specinfer.errors import InvalidInputError, SettingError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.llm.draft_gains import advice, compare
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import fingerprint_in
from specinfer.model.weights.source import is_draft_checkpoint
from specinfer.text.prompts import read_prompts
from specinfer.training.distil import console
from specinfer.training.feature_training import FeatureFlags
from specinfer.training.reading.kept import HELD_OUT, OWN
from specinfer.training.reading.stages import MIN_PROMPTS, PROGRESS, RunProgress, SpeculatorRun
from specinfer.training.reading.texts import machine_folders, pieces
from specinfer.training.run import Device, Target, Threads, place_for
from specinfer.training.speculator_method import ChosenMethod, SpeculatorMethod, check_method, choose_method

N_GRAMS = "ngram"
"""Drafter in every comparison, as it drafts along with each trained draft."""
MOST_TURNS = 2000
"""Maximum user turns of texts that are asked if there is no prompt file."""

TextPlaces = Annotated[
    list[Path] | None,
    typer.Option("--text", help="Files or folders to read; not given: installed Python and documentation."),
]


def train_speculator(
    model: Target = DEFAULT_MODEL,
    minutes: Annotated[float, typer.Option(help="Time for everything; the comparison may take more.")] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the checkpoint; not given: ./speculator-MODEL.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help=r"JSONL file of objects with `turns: \[text]` to answer; not given: from texts, and invented."
        ),
    ] = None,
    text: TextPlaces = None,
    method: Annotated[
        SpeculatorMethod, typer.Option(help="auto: an SSM under 1,000 M parameters, else EAGLE.")
    ] = SpeculatorMethod.AUTO,
    seed: Annotated[int, typer.Option(help="Seed of all sampling.")] = 0,
    threads: Threads = 0,
    device: Device = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again, and replace --out at the end.")
    ] = False,
) -> None:
    """Train a speculator for your own target: data, training, comparison, advice.

    SIGINT (Ctrl-C) and SIGTERM keep finished work next to --out; the same command continues from there.
    """
    directory = resolve_model(model)
    config = load_config(directory)
    places = text or machine_folders()
    asked = _prompts(prompts, places, seed)
    out = out or Path(f"speculator-{directory.name}")
    work = out.with_name(f"{out.name}.work")
    if not overwrite and is_draft_checkpoint(out) and not (work / PROGRESS).is_file():
        raise SettingError(
            "out", str(out), "has a finished speculator; --overwrite trains again and replaces it"
        )
    place = place_for(device, threads)
    chosen = (
        choose_method(config) if method is SpeculatorMethod.AUTO else ChosenMethod(method, "as asked for")
    )
    check_method(chosen.method, config)
    console.print(f"method: {chosen.method} ({chosen.reason})", highlight=False, soft_wrap=True)
    if overwrite:
        _throw_away(work)
    name = prompts.name if prompts else ""
    fresh = RunProgress(fingerprint_in(directory), name, chosen.method, minutes, seed)
    progress = RunProgress.resume(work, fresh)
    flags = FeatureFlags(
        corpus=[], out=out, work=work, model=model, seed=seed, threads=threads, device=device
    )
    run = SpeculatorRun(directory, config, asked, places, progress, flags, place)
    trained = run.train_ssm() if chosen.method is SpeculatorMethod.SSM else run.train_on_texts()
    console.print("measuring the speed with the new draft")
    others = [*filter(None, [automatic_draft(model)]), N_GRAMS]
    ours, theirs = (compare(model, drafts, trained.prompts, place) for drafts in (trained.drafts, others))
    for line in advice(model, ours, theirs, trained.tokens):
        typer.echo(line)
    (work / PROGRESS).unlink()


def _prompts(path: Path | None, places: Sequence[Path], seed: int) -> list[str]:
    """Return the texts that the target answers: a file's, or the user turns of texts."""
    if path is None:
        found = [piece.turn for piece in islice(pieces(places, seed), MOST_TURNS)]
    else:
        found = [*read_prompts(path)]
    if len(found) < MIN_PROMPTS:
        field, value = ("prompts", str(path)) if path else ("text", ", ".join(map(str, places)))
        raise InvalidInputError(field, value, f"has {len(found)} prompts, {MIN_PROMPTS} or more are needed")
    return found


def _throw_away(work: Path) -> None:
    """Remove an earlier run's state and answers; states of read texts stay."""
    answers = (path for kind in (OWN, HELD_OUT) for path in (work / "read").glob(f"{kind}-*.npz"))
    for path in (*work.glob("state*.pt"), *work.glob("*.jsonl"), *answers, work / PROGRESS):
        path.unlink(missing_ok=True)
