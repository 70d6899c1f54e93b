"""`specinfer train medusa` and `specinfer train blockwise`: train heads on the target's last hidden state."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
import typer

from specinfer.hub import DEFAULT_MODEL
from specinfer.model.heads import tensors_of_target
from specinfer.model.weights.heads_checkpoint import BlockwiseSource, HeadsSource, MedusaSource, save_heads
from speculator_svc.training.device import Device
from speculator_svc.training.distil import DistilOptions
from speculator_svc.training.feature_training import Asked, FeatureTraining, Reader
from speculator_svc.training.heads_student import HeadsStudent, starting_heads
from speculator_svc.training.options import (
    BatchSeed,
    Checkpoint,
    Corpora,
    DraftVocabulary,
    FeatureWork,
    LearningRate,
    Overwrite,
    Target,
    Threads,
    TrainingMinutes,
)

HeadCount = Annotated[
    int, typer.Option("--heads", min=1, help="How many tokens behind the next one are said.")
]


def command_for(kind: type[HeadsSource]) -> Callable[..., None]:
    """The command that trains heads of a kind."""

    def train(
        corpus: Corpora,
        out: Checkpoint,
        work: FeatureWork,
        model: Target = DEFAULT_MODEL,
        heads: HeadCount = 4,
        vocabulary: DraftVocabulary = 8192,
        minutes: TrainingMinutes = 60.0,
        learning_rate: LearningRate = 1e-3,
        seed: BatchSeed = 0,
        threads: Threads = 0,
        device: Device = "auto",
        overwrite: Overwrite = False,
    ) -> None:
        options = DistilOptions(minutes, learning_rate, seed=seed)
        asked = Asked(corpus, out, work, model, vocabulary, options, threads, device, overwrite)
        _train(kind, heads, asked)

    return train


def _train(kind: type[HeadsSource], count: int, asked: Asked) -> None:
    training = FeatureTraining(asked)
    directory, config = training.directory, training.config

    def make(target: Mapping[str, torch.Tensor], token_ids: torch.Tensor) -> HeadsStudent:
        trained = starting_heads(kind, count, config, target, token_ids, asked.options.seed)
        return HeadsStudent(config, kind, count, trained, tensors_of_target(kind, config, target, token_ids))

    def save(student: HeadsStudent, token_ids: torch.Tensor, trained: Mapping[str, Any]) -> None:
        save_heads(asked.out, kind(student.tensors(), token_ids, count), directory, asked.model, trained)

    training.run(Reader(kind.algorithm, f"--heads {count}", (config.layers,), count, make, save))


train_medusa, train_blockwise = command_for(MedusaSource), command_for(BlockwiseSource)
