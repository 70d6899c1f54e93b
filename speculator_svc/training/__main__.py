"""`python -m speculator_svc.training` (and `specinfer train ssm`): trains one SSM for a target."""

import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specinfer.errors import SpecInferError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.config import load_config
from specinfer.model.draft_checkpoint import save_draft
from specinfer.model.runner import ModelRunner, RunnerOptions
from specinfer.model.weights import SafetensorsWeights
from speculator_svc.training.corpus import Continuation, frequent_tokens, read_corpus, split_corpus
from speculator_svc.training.distil import DistilOptions, distil, evaluate
from speculator_svc.training.labels import Labels, label_corpus
from speculator_svc.training.student import Student

console = Console(stderr=True)
HELD_OUT = 200
LABEL_WIDTH = 32


def train(
    corpus: Annotated[Path, typer.Option(help="Continuations by the target, JSONL, may be gzipped.")],
    out: Annotated[Path, typer.Option(help="Directory of the finished checkpoint.")],
    work: Annotated[Path, typer.Option(help="Directory of labels and state; a rerun goes on from it.")],
    model: Annotated[str, typer.Option(help="The target.")] = DEFAULT_MODEL,
    layers: Annotated[str, typer.Option(help="Target layers the SSM starts from.")] = "0,29",
    vocabulary: Annotated[int, typer.Option(help="Size of the draft vocabulary.")] = 8192,
    minutes: Annotated[float, typer.Option(help="Time to train, labels not counted.")] = 60.0,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Seed of the batches.")] = 0,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 leaves torch's default.")] = 0,
) -> None:
    """Distil the target into a small model that drafts for it."""
    if threads:
        torch.set_num_threads(threads)
    directory = resolve_model(model)
    training, held_out = split_corpus(read_corpus(corpus), HELD_OUT)
    chosen = frequent_tokens(training, vocabulary)
    runner = ModelRunner.load(directory, RunnerOptions(kv_tokens=8192))
    labels = _label(runner, training, chosen, work / "labels", "labels")
    held_out_labels = _label(runner, held_out, chosen, work / "labels_heldout", "labels, held out")
    del runner
    token_ids = torch.from_numpy(chosen)
    starts = [int(layer) for layer in layers.split(",")]
    student = Student(load_config(directory), SafetensorsWeights(directory), starts, token_ids)
    options = DistilOptions(minutes, learning_rate, seed=seed)
    started = time.time()
    seen = _distil(student, training, labels, options, work / "state.pt")
    success = evaluate(student, held_out, held_out_labels, token_ids)
    console.print(f"held out: {success}")
    trained = {
        # without paths: they mean nothing elsewhere
        "command": f"specinfer train ssm --model {model} --layers {layers} --vocabulary {vocabulary} "
        f"--minutes {minutes:g} --learning-rate {learning_rate:g} --seed {seed}",
        "corpus": corpus.name,
        "tokens_seen": seen,
        "minutes": round((time.time() - started) / 60, 1),
        "seed": seed,
        "success_held_out": {f"top{k}": round(share, 4) for k, share in success.top.items()},
    }
    save_draft(out, student.tensors(), token_ids, len(starts), directory, model, trained)
    console.print(f"saved {out}")


def _label(
    runner: ModelRunner, corpus: list[Continuation], vocabulary: NDArray[np.int64], directory: Path, what: str
) -> list[Labels]:
    with _bar() as bar:
        task = bar.add_task(what, total=len(corpus))
        return label_corpus(
            runner,
            corpus,
            vocabulary,
            directory,
            LABEL_WIDTH,
            lambda done, total: bar.update(task, completed=done, total=total),
        )


def _distil(
    student: Student, corpus: list[Continuation], labels: list[Labels], options: DistilOptions, state: Path
) -> int:
    with _bar() as bar:
        task = bar.add_task("training", total=options.minutes)
        average: list[float] = []

        def report(minutes: float, loss: float, seen: int) -> None:
            average.append(loss)
            del average[:-50]
            mean = sum(average) / len(average)
            bar.update(task, completed=minutes, description=f"loss {mean:.3f}, {seen / 1e6:.2f} M tokens")

        return distil(student, corpus, labels, options, state, report)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


if __name__ == "__main__":
    try:
        typer.run(train)
    except SpecInferError as error:
        print(f"specinfer train: error: {error}", file=sys.stderr)
        sys.exit(2)
