"""Long texts: they have the same tokens as short ones, and other threads run meanwhile."""

import sys
import threading
import time
from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors

from specinfer.errors import InvalidInputError
from specinfer.text.tokenizer import Tokenizer

BOS = 0


def tokenizer(template: str | None = None) -> Tokenizer:
    """Return a tokenizer with a token per byte, and one that starts texts."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<bos>": BOS} | {character: i for i, character in enumerate(characters, 1)}
    fast = FastTokenizer(models.BPE(vocabulary, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return Tokenizer(fast, template, {})


def test_the_bytes_of_tokens_are_those_of_the_text() -> None:
    begun = tokenizer()
    begun._fast.decoder = decoders.ByteLevel()
    tokens = [begun.token_bytes(token) for token in begun.encode("a \u20ac\n")]
    assert tokens == [b"<bos>", b"a", b" ", b"\xe2", b"\x82", b"\xac", b"\n"]
    assert begun.token_bytes(5000) == b"[5000]"


def test_bytes_of_a_vocabulary_of_sentencepiece() -> None:
    fast = FastTokenizer(models.WordLevel({"<unk>": 0, "<0xE2>": 1, "\u2581the": 2, "cat": 3}, "<unk>"))
    stages = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    fast.decoder = decoders.Sequence(stages)
    tokenizer = Tokenizer(fast, None, {})
    assert [tokenizer.token_bytes(token) for token in (1, 2, 3)] == [b"\xe2", b" the", b"cat"]


def test_long_texts_have_the_same_tokens_as_short_ones() -> None:
    begun, plain = tokenizer(), tokenizer("{{ messages[0].content }}")
    short, long = "ab c\n" * 20, "ab c\n" * 2000
    assert begun.encode(short) == [BOS, *begun.encode(short)[1:]]
    assert begun.encode(long) == [BOS, *begun.encode(short)[1:] * 100]
    assert plain.encode_chat([{"role": "user", "content": short}]) == begun.encode(short)[1:]
    assert plain.encode_chat([{"role": "user", "content": long}]) == begun.encode(long)[1:]


@pytest.fixture
def no_thread_switches() -> Iterator[None]:
    """Threads keep the interpreter's lock until they release it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("no_thread_switches")
def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    turns, over = [0], threading.Event()

    def count() -> None:
        while not over.is_set():
            turns[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    text, encoding = "the quick brown fox " * 20_000, tokenizer()
    before = turns[0]
    for _ in range(100):  # a busy machine may not let the other thread run during one of them
        encoding.encode(text)
        if during := turns[0] - before:
            break
    over.set()
    thread.join()
    assert during > 0


def test_a_template_that_cannot_be_read_or_refuses_is_an_error_of_the_conversation() -> None:
    with pytest.raises(InvalidInputError, match=r"chat = \['user'\]"):
        tokenizer("{% if %}").encode_chat([{"role": "user", "content": "hi"}])
    with pytest.raises(InvalidInputError, match="no user"):
        tokenizer("{{ raise_exception('no user') }}").encode_chat([{"role": "system", "content": "hi"}])
