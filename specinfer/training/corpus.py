"""Training corpus: prompts with the target's continuations, as token ids.

A file has one JSON object per line, `{"p": [prompt ids], "o": [output ids]}`, optionally gzipped. Our files also have
the job's `id`, so that an interrupted run can continue, and labels: the target's most probable tokens at every output
token.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.errors import InvalidInputError
from specinfer.system.atomic_files import AppendFile, read_records
from specinfer.text.prompts import read_lines
from specinfer.text.tokenizer import Tokenizer

_MARK = "\u2063"
"""Placeholder of the user's text in a rendered chat template."""


def whole_prompt(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Encode a user turn; for a model without chat template, plain text."""
    if not tokenizer.has_chat_template:
        return tuple(tokenizer.encode(text))
    return tuple(tokenizer.encode_chat([{"role": "user", "content": text}]))


def open_prompt(tokenizer: Tokenizer, stop_tokens: Sequence[int]) -> tuple[int, ...]:
    """Encode a beginning from which the model invents a prompt.

    For a chat model the beginning ends before the user's text. For a base model it is the beginning-of-sequence token
    or a separator of texts.
    """
    if not tokenizer.has_chat_template:
        return tuple(tokenizer.encode("") or stop_tokens[:1])
    marked = tokenizer.encode_chat([{"role": "user", "content": _MARK}])
    plain = tokenizer.encode_chat([{"role": "user", "content": ""}])
    same = next(i for i, (a, b) in enumerate(zip(marked, plain, strict=False)) if a != b)
    return tuple(marked[:same])


def usable(tokenizer: Tokenizer, tokens: Sequence[int], stop_tokens: Sequence[int]) -> bool:
    """Return whether an invented prompt is a complete user turn with text.

    For a base model, any text is complete.
    """
    return len(tokens) > 4 and (tokens[-1] in stop_tokens or not tokenizer.has_chat_template)


HELD_OUT = 200
"""Maximum continuations that are held out of training."""


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of n output tokens: the target's K most probable tokens each."""

    ids: NDArray[np.int32]
    """[n, K] target ids in a corpus, draft vocabulary indices in training."""
    probabilities: NDArray[np.float16]
    """[n, K] the target's probabilities, renormalised over these tokens."""


@dataclass(frozen=True, slots=True)
class Continuation:
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    labels: Labels | None = field(default=None, compare=False)
    """Labels; None if the corpus has none."""

    @property
    def tokens(self) -> int:
        """Number of tokens of prompt and output."""
        return len(self.prompt) + len(self.output)


def read_corpus(path: Path) -> list[Continuation]:
    """Return all continuations of a file."""
    continuations = [_parse(line, f"{path}:{number}") for number, line in read_lines("corpus", path)]
    if not continuations:
        reason = "is empty: must have lines of JSON with token ids `p` (prompt) and `o` (output)"
        raise InvalidInputError("corpus", str(path), reason)
    return continuations


def _parse(line: str, place: str) -> Continuation:
    try:
        row = json.loads(line)
        output = tuple(row["o"])
        labels = _decoded(row["labels"], len(output)) if "labels" in row else None
        return Continuation(tuple(row["p"]), output, labels)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        reason = "must be JSON with token ids `p` (prompt) and `o` (output)"
        raise InvalidInputError(place, line[:60], reason) from error
    except ValueError as error:
        raise InvalidInputError(f"{place}: labels", line[:60], str(error)) from error


def _decoded(text: str, tokens: int) -> Labels:
    """Decode base64 labels: all ids (4 bytes), then all probabilities (2 bytes)."""
    data = base64.b64decode(text, validate=True)
    ids = np.frombuffer(data[: len(data) // 6 * 4], np.int32)
    probabilities = np.frombuffer(data[len(data) // 6 * 4 :], np.float16)
    return Labels(ids.reshape(tokens, -1), probabilities.reshape(tokens, -1))


def _encoded(labels: Labels) -> str:
    return base64.b64encode(labels.ids.tobytes() + labels.probabilities.tobytes()).decode()


def write_continuations(path: Path, rows: Iterable[tuple[str, Continuation]]) -> int:
    """Append (id, continuation) rows one by one; return the number of rows."""
    count = 0
    with closing(AppendFile(path)) as file:
        for job_id, item in rows:
            row = {"id": job_id, "p": list(item.prompt), "o": list(item.output)}
            labels = {"labels": _encoded(item.labels)} if item.labels is not None else {}
            file.append(json.dumps(row | labels).encode())
            count += 1
    return count


def finished_jobs(path: Path) -> dict[str, Continuation]:
    """Return an earlier run's continuations by id, without labels."""
    if not path.is_file():
        return {}
    records, _ = read_records(path)
    rows = map(json.loads, filter(None, records))
    return {row["id"]: Continuation(tuple(row["p"]), tuple(row["o"])) for row in rows}


def split_corpus(
    corpus: Sequence[Continuation], held_out: int
) -> tuple[list[Continuation], list[Continuation]]:
    """Return training data, and `held_out` continuations spread over the corpus."""
    step = max(1, len(corpus) // max(held_out, 1))
    chosen = set(range(0, len(corpus), step)[:held_out])
    training = [item for i, item in enumerate(corpus) if i not in chosen]
    return training, [corpus[i] for i in sorted(chosen)]


def read_corpora(paths: Sequence[Path]) -> tuple[list[list[Continuation]], list[Continuation]]:
    """Return training data by file, and held-out data of the first file.

    Continuations of held-out prompts are removed from all training data.
    """
    whole = read_corpus(paths[0])
    first, held_out = split_corpus(whole, min(HELD_OUT, -(-len(whole) // 10)))
    if not first:
        reason = "must have at least two continuations, since some are held out"
        raise InvalidInputError("corpus", str(paths[0]), reason)
    return [first, *(without_prompts_of(held_out, read_corpus(path)) for path in paths[1:])], held_out


def without_prompts_of(
    held_out: Iterable[Continuation], corpus: Iterable[Continuation]
) -> list[Continuation]:
    prompts = {item.prompt for item in held_out}
    return [item for item in corpus if item.prompt not in prompts]


def frequent_tokens(corpus: Iterable[Continuation], size: int) -> NDArray[np.int64]:
    """Return the `size` most frequent output tokens, in order of id (FR-Spec)."""
    counts = Counter(token for item in corpus for token in item.output)
    chosen = [token for token, _ in counts.most_common(size)]
    filler = (token for token in range(size * 2) if token not in counts)
    while len(chosen) < size:  # fill up with the first ids, which are frequent in BPE
        chosen.append(next(filler))
    return np.sort(np.array(chosen, np.int64))


class Teaching(Protocol):
    @property
    def next_tokens(self) -> torch.Tensor:
        """[R] the target's next token of each row."""

    def to(self, device: torch.device) -> Any:
        """Return the batch on a device."""


B = TypeVar("B", bound=Teaching, covariant=True)


class Material(Protocol[B]):
    """Training data that makes batches."""

    @property
    def corpus(self) -> Sequence[Continuation]:
        """Continuations of the data."""

    def batch(self, indices: Sequence[int]) -> B:
        """Return a batch of these continuations, padded on the right."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Padded sequences and the labels of their output positions."""

    token_ids: torch.Tensor
    rows: torch.Tensor
    label_ids: torch.Tensor
    label_probabilities: torch.Tensor
    next_tokens: torch.Tensor

    def to(self, device: torch.device) -> "TrainingBatch":
        return TrainingBatch(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Examples:
    """Training data: continuations, labels of their output tokens, a loss mask."""

    corpus: Sequence[Continuation]
    labels: Sequence[Labels]
    counted: Sequence[NDArray[np.bool_]] | None = None
    """Loss mask of each continuation's output tokens; None: all count."""

    def batch(self, indices: Sequence[int]) -> TrainingBatch:
        """Return a batch of these continuations, padded on the right."""
        items = [self.corpus[i] for i in indices]
        counted = [self.counted[i] for i in indices] if self.counted is not None else None
        return _batch(items, [self.labels[i] for i in indices], counted)


def batches(examples: Material[B], tokens: int, rng: np.random.Generator) -> Iterator[tuple[list[int], B]]:
    """Yield an epoch's (indices, batch) pairs in random order.

    A batch has sequences of similar length, about `tokens` tokens in all.
    """
    corpus = examples.corpus
    lengths = np.array([c.tokens - 1 for c in corpus])
    order = np.argsort(lengths + rng.uniform(0, 16, len(corpus)))
    groups: list[list[int]] = [[]]
    for index in order.tolist():
        if groups[-1] and lengths[index] * (len(groups[-1]) + 1) > tokens:
            groups.append([])
        groups[-1].append(index)
    for group in rng.permutation(len(groups)).tolist():
        yield groups[group], examples.batch(groups[group])


def _batch(
    items: Sequence[Continuation], labels: Sequence[Labels], counted: Sequence[NDArray[np.bool_]] | None
) -> TrainingBatch:
    width = max(c.tokens for c in items) - 1
    token_ids = np.zeros((len(items), width), np.int64)
    rows = []
    for i, item in enumerate(items):
        tokens = (item.prompt + item.output)[:-1]
        token_ids[i, : len(tokens)] = tokens
        rows.append(np.arange(len(item.prompt) - 1, len(tokens)) + i * width)
    chosen = np.concatenate(counted) if counted is not None else slice(None)
    p = np.concatenate([x.probabilities for x in labels]).astype(np.float32)[chosen]
    return TrainingBatch(
        torch.from_numpy(token_ids),
        torch.from_numpy(np.concatenate(rows)[chosen]),
        torch.from_numpy(np.concatenate([x.ids for x in labels]).astype(np.int64)[chosen]),
        torch.from_numpy(p / np.maximum(p.sum(-1, keepdims=True), 1e-6)),
        torch.from_numpy(np.concatenate([item.output for item in items])[chosen]),
    )
