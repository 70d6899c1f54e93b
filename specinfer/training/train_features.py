"""`specinfer train eagle`, `medusa` and `blockwise`: train on hidden states."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from specinfer.drafters.heads_layers import (
    BlockwiseSource,
    HeadsSource,
    MedusaSource,
    save_heads,
    tensors_of_target,
)
from specinfer.drafters.published.eagle3 import load_eagle, save_eagle
from specinfer.errors import SettingError
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import EMBEDDING
from specinfer.options.flag_groups import grouped
from specinfer.training.eagle_student import EagleStudent, starting_tensors
from specinfer.training.feature_students import HeadsStudent, starting_heads
from specinfer.training.feature_training import FeatureFlags, FeatureTraining, TrainingMethod
from specinfer.training.run import layer_numbers

MARKOV_RANK = 256
HeadCount = Annotated[
    int, typer.Option("--heads", min=1, help="Number of heads: tokens predicted after the next one.")
]
MarkovRank = Annotated[
    int,
    typer.Option("--markov-rank", min=0, help="Rank of the Markov head (bias by the token before); 0: none."),
]


def command_for(kind: type[HeadsSource]) -> Callable[..., None]:
    @grouped
    def train(training: FeatureFlags, heads: HeadCount = 4, markov_rank: MarkovRank = MARKOV_RANK) -> None:
        _train(kind, heads, markov_rank, training)

    return train


def _train(kind: type[HeadsSource], count: int, rank: int, asked: FeatureFlags) -> None:
    training = FeatureTraining(asked)
    directory, config = training.directory, training.config

    def make(target: Mapping[str, torch.Tensor], token_ids: torch.Tensor) -> HeadsStudent:
        trained = starting_heads(kind, count, config, target, token_ids, asked.seed, rank)
        frozen = tensors_of_target(kind, config, target, token_ids, rank > 0)
        return HeadsStudent(config, kind, count, trained, frozen)

    def save(student: HeadsStudent, token_ids: torch.Tensor, trained: Mapping[str, Any]) -> None:
        save_heads(asked.out, kind(student.tensors(), token_ids, count), directory, asked.model, trained)

    flags = f"--heads {count} --markov-rank {rank}"
    training.run(TrainingMethod(kind.algorithm, flags, (config.layers,), count, make, save))


train_medusa, train_blockwise = command_for(MedusaSource), command_for(BlockwiseSource)


@grouped
def train_eagle(
    asked: FeatureFlags,
    layers: Annotated[
        str,
        typer.Option(
            help="Hidden states to read, by the number of target layers before each, such as 2,15,30; not "
            "given: a low, a middle and the last one."
        ),
    ] = "",
    start: Annotated[Path | None, typer.Option(help="Start from this EAGLE speculator.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps unrolled in training.")] = 4,
) -> None:
    """Distil the target into a layer that reads its hidden states (EAGLE-3).

    SIGINT (Ctrl-C) and SIGTERM save the state in --work; the same command continues from there.
    """
    training = FeatureTraining(asked)
    directory, config = training.directory, training.config
    config.draft_layer()  # refuses targets that it does not fit
    base = load_eagle(start, directory) if start is not None else None
    layer_numbers = base.weights.layers if base is not None else feature_layers(layers, config)

    def make(target: Mapping[str, torch.Tensor], token_ids: torch.Tensor) -> EagleStudent:
        tensors = (
            base.weights.tensors if base else starting_tensors(config, target, len(layer_numbers), token_ids)
        )
        return EagleStudent(config, target[EMBEDDING], tensors)

    def save(student: EagleStudent, token_ids: torch.Tensor, trained: Mapping[str, Any]) -> None:
        save_eagle(asked.out, student.tensors(), token_ids, layer_numbers, directory, asked.model, trained)

    flags = f"--layers {','.join(map(str, layer_numbers))} --steps {steps}" + (
        f" --start {start.name}" if start else ""
    )
    training.run(
        TrainingMethod("eagle", flags, layer_numbers, steps, make, save, base.token_ids if base else None)
    )


def feature_layers(text: str, config: ModelConfig) -> tuple[int, ...]:
    """Return the layers of hidden states; default: low, middle and last.

    EAGLE-3's authors use 2, the middle, and three below the last. We use the last, which Medusa's heads read, too, so
    that one message of features serves both.
    """
    if not text:
        return tuple(sorted({min(2, config.layers), config.layers // 2, config.layers}))
    numbers = tuple(sorted(set(layer_numbers("layers", text))))
    if not numbers or not all(0 <= number <= config.layers for number in numbers):
        raise SettingError("layers", text, f"must be numbers from 0 to {config.layers}")
    return numbers
