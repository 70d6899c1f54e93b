"""What the target says after every output token of a corpus: its most probable draft tokens.

Soft labels teach far more per token than the tokens alone. A corpus that we made has them; for another the
target takes one pass per continuation, once, kept in chunks on disk so that an interrupted run goes on
where it stopped.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from speculator_svc.training.corpus import Continuation, Labels
from speculator_svc.training.generate import most_probable

LABEL_WIDTH = 32
"""K of labels that we make."""
CHUNK = 100


def in_draft_vocabulary(labels: Labels, vocabulary: NDArray[np.int64]) -> Labels:
    """A corpus's labels for a drafter: tokens it does not know get probability 0, the others all of it.

    Where it knows none of them, all probabilities are 0.
    """
    places = np.searchsorted(vocabulary, labels.ids).clip(max=len(vocabulary) - 1)
    p = np.where(vocabulary[places] == labels.ids, labels.probabilities, np.float16(0))
    total = p.sum(-1, keepdims=True, dtype=np.float32)
    return Labels(places.astype(np.int32), (p / np.where(total > 0, total, 1)).astype(np.float16))


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
    probabilities, ids = most_probable(logits.index_select(1, columns), width)
    return Labels(ids.numpy(), probabilities.numpy())


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
