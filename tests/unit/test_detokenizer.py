"""Streamed text equals the tokenizer's text of all tokens, with constant work per token."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as FastTokenizer

from specinfer.text.byte_decoder import BYTES
from specinfer.text.detokenizer import Detokenizer
from specinfer.text.tokenizer import REPLACEMENT, Tokenizer
from tests.support.system import ascii_tokenizer

WORDS = ["▁", "▁a", "b", "▁▁", "ä", "日", ".", "▁x▁y", "##c", "d</w>", "▁é"]


def made(names: Sequence[str], decoder: Any) -> Tokenizer:
    """Return a tokenizer with the special token <s>, these tokens, and an added token that is not special."""
    fast = FastTokenizer(models.WordLevel({name: i for i, name in enumerate(["<s>", *names])}, "<s>"))
    fast.decoder = decoder
    fast.add_special_tokens(["<s>"])
    fast.add_tokens([AddedToken("[ü x]", normalized=False)])
    return Tokenizer(fast, None, {})


def byte_level() -> Tokenizer:
    characters = {byte: char for char, byte in BYTES.items()}
    texts = ["the ", "日本", "é", "🦙"]
    names = [characters[byte] for byte in range(256)]
    names += ["".join(characters[byte] for byte in text.encode()) for text in texts]
    return made(names, decoders.ByteLevel())


def sentencepiece(strip: int = 1) -> Tokenizer:
    stages: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    stages += [decoders.Strip(" ", strip, 0)] if strip else []
    return made([*(f"<0x{byte:02X}>" for byte in range(256)), *WORDS], decoders.Sequence(stages))


EXACT: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "byte_level_in_a_sequence": lambda: made(
        ["a", "Ġb", "Ã", "¤"], decoders.Sequence([decoders.ByteLevel()])
    ),
    "ascii": ascii_tokenizer,
    "metaspace": lambda: made(WORDS, decoders.Metaspace()),
    "metaspace_never": lambda: made(WORDS, decoders.Metaspace(prepend_scheme="never")),
    "fused": lambda: made(WORDS, decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])),
    "stripped_twice": lambda: made(
        WORDS,
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
    ),
}
"""Tokenizers whose streamed text always equals the text of all tokens."""
INEXACT: dict[str, Callable[[], Tokenizer]] = {
    "word_piece": lambda: made(WORDS, decoders.WordPiece()),
    "bpe_suffix": lambda: made(WORDS, decoders.BPEDecoder()),
    "ctc": lambda: made(WORDS, decoders.CTC()),
    "plain": lambda: made(WORDS, None),
}


def cut(tokens: Sequence[int], cuts: Sequence[int]) -> list[list[int]]:
    bounds = sorted({0, len(tokens), *(place % (len(tokens) + 1) for place in cuts)})
    return [list(tokens[a:b]) for a, b in pairwise(bounds)]


CUTS = st.lists(st.integers(0, 40), max_size=6)


@pytest.mark.parametrize("name", EXACT)
@given(data=st.data(), cuts=CUTS)
@settings(max_examples=300)
def test_the_text_is_that_of_all_tokens_for_any_division(name: str, data: Any, cuts: list[int]) -> None:
    tokenizer = EXACT[name]()
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=40))
    reader = Detokenizer(tokenizer)
    text = "".join([reader.push(part) for part in cut(tokens, cuts)])
    assert text + reader.flush() == tokenizer.decode(tokens)


_RUN = st.one_of(
    st.text(min_size=1, max_size=4).filter(lambda text: text.isprintable()).map(lambda text: text.encode()),
    st.sampled_from([b"\xff", b"\xe6\x97", b"\xf0\x9f\xa6", b"\xc3", b"\x80\x80", b"\xed\xa0\x80"]),
)
"""Bytes that are whole characters, or that contain no part of one.

