"""Let the target read texts, and keep its hidden states."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.corpus import Continuation, open_prompt, whole_prompt
from specinfer.training.distil import console, progress_bar
from specinfer.training.reading.kept import KeptTexts
from specinfer.training.reading.texts import Piece

SEQUENCE_TOKENS = 512
PASS_TOKENS = 1024
"""Tokens of a pass: the kernels' speed is the same from 256 on."""
MAX_BYTES = 8_000_000_000
_LINE_EVERY_S = 60.0


class Turn(NamedTuple):
    digest: str
    item: Continuation


def as_answer(tokenizer: Tokenizer, piece: Piece, stop_tokens: Sequence[int]) -> Turn | None:
    """Return a piece as an answer in the served template; None if too short.

    For a model without chat template the piece is plain text. An answer that fits ends with a stop token.
    """
    chat = tokenizer.has_chat_template
    prompt = whole_prompt(tokenizer, piece.turn) if chat else open_prompt(tokenizer, stop_tokens)
    output = [*tokenizer.encode_part(piece.answer), *stop_tokens[:1]][: SEQUENCE_TOKENS - len(prompt)]
    if len(output) < 16 or not prompt:
        return None
    return Turn(piece.digest, Continuation(prompt, tuple(output)))


@dataclass(slots=True)
class ReadingPace:
    """Tokens read in a time, for the progress shown."""

    seconds: float
    """Seconds for the reading."""
    tokens: int = 0
    passed: float = 0.0

    def line(self) -> str:
        rate = self.tokens / max(self.passed, 1e-9)
        left = max(self.seconds - self.passed, 0) / 60
        return f"{self.tokens:,} tokens read, {rate:.0f} tokens/s, {left:.0f} minutes left"


def read_texts(
    runner: ModelRunner,
    tokenizer: Tokenizer,
    found: Iterable[Piece],
    kept: KeptTexts,
    layers: Sequence[int],
    seconds: float,
    max_bytes: int = MAX_BYTES,
) -> int:
    """Read pieces that are not kept yet for a time; return the number of tokens read.

    Every text is kept when its pass ends, so a stop loses one pass.
    """
    pace, began, stored = ReadingPace(seconds), time.monotonic(), kept.bytes()
    shown = began
    with progress_bar() as bar:
        task = bar.add_task("reading", total=seconds)
        for group in _groups(_unread(tokenizer, found, kept, runner.config.eos_token_ids)):
            stored += _read(runner, group, kept, layers)
            pace.tokens += sum(len(turn.item.prompt) + len(turn.item.output) for turn in group)
            pace.passed = time.monotonic() - began
            bar.update(task, completed=pace.passed, description=pace.line())
            if not console.is_terminal and time.monotonic() - shown > _LINE_EVERY_S:
                shown = time.monotonic()
                console.print(pace.line())
            if pace.passed >= seconds or stored >= max_bytes:
                break
    return pace.tokens


def _unread(
    tokenizer: Tokenizer, found: Iterable[Piece], kept: KeptTexts, stop_tokens: Sequence[int]
) -> Iterator[Turn]:
    for piece in found:
        turn = None if kept.has(piece.digest) else as_answer(tokenizer, piece, stop_tokens)
        if turn is not None:
            yield turn


def _groups(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    """Yield turns for one pass each."""
    group, tokens = list[Turn](), 0
    for turn in turns:
        length = len(turn.item.prompt) + len(turn.item.output)
        if group and tokens + length > PASS_TOKENS:
            yield group
            group, tokens = [], 0
        group.append(turn)
        tokens += length
    if group:
        yield group


def _read(runner: ModelRunner, group: Sequence[Turn], kept: KeptTexts, layers: Sequence[int]) -> int:
    """Run one pass without the output head; return the bytes kept."""
    segments = [Segment(runner.open(), (turn.item.prompt + turn.item.output)[:-1]) for turn in group]
    _, states = runner.forward_with_features(segments, layers)
    for segment in segments:
        runner.cache.release(segment.sequence)
    return sum(
        kept.keep(turn.digest, turn.item, of_text.float().numpy())
        for turn, of_text in zip(group, states, strict=True)
    )
