"""The training corpus: prompts with the target's own continuations, as token ids.

One JSON object per line, `{"p": [prompt ids], "o": [output ids]}`, optionally gzipped. Lines we write carry
the job's `id`, by which an interrupted run knows what is done, and what the target thought most probable at
every output token, so that nobody has to ask it again. Knows no model.
"""

import base64
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import InvalidInputError

HELD_OUT = 200
"""Most continuations that are held out of training."""


@dataclass(frozen=True, slots=True)
class Labels:
    """For one continuation of n output tokens: the target's K most probable tokens at each."""

    ids: NDArray[np.int32]
    """[n, K] token ids of the target in a corpus, indices into the draft vocabulary in training."""
    probabilities: NDArray[np.float16]
    """[n, K] the target's probabilities, renormalised over these tokens."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """One prompt and what the target said."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    labels: Labels | None = field(default=None, compare=False)
    """None where whoever wrote the corpus did not keep them."""


def read_corpus(path: Path) -> list[Continuation]:
    """All continuations of a file.

    Raises:
        InvalidInputError: naming file and line.
    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            found = [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]
    except OSError as error:
        raise InvalidInputError("corpus", str(path), error.strerror or "cannot be read") from error
    if not found:
        raise InvalidInputError("corpus", str(path), "no continuations in it")
    return found


def _parse(line: str, place: str) -> Continuation:
    try:
        row = json.loads(line)
        output = tuple(row["o"])
        labels = _decoded(row["labels"], len(output)) if "labels" in row else None
        return Continuation(tuple(row["p"]), output, labels)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidInputError(place, line[:60], "needs `p` and `o`") from error
    except ValueError as error:
        raise InvalidInputError(f"{place}: labels", line[:60], str(error)) from error


def _decoded(text: str, tokens: int) -> Labels:
    """Labels from base64: all ids (4 bytes each), then all probabilities (2 bytes each)."""
    data = base64.b64decode(text, validate=True)
    ids = np.frombuffer(data[: len(data) // 6 * 4], np.int32)
    probabilities = np.frombuffer(data[len(data) // 6 * 4 :], np.float16)
    return Labels(ids.reshape(tokens, -1), probabilities.reshape(tokens, -1))


def _encoded(labels: Labels) -> str:
    return base64.b64encode(labels.ids.tobytes() + labels.probabilities.tobytes()).decode()


def write_continuations(path: Path, rows: Iterable[tuple[str, Continuation]]) -> int:
    """Appends continuations by id as they come, flushed one by one; returns how many."""
    count = 0
    with path.open("a") as file:
        for job_id, item in rows:
            row = {"id": job_id, "p": list(item.prompt), "o": list(item.output)}
            labels = {"labels": _encoded(item.labels)} if item.labels is not None else {}
            file.write(json.dumps(row | labels) + "\n")
            file.flush()
            count += 1
    return count


def finished_jobs(path: Path) -> dict[str, Continuation]:
    """What an earlier run wrote, by id, without labels; a line cut short by its end is taken off."""
    if not path.is_file():
        return {}
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    rows = map(json.loads, whole.splitlines())
    return {row["id"]: Continuation(tuple(row["p"]), tuple(row["o"])) for row in rows}


def split_corpus(
    corpus: Sequence[Continuation], held_out: int
) -> tuple[list[Continuation], list[Continuation]]:
    """Every n-th continuation is held out, `held_out` of them, so that both parts hold all kinds."""
    step = max(1, len(corpus) // max(held_out, 1))
    chosen = set(range(0, len(corpus), step)[:held_out])
    training = [item for i, item in enumerate(corpus) if i not in chosen]
    return training, [corpus[i] for i in sorted(chosen)]


def read_corpora(paths: Sequence[Path]) -> tuple[list[list[Continuation]], list[Continuation]]:
    """What is trained on, by file, and what is held out: some of the first, whose prompts nowhere else count.

    Raises:
        InvalidInputError: naming file and line, or a first file of which nothing would be left.
    """
    whole = read_corpus(paths[0])
    first, held_out = split_corpus(whole, min(HELD_OUT, -(-len(whole) // 10)))
    if not first:
        raise InvalidInputError("corpus", str(paths[0]), "one continuation is not enough: some are held out")
    return [first, *(without_prompts_of(held_out, read_corpus(path)) for path in paths[1:])], held_out


def without_prompts_of(
    held_out: Iterable[Continuation], corpus: Iterable[Continuation]
) -> list[Continuation]:
    """What of a corpus may be trained on: nothing with a prompt that is held out."""
    prompts = {item.prompt for item in held_out}
    return [item for item in corpus if item.prompt not in prompts]


def frequent_tokens(corpus: Iterable[Continuation], size: int) -> NDArray[np.int64]:
    """The `size` most frequent output tokens, in order of id: the draft vocabulary (FR-Spec)."""
    counts = Counter(token for item in corpus for token in item.output)
    chosen = [token for token, _ in counts.most_common(size)]
    filler = (token for token in range(size * 2) if token not in counts)
    while len(chosen) < size:  # a small corpus: fill up with the first ids, the most frequent of a BPE
        chosen.append(next(filler))
    return np.sort(np.array(chosen, np.int64))
