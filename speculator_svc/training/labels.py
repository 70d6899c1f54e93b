"""What the target says after every output token of a corpus: its most probable draft tokens.

Soft labels teach far more per token than the tokens alone. One pass per continuation, computed once,
kept in chunks on disk so that an interrupted run goes on where it stopped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from speculator_svc.training.corpus import Continuation

CHUNK = 100


@dataclass(frozen=True, slots=True)
class Labels:
    """For one continuation of n output tokens: the target's K most probable draft tokens at each."""

    ids: NDArray[np.int32]
    """[n, K] indices into the draft vocabulary."""
    probabilities: NDArray[np.float16]
    """[n, K] the target's probabilities, renormalised over these tokens."""


def label_corpus(
    runner: ModelRunner,
    corpus: Sequence[Continuation],
    vocabulary: NDArray[np.int64],
    directory: Path,
    width: int,
    report: Callable[[int, int], None],
) -> list[Labels]:
    """Labels of all continuations, in order."""
    directory.mkdir(parents=True, exist_ok=True)
    labels: list[Labels] = []
    for start in range(0, len(corpus), CHUNK):
        path = directory / f"labels-{start:06d}.npz"
        if not path.is_file():
            _write(path, [_label(runner, item, vocabulary, width) for item in corpus[start : start + CHUNK]])
        labels += _read(path)
        report(len(labels), len(corpus))
    return labels


def _label(runner: ModelRunner, item: Continuation, vocabulary: NDArray[np.int64], width: int) -> Labels:
    """One pass: the output but its last token, scored as a chain behind the prompt."""
    sequence = runner.open()
    chain = item.output[:-1]
    segment = Segment(sequence, item.prompt, chain, range(-1, len(chain) - 1), want_last=True)
    (logits,) = runner.forward([segment])
    runner.cache.release(sequence)
    columns = torch.from_numpy(vocabulary).to(logits.device)
    values, ids = logits.index_select(1, columns).topk(width, dim=-1)
    return Labels(ids.int().cpu().numpy(), values.softmax(-1).half().cpu().numpy())


def _write(path: Path, labels: Sequence[Labels]) -> None:
    partial = path.with_suffix(".part.npz")
    np.savez(
        partial,
        lengths=[len(x.ids) for x in labels],
        ids=np.concatenate([x.ids for x in labels]),
        probabilities=np.concatenate([x.probabilities for x in labels]),
    )
    partial.replace(path)


def _read(path: Path) -> list[Labels]:
    with np.load(path) as data:
        cuts = np.cumsum(data["lengths"])[:-1]
        pairs = zip(np.split(data["ids"], cuts), np.split(data["probabilities"], cuts), strict=True)
        return [Labels(ids, probabilities) for ids, probabilities in pairs]