SentencePiece decodes a mixed run of bytes as invalid, which is not known before the run ends.
"""


@given(st.lists(st.one_of(_RUN, st.integers(0, len(WORDS) - 1)), max_size=12), CUTS, st.integers(0, 2))
def test_byte_tokens_are_decoded_like_sentencepiece(
    parts: list[bytes | int], cuts: list[int], strip: int
) -> None:
    tokenizer, tokens = sentencepiece(strip), list[int]()
    for part in parts:
        if isinstance(part, bytes):
            tokens += [1 + byte for byte in part] + [1 + 256 + WORDS.index(".")]  # a word ends the run
        else:
            tokens += [1 + 256 + part, 0]  # a special token has no text
    reader = Detokenizer(tokenizer)
    text = "".join([reader.push(piece) for piece in cut(tokens, cuts)])
    assert text + reader.flush() == tokenizer.decode(tokens)


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@given(data=st.lists(st.integers(0, 255), max_size=30))
def test_bytes_wait_only_while_they_may_become_a_character(
    make: Callable[[], Tokenizer], data: list[int]
) -> None:
    """After each byte the text is complete except for bytes that may still become a character."""
    reader, shown = Detokenizer(make()), ""
    for place, byte in enumerate(data):
        shown += reader.push([1 + byte])
        pending = bytes(data[: place + 1])
        begun = [n for n in (1, 2, 3) if n <= len(pending) and _may_become_one(pending[-n:])]
        text = pending[: len(pending) - (begun[0] if begun else 0)].decode(errors="replace")
        plain = shown.replace(REPLACEMENT, "").lstrip(" ")
        assert plain == text.replace(REPLACEMENT, "").lstrip(" ")
        assert begun or not pending or shown.count(REPLACEMENT) >= text.count(REPLACEMENT)


def _may_become_one(data: bytes) -> bool:
    """Return True if these bytes begin a character, or a surrogate, which decoders also wait for."""
    if len(data) == 2 and data[0] == 0xED and 0xA0 <= data[1] <= 0xBF:
        return True
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and error.start == 0
    return False


def test_a_byte_that_is_repeated_forever_does_not_delay_the_text() -> None:
    """For example, `logit_bias` can force one byte token forever."""
    for make in (byte_level, sentencepiece):
        reader = Detokenizer(make())
        assert reader.push([1 + 0xE6]) == ""
        for _ in range(50):
            assert reader.push([1 + 0xE6]) == REPLACEMENT
            assert reader.push([1 + 0xFF]) == 2 * REPLACEMENT
            assert reader.push([1 + 0xE6]) == ""


@pytest.mark.parametrize("name", INEXACT)
@given(data=st.data(), cuts=CUTS)
def test_other_decoders_give_the_same_text_for_any_division(name: str, data: Any, cuts: list[int]) -> None:
    tokenizer = INEXACT[name]()
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size), max_size=20))
    one, many = Detokenizer(tokenizer), Detokenizer(tokenizer)
    single = "".join([one.push([token]) for token in tokens]) + one.flush()
    assert "".join([many.push(part) for part in cut(tokens, cuts)]) + many.flush() == single
    if name in ("word_piece", "plain"):
        assert single == tokenizer.decode(tokens)


class Counting(Tokenizer):
    """Records the number of tokens of each `decode` call."""

    decoded: list[int]

    def decode(self, token_ids: Any) -> str:
        tokens = list(token_ids)
        self.decoded.append(len(tokens))
        return super().decode(tokens)


@pytest.mark.parametrize("name", [*EXACT, *INEXACT])
def test_the_work_per_token_is_constant(name: str) -> None:
    plain = {**EXACT, **INEXACT}[name]()
    tokenizer = Counting(plain._fast, None, {})
    tokenizer.decoded = []
    reader, count = Detokenizer(tokenizer), 400
    for place in range(count):
        reader.push([1 + place % 2 * 200 % (tokenizer.vocab_size - 1)])
    if name in EXACT:
        assert tokenizer.decoded == []
    else:
        assert max(tokenizer.decoded) <= 8
        assert len(tokenizer.decoded) <= 2 * count


def test_incomplete_bytes_of_other_decoders_are_decoded_after_four_tokens() -> None:
    stages = [decoders.ByteFallback(), decoders.Replace("x", "y"), decoders.Fuse()]
    tokenizer = made([f"<0x{byte:02X}>" for byte in range(256)], decoders.Sequence(stages))
    assert tokenizer.byte_decoder is None
    reader = Detokenizer(tokenizer)
    text = "".join([reader.push([1 + 0xE6]) for _ in range(100)])
    assert len(text) >= 96


@pytest.mark.slow
def test_the_default_model_is_read_as_bytes(default_model: Path) -> None:
    tokenizer = Tokenizer.load(default_model)
    assert tokenizer.byte_decoder is not None
    text = "naïve 🦙🇩🇪 – Größe 漢字\n" + json.dumps({"a": [1, 2]})
    tokens = tokenizer.encode(text)
    reader = Detokenizer(tokenizer)
    assert "".join([reader.push([token]) for token in tokens]) == tokenizer.decode(tokens) == text
    specials = [t for t in range(tokenizer.vocab_size) if not tokenizer.is_text(t)]
    assert Detokenizer(tokenizer).push(specials) == tokenizer.decode(specials) == ""
