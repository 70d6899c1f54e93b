"""Let the target read texts, and keep its hidden states."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config import ModelConfig
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.corpus import Continuation, open_prompt, whole_prompt
from specinfer.training.distil import LONGEST_STEP_S, console, progress_bar
from specinfer.training.reading.kept import KeptTexts
from specinfer.training.reading.texts import FoundText

SEQUENCE_TOKENS = 512
PASS_TOKENS = 1024
"""Tokens of a pass: the kernels' speed is the same from 256 on."""
MAX_BYTES = 8_000_000_000
_LINE_EVERY_S = 60.0


class AnswerText(NamedTuple):
    digest: str
    item: Continuation


def as_answer(
    tokenizer: Tokenizer, piece: FoundText, stop_tokens: Sequence[int], tokens: int
) -> AnswerText | None:
    """Return a piece as an answer in the served template; None if it is too short.

    `tokens` is the maximum of prompt and answer. For a model without chat template the piece is plain text. An
    answer that fits ends with a stop token.
    """
    chat = tokenizer.has_chat_template
    prompt = whole_prompt(tokenizer, piece.turn) if chat else open_prompt(tokenizer, stop_tokens)
    output = [*tokenizer.encode_part(piece.answer), *stop_tokens[:1]][: max(0, tokens - len(prompt))]
    if len(output) < 16 or not prompt:
        return None
    return AnswerText(piece.digest, Continuation(prompt, tuple(output)))


def read_texts(
    runner: ModelRunner,
    tokenizer: Tokenizer,
    found: Iterable[FoundText],
    kept: KeptTexts,
    layers: Sequence[int],
    seconds: float,
    max_bytes: int = MAX_BYTES,
) -> int:
    """Read pieces that are not kept yet for a time; return the number of tokens read.

    Every text is kept when its pass ends, so a stop loses one pass.
    """
    tokens, passed, stored, last = 0, 0.0, kept.bytes(), time.monotonic()
    shown = last
    with progress_bar() as bar:
        task = bar.add_task("reading", total=seconds)
        for group in _groups(_unread(tokenizer, found, kept, runner.config)):
            stored += _read(runner, group, kept, layers)
            tokens += sum(len(text.item.prompt) + len(text.item.output) for text in group)
            now = time.monotonic()
            passed, last = passed + min(now - last, LONGEST_STEP_S), now
            left = max(seconds - passed, 0) / 60
            line = (
                f"{tokens:,} tokens read, {tokens / max(passed, 1e-9):.0f} tokens/s, {left:.0f} minutes left"
            )
            bar.update(task, completed=passed, description=line)
            if not console.is_terminal and now - shown > _LINE_EVERY_S:
                shown = now
                console.print(line)
            if passed >= seconds or stored >= max_bytes:
                break
    return tokens


def _unread(
    tokenizer: Tokenizer, found: Iterable[FoundText], kept: KeptTexts, config: ModelConfig
) -> Iterator[AnswerText]:
    stops, tokens = config.eos_token_ids, min(SEQUENCE_TOKENS, config.max_positions)
    for piece in found:
        text = None if kept.has(piece.digest) else as_answer(tokenizer, piece, stops, tokens)
        if text is not None:
            yield text


def _groups(texts: Iterable[AnswerText]) -> Iterator[list[AnswerText]]:
    """Yield texts for one pass each."""
    group, tokens = list[AnswerText](), 0
    for text in texts:
        length = len(text.item.prompt) + len(text.item.output)
        if group and tokens + length > PASS_TOKENS:
            yield group
            group, tokens = [], 0
        group.append(text)
        tokens += length
    if group:
        yield group


def _read(runner: ModelRunner, group: Sequence[AnswerText], kept: KeptTexts, layers: Sequence[int]) -> int:
    """Run one pass without the output head; return the bytes kept."""
    segments = [Segment(runner.open(), (text.item.prompt + text.item.output)[:-1]) for text in group]
    _, states = runner.forward_with_features(segments, layers)
    for segment in segments:
        runner.cache.release(segment.sequence)
    return sum(
        kept.keep(text.digest, text.item, of_text.float().numpy())
        for text, of_text in zip(group, states, strict=True)
    )
