"""The training corpus: prompts with the target's own continuations, as token ids.

One JSON object per line, `{"p": [prompt ids], "o": [output ids]}`, optionally gzipped. Knows no model.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Continuation:
    """One prompt and what the target said."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


def read_corpus(path: Path) -> list[Continuation]:
    """All continuations of a file.

    Raises:
        InvalidInputError: naming file and line.
    """
    found = []
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                found.append(Continuation(tuple(row["p"]), tuple(row["o"])))
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise InvalidInputError(f"{path}:{number}", line[:60], "needs `p` and `o`") from error
    return found


def split_corpus(
    corpus: Sequence[Continuation], held_out: int
) -> tuple[list[Continuation], list[Continuation]]:
    """Every n-th continuation is held out, `held_out` of them, so that both parts hold all kinds."""
    step = max(1, len(corpus) // max(held_out, 1))
    chosen = set(range(0, len(corpus), step)[:held_out])
    training = [item for i, item in enumerate(corpus) if i not in chosen]
    return training, [corpus[i] for i in sorted(chosen)]


def frequent_tokens(corpus: Iterable[Continuation], size: int) -> NDArray[np.int64]:
    """The `size` most frequent output tokens, in order of id: the draft vocabulary (FR-Spec)."""
    counts = Counter(token for item in corpus for token in item.output)
    chosen = [token for token, _ in counts.most_common(size)]
    filler = (token for token in range(size * 2) if token not in counts)
    while len(chosen) < size:  # a small corpus: fill up with the first ids, the most frequent of a BPE
        chosen.append(next(filler))
    return np.sort(np.array(chosen, np.int64))
