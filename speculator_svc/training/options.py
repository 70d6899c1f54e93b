"""Options that the training commands have in common."""

from pathlib import Path
from typing import Annotated

import typer

from specinfer.errors import SettingError

Corpora = Annotated[list[Path], typer.Option(help="Continuations by the target, JSONL, may be gzipped.")]
Checkpoint = Annotated[Path, typer.Option(help="Directory of the finished checkpoint.")]
Target = Annotated[str, typer.Option(help="The target.")]
FeatureWork = Annotated[
    Path, typer.Option("--work", help="Directory of features and state; a rerun goes on from it.")
]
TrainingMinutes = Annotated[float, typer.Option("--minutes", help="Time to train, features not counted.")]
DraftVocabulary = Annotated[int, typer.Option(help="Size of the draft vocabulary.")]
LearningRate = Annotated[float, typer.Option(help="Peak learning rate.")]
BatchSeed = Annotated[int, typer.Option(help="Seed of the batches.")]
Threads = Annotated[int, typer.Option(help="CPU threads; 0 leaves torch's default.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Train although --out is finished, and replace it at the end.")
]


def layer_numbers(name: str, text: str) -> list[int]:
    """The numbers of an option with commas between them.

    Raises:
        SettingError: if they are none.
    """
    try:
        return [int(number) for number in text.split(",") if number]
    except ValueError as error:
        raise SettingError(name, text, "must be numbers with commas between them") from error
