"""`specinfer train ssm`: train an SSM, or the next SSM of a boosted pool."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from specinfer.hub import resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.draft_checkpoint import (
    load_ssm,
    save_ssm,
    target_config,
)
from specinfer.options.flag_groups import grouped
from specinfer.training.corpus import Continuation, Examples, frequent_tokens, read_corpora
from specinfer.training.distil import (
    DistilOptions,
    Success,
    console,
    distil_with_bar,
    finishing,
    progress_bar,
    ranks,
    ssm_loss,
    success_by_depth,
)
from specinfer.training.generate import LABEL_WIDTH, in_draft_vocabulary, label_corpus
from specinfer.training.run import TrainingFlags, draft_vocabulary, place_for
from specinfer.training.student import Start, Student


def missed_by_all(pool: Sequence[Student], examples: Examples, vocabulary: torch.Tensor) -> Examples:
    """Mask the loss except at tokens missed by every SSM's best guess."""
    places = [ranks(student, examples, vocabulary, 1) for student in pool]
    counted = [np.minimum.reduce(places_of_all) > 0 for places_of_all in zip(*places, strict=True)]
    return Examples(examples.corpus, examples.labels, counted)


def pool_report(
    pool: Sequence[Student], examples: Examples, vocabulary: torch.Tensor
) -> list[dict[str, float]]:
    """Return the success of each SSM, and of the growing pool."""
    size = len(pool)
    places = np.array([np.concatenate(ranks(student, examples, vocabulary, size)) for student in pool])
    return [
        {
            "top1": round(float((places[i] == 0).mean()), 4),
            "union": round(float((places[: i + 1] == 0).any(0).mean()), 4),
            "first_ssm_with_as_many_guesses": round(float((places[0] <= i).mean()), 4),
        }
        for i in range(size)
    ]


TargetLayers = Annotated[
    str,
    typer.Option(
        help="Target layers to start from, numbers from 0, such as 0,29; not given: the first and the last, "
        "or all of --start."
    ),
]
InsertedLayers = Annotated[
    str,
    typer.Option(
        help="Target layers, numbers from 0, to insert before the last layer of --start. Their outputs start "
        "at zero."
    ),
]
Pool = Annotated[
    list[Path] | None, typer.Option(help="Boosting: learn only the tokens that these SSMs all miss.")
]


@grouped
def train_ssm(
    asked: TrainingFlags,
    work: Annotated[Path, typer.Option(help="Directory of labels and state; a rerun continues it.")],
    layers: TargetLayers = "",
    start: Annotated[
        Path | None,
        typer.Option(help="Start from this SSM or a smaller model with the target's embeddings."),
    ] = None,
    insert: InsertedLayers = "",
    after: Pool = None,
    minutes: Annotated[float, typer.Option(min=0, help="Training time, without labels.")] = 60.0,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
) -> None:
    """Distil the target into a small model that drafts for it.

    SIGINT (Ctrl-C) and SIGTERM save the state in --work; the same command continues from there.
    """
    asked.check("SSM")
    place = place_for(asked.device, asked.threads)
    directory = resolve_model(asked.model)
    config = target_config(directory)
    pool = [load_ssm(path, directory) for path in after or ()]
    begin = Start.read(directory, start, layers, insert)
    given = begin.ssm or (pool[0] if pool else None)
    tokens = draft_vocabulary(asked.vocabulary, config.vocab_size) if given is None else given.token_ids
    runner = load_checked(directory, RunnerOptions(kv_tokens=8192, device=place))
    data = _prepare(runner, asked.corpus, work, tokens)
    student = begin.student(data.token_ids).to(place)
    state = work / "state.pt"
    pool_students = [Student.from_draft(draft).to(place) for draft in pool]
    examples = missed_by_all(pool_students, data.training, data.token_ids) if pool_students else data.training
    options = DistilOptions(minutes, learning_rate, seed=asked.seed)
    seen = distil_with_bar(student, examples, options, state, ssm_loss)
    places = ranks(student, data.held_out, data.token_ids, 5)
    success = success_by_depth(places)
    console.print(f"held out: {success[0]}")
    command = (
        f"specinfer train ssm --model {asked.model} --vocabulary {len(data.token_ids)} "
        f"{_origin(begin, start, insert, after or ())} "
        f"--minutes {minutes:g} --learning-rate {learning_rate:g} --seed {asked.seed}"
    )
    trained = _record(command, asked.corpus, options, seen, success)
    if pool_students:
        report = pool_report([*pool_students, student], data.held_out, data.token_ids)
        console.print(f"held out, per added SSM: {report}")
        trained["pool_held_out"] = report
    with finishing(state, asked.out):
        save_ssm(
            asked.out, student.tensors(), data.token_ids, student.config, directory, asked.model, trained
        )


def _origin(begin: Start, start: Path | None, insert: str, after: Sequence[Path]) -> str:
    """Return the command-line flags of the initial weights, without paths."""
    flags = [f"--start {start.name}"] if start is not None else []
    flags += [f"--layers {','.join(map(str, begin.layers))}"] if begin.ssm is None else []
    flags += [f"--insert {insert}"] if insert else []
    return " ".join([*flags, *(f"--after {path.name}" for path in after)])


def _record(
    command: str, corpus: Sequence[Path], options: DistilOptions, seen: int, success: Sequence[Success]
) -> dict[str, object]:
    return {
        "command": command,
        "corpus": [path.name for path in corpus],
        "tokens_seen": seen,
        "minutes": options.minutes,
        "seed": options.seed,
        "success_held_out": [of_depth.to_json() for of_depth in success],
    }


@dataclass(frozen=True, slots=True)
class _Data:
    training: Examples
    held_out: Examples
    token_ids: torch.Tensor
    """[draft vocabulary] target ids, ascending."""


def _prepare(
    runner: ModelRunner, corpora: Sequence[Path], work: Path, vocabulary: int | torch.Tensor
) -> _Data:
    """Read and label all corpora; split off held-out data."""
    parts, held_out = read_corpora(corpora)
    if isinstance(vocabulary, int):
        token_ids = torch.from_numpy(frequent_tokens([item for part in parts for item in part], vocabulary))
    else:
        token_ids = vocabulary
    labelled = [
        _label(runner, part, token_ids, work, f"labels {number}")
        for number, part in enumerate((*parts, held_out), 1)
    ]
    training = Examples(
        [item for part in labelled[:-1] for item in part.corpus],
        [x for part in labelled[:-1] for x in part.labels],
    )
    return _Data(training, labelled[-1], token_ids)


def _label(
    runner: ModelRunner, corpus: list[Continuation], token_ids: torch.Tensor, work: Path, what: str
) -> Examples:
    """Label a corpus, with a cache in `work`."""
    vocabulary = token_ids.numpy()
    unlabelled = [item for item in corpus if item.labels is None]
    digest = hashlib.blake2b(vocabulary.tobytes(), digest_size=6)
    for item in unlabelled:
        digest.update(np.array([*item.prompt, -1, *item.output], np.int32).tobytes())
    with progress_bar() as bar:
        task = bar.add_task(what, total=len(unlabelled))
        made = label_corpus(
            runner,
            unlabelled,
            vocabulary,
            work / f"labels-{digest.hexdigest()}",
            LABEL_WIDTH,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    rest = iter(made)
    labels = [in_draft_vocabulary(x.labels, vocabulary) if x.labels else next(rest) for x in corpus]
    return Examples(corpus, labels)
