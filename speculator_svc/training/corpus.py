"""The training corpus: prompts with the target's own continuations, as token ids.

One JSON object per line, `{"p": [prompt ids], "o": [output ids]}`, optionally gzipped; lines we write carry
the job's `id`, by which an interrupted run knows what is done. Knows no model.
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
        return Continuation(tuple(row["p"]), tuple(row["o"]))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidInputError(place, line[:60], "needs `p` and `o`") from error


def write_continuations(path: Path, rows: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> int:
    """Appends (id, prompt, output) lines as they come, flushed one by one; returns how many."""
    count = 0
    with path.open("a") as file:
        for job_id, prompt, output in rows:
            file.write(json.dumps({"id": job_id, "p": list(prompt), "o": list(output)}) + "\n")
            file.flush()
            count += 1
    return count


def finished_jobs(path: Path) -> dict[str, Continuation]:
    """What an earlier run wrote, by id; a line cut short by its death is taken off the file."""
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
