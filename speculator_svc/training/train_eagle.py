"""`specinfer train eagle`: trains a speculator that reads the target's hidden states."""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from specinfer.errors import SettingError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config import ModelConfig, load_config
from specinfer.model.weights.draft_checkpoint import is_draft_checkpoint
from specinfer.model.weights.eagle_checkpoint import EagleSource, load_eagle, save_eagle
from specinfer.model.weights.families import EMBEDDING, open_weights
from speculator_svc.training.corpus import Continuation, frequent_tokens, read_corpora
from speculator_svc.training.device import Device, pick_device
from speculator_svc.training.distil import DistilOptions
from speculator_svc.training.eagle_student import EagleStudent, starting_tensors
from speculator_svc.training.features import Thoughts, think
from speculator_svc.training.interruption import deferred_signals
from speculator_svc.training.labels import LABEL_WIDTH, in_draft_vocabulary
from speculator_svc.training.options import (
    BatchSeed,
    Checkpoint,
    Corpora,
    DraftVocabulary,
    LearningRate,
    Overwrite,
    Target,
    Threads,
    layer_numbers,
)
from speculator_svc.training.progress import console, distil_with_bar, progress_bar
from speculator_svc.training.unrolled import UnrolledExamples, evaluate_unrolled, unrolled_loss

CACHE_TOKENS = 8192


def train_eagle(
    corpus: Corpora,
    out: Checkpoint,
    work: Annotated[Path, typer.Option(help="Directory of features and state; a rerun goes on from it.")],
    model: Target = DEFAULT_MODEL,
    layers: Annotated[
        str,
        typer.Option(
            help="Hidden states it reads: after so many target layers, such as 2,15,30; none: a low one, "
            "the middle, the last."
        ),
    ] = "",
    start: Annotated[Path | None, typer.Option(help="Go on from this EAGLE speculator.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps unrolled on its own outputs.")] = 4,
    vocabulary: DraftVocabulary = 8192,
    minutes: Annotated[float, typer.Option(help="Time to train, features not counted.")] = 60.0,
    learning_rate: LearningRate = 1e-3,
    seed: BatchSeed = 0,
    threads: Threads = 0,
    device: Device = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Distil the target into one decoder layer that reads the target's hidden states (EAGLE-3).

    SIGINT (Ctrl-C) and SIGTERM save the state in --work; the same command goes on from there.
    """
    if not overwrite and is_draft_checkpoint(out):
        raise SettingError("out", str(out), "holds a finished speculator; --overwrite replaces it at the end")
    place = pick_device(device)
    if threads:
        torch.set_num_threads(threads)
    directory = resolve_model(model)
    config = load_config(directory)
    if not LABEL_WIDTH <= vocabulary <= config.vocab_size:
        raise SettingError("vocabulary", vocabulary, f"must be {LABEL_WIDTH} to {config.vocab_size}")
    base = load_eagle(start, directory) if start is not None else None
    own = base.layers if base is not None else feature_layers(layers, config)
    runner = ModelRunner.load(directory, RunnerOptions(kv_tokens=CACHE_TOKENS, device=place))
    training, held_out, token_ids = prepare(
        runner, corpus, own, work, base.token_ids if base else vocabulary, steps
    )
    target = open_weights(directory, config)
    tensors = base.tensors if base is not None else starting_tensors(config, target, len(own), token_ids)
    student = EagleStudent(config, target[EMBEDDING], tensors).to(place)
    state = work / "state.pt"
    options = DistilOptions(minutes, learning_rate, seed=seed)
    seen = distil_with_bar(student, training, options, state, unrolled_loss)
    success = evaluate_unrolled(student, held_out, token_ids)
    for step, found in enumerate(success):
        console.print(f"held out, depth {step + 1}: {found}")
    command = f"specinfer train eagle --model {model} --layers {','.join(map(str, own))} --steps {steps} "
    trained = {
        # without paths: they mean nothing elsewhere
        "command": command
        + (f"--start {start.name} " if start is not None else "")
        + f"--vocabulary {len(token_ids)} --minutes {minutes:g} "
        + f"--learning-rate {learning_rate:g} --seed {seed}",
        "corpus": [path.name for path in corpus],
        "tokens_seen": seen,
        "success_held_out": [
            {f"top{k}": round(share, 4) for k, share in found.top.items()} for found in success
        ],
    }
    with deferred_signals():  # a checkpoint is whole or not there
        save_eagle(out, EagleSource(student.tensors(), token_ids, own), directory, model, trained)
        state.unlink()  # finished: whoever trains again begins anew
    console.print(f"saved {out}")


def feature_layers(text: str, config: ModelConfig) -> tuple[int, ...]:
    """Whose hidden states are read; by default a low one, the middle and the last (EAGLE-3 takes 2, half,
    and three below the last; the last is what Medusa's heads read, so features are sent once for both).

    Raises:
        SettingError: naming the bad number.
    """
    if not text:
        return tuple(sorted({min(2, config.layers), config.layers // 2, config.layers}))
    numbers = tuple(sorted(set(layer_numbers("layers", text))))
    if not numbers or not all(0 <= number <= config.layers for number in numbers):
        raise SettingError("layers", text, f"must be numbers from 0 to {config.layers}")
    return numbers


def prepare(
    runner: ModelRunner,
    corpora: list[Path],
    layers: tuple[int, ...],
    work: Path,
    vocabulary: int | torch.Tensor,
    steps: int,
) -> tuple[UnrolledExamples, UnrolledExamples, torch.Tensor]:
    """What is trained on, what is held out of the first corpus, and the draft vocabulary."""
    parts, held_out = read_corpora(corpora)
    first = [item for part in parts for item in part]
    if isinstance(vocabulary, int):
        vocabulary = torch.from_numpy(frequent_tokens(first, vocabulary))
    training, kept = (
        _examples(think_aloud(runner, part, layers, work), part, vocabulary.numpy(), steps)
        for part in (first, held_out)
    )
    return training, kept, vocabulary


def think_aloud(
    runner: ModelRunner, corpus: list[Continuation], layers: tuple[int, ...], work: Path
) -> list[Thoughts]:
    """The thoughts of all continuations, with a progress bar."""
    with progress_bar() as bar:
        task = bar.add_task("features", total=len(corpus))
        return think(
            runner,
            corpus,
            layers,
            work,
            lambda done, total: bar.update(task, completed=done, total=total),
        )


def _examples(
    thoughts: list[Thoughts], corpus: list[Continuation], vocabulary: NDArray[np.int64], steps: int
) -> UnrolledExamples:
    labels = [in_draft_vocabulary(thought.labels, vocabulary) for thought in thoughts]
    return UnrolledExamples(corpus, [thought.states for thought in thoughts], labels, steps)
