"""Let the target read texts, and keep its hidden states."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config import ModelConfig
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.corpus import Continuation, open_prompt, whole_prompt
from specinfer.training.distil import LONGEST_STEP_S, Reports, progress_bar
from specinfer.training.reading.kept import KeptText, KeptTexts
from specinfer.training.reading.texts import FoundText, parts_within

SEQUENCE_TOKENS = 512
PASS_TOKENS = 1024
"""Maximum tokens of a pass; passes of half of it are as fast a token."""
MAX_BYTES = 8_000_000_000


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
    seconds: float,
    max_bytes: int = MAX_BYTES,
) -> int:
    """Read pieces that are not kept yet for a time; return the number of tokens read.

    Every text is kept when its pass ends, so a stop loses one pass.
    """
    tokens, passed, stored, last = 0, 0.0, kept.bytes(), time.monotonic()
    with progress_bar() as bar:
        shown = Reports(bar, "reading", seconds / 60)
        for group in _groups(_unread(tokenizer, found, kept, runner.config)):
            stored += _read(runner, group, kept)
            tokens += sum(text.item.tokens for text in group)
            now = time.monotonic()
            passed, last = passed + min(now - last, LONGEST_STEP_S), now
            shown.show(passed / 60, tokens, "read ")
            if passed >= seconds or stored >= max_bytes:
                break
    return tokens


def digest_of(tokens: Sequence[int]) -> str:
    return hashlib.blake2b(np.array(tokens, np.int32).tobytes(), digest_size=8).hexdigest()


def read_corpus_texts(runner: ModelRunner, corpus: Sequence[Continuation], kept: KeptTexts) -> list[KeptText]:
    """Return the kept texts of a corpus, after reading missing ones."""
    texts = [AnswerText(digest_of([*item.prompt, -1, *item.output]), item) for item in corpus]
    missing = [text for text in texts if not kept.has(text.digest)]
    with progress_bar() as bar:
        task = bar.add_task("features", total=len(missing))
        for group in _groups(missing):
            _read(runner, group, kept)
            bar.advance(task, len(group))
    return [kept.text(*text) for text in texts]


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
    return parts_within(texts, lambda text: text.item.tokens, PASS_TOKENS)


def _read(runner: ModelRunner, group: Sequence[AnswerText], kept: KeptTexts) -> int:
    """Run one pass without the output head; return the bytes kept."""
    segments = [Segment(runner.open(), (text.item.prompt + text.item.output)[:-1]) for text in group]
    _, states = runner.forward_with_features(segments, kept.layers)
    for segment in segments:
        runner.cache.release(segment.sequence)
    return sum(
        kept.keep(text.digest, text.item, of_text.float().numpy())
        for text, of_text in zip(group, states, strict=True)
    )
