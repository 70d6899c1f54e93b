"""Conversion of tokens to text: stop strings across tokens, and incomplete characters."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from specinfer.scheduling.text import TextStream
from specinfer.text.tokenizer import Tokenizer
from tests.support.system import ascii_tokenizer

TOKENIZER = ascii_tokenizer()
TEXT = st.text(st.sampled_from("ab. "), max_size=30)


def chunks(text: str, cuts: list[int]) -> list[list[int]]:
    bounds = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    return [TOKENIZER.encode(text[a:b]) for a, b in pairwise(bounds)]


@given(TEXT, st.lists(st.integers(0, 30)), st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3))
def test_text_is_cut_before_the_first_stop_however_it_arrives(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    stream = TextStream(TOKENIZER, stops)
    out, used, stopped = "", 0, False
    parts = chunks(text, cuts)
    for index, tokens in enumerate(parts):
        piece = stream.push(tokens, last=index == len(parts) - 1)
        out += piece.text
        used += piece.used
        assert not any(stop in out for stop in stops)
        if piece.stopped:
            stopped = True
            break
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert stopped == bool(ends)
    if not ends:
        assert (out, stream.stop_string) == (text, "")
        return
    assert stream.stop_string in stops
    assert text[len(out) :].startswith(stream.stop_string)
    assert used == min(ends)[0], "tokens up to the one that completes a stop string count"
    assert out == text[: min(at for end, at in ends if end == min(ends)[0])]


@pytest.mark.parametrize("stops", [(), ("x.", "no")])
def test_tokens_that_end_a_request_are_not_part_of_the_text(stops: tuple[str, ...]) -> None:
    """This also applies to plain tokens, which some tokenizers use as ends of turns."""
    end = TOKENIZER.encode(".")[0]
    stream = TextStream(TOKENIZER, stops, ends={end})
    first, last = stream.push(TOKENIZER.encode("ax"), last=False), stream.push([end], last=True)
    assert (first.text + last.text, last.used, last.stopped) == ("ax", 1, False)
    resumed = TextStream(TOKENIZER, stops, ends={end})
    assert not resumed.skip([*TOKENIZER.encode("ax"), end])


def test_a_special_token_that_stops_is_named() -> None:
    fast = FastTokenizer.from_str(TOKENIZER.to_json())
    fast.add_special_tokens([AddedToken("<end>", special=True)])
    stream = TextStream(Tokenizer(fast, "", {}), ["ab.", "<end>"])
    last = stream.push([*TOKENIZER.encode("ab"), fast.token_to_id("<end>")], last=True)
    assert (last.text, last.stopped, stream.stop_string) == ("ab", True, "<end>")


def test_possible_beginnings_of_a_stop_are_held_back() -> None:
    stream = TextStream(TOKENIZER, ["ab."])
    assert stream.push(TOKENIZER.encode("xa"), last=False).text == "x"
    assert stream.push(TOKENIZER.encode("b"), last=False).text == ""
    assert stream.push(TOKENIZER.encode("c"), last=False).text == "abc"


@given(TEXT, st.integers(0, 30), st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3))
def test_a_resumed_stream_has_the_rest_of_the_text(text: str, place: int, stops: list[str]) -> None:
    tokens = TOKENIZER.encode(text)
    whole, resumed = TextStream(TOKENIZER, stops), TextStream(TOKENIZER, stops)
    before = whole.push(tokens[:place], last=False)
    assert resumed.skip(tokens[:place]) == before.stopped
    assert resumed.push(tokens[place:], last=True).text == whole.push(tokens[place:], last=True).text


def test_a_long_text_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stop string is searched only in new text and a few characters before it."""
    searched = 0

    class Seen(str):
        def find(self, stop: str, start: int = 0) -> int:  # type: ignore[override]
            nonlocal searched
            searched += len(self) - start
            return str.find(self, stop, start)

        def __add__(self, other: str) -> "Seen":
            return Seen(str.__add__(self, other))

        def __getitem__(self, key: Any) -> "Seen":
            return Seen(str.__getitem__(self, key))

    text, stream = "ab " * 3000, TextStream(TOKENIZER, ["never", "no"])
    stream._pending = Seen("")
    assert stream.push(TOKENIZER.encode(text), last=True).text == text
    assert searched <= 2 * 6 * len(text)
    monkeypatch.setattr(TOKENIZER, "decode", None)  # not used
    assert not TextStream(TOKENIZER, ["never"]).skip(TOKENIZER.encode(text))


@pytest.mark.slow
def test_characters_of_several_tokens_are_given_out_whole(default_model: Path) -> None:
    tokenizer = Tokenizer.load(default_model)
    text = "naïve 🦙🇩🇪 – Größe 漢字"
    stream = TextStream(tokenizer, [])
    pieces = [stream.push([token], last=False).text for token in tokenizer.encode(text)]
    pieces.append(stream.push([], last=True).text)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.slow
def test_the_text_up_to_a_position_does_not_depend_on_how_the_tokens_were_cut(default_model: Path) -> None:
    """A client may attach in the middle of a character or of a stop string."""
    tokenizer, rng = Tokenizer.load(default_model), np.random.default_rng(5)
    pool = [*tokenizer.encode("naïve 日本語 🙂🙃 text, (and) more…\n"), *range(100, 230)]
    for stops in ((), ("日本", "more")):
        for _ in range(100):
            tokens = rng.choice(pool, 30).tolist()
            cut = int(rng.integers(1, 30))
            whole, resumed = TextStream(tokenizer, stops), TextStream(tokenizer, stops)
            pieces = [whole.push([token], last=False) for token in tokens]
            resumed.skip(tokens[:cut])
            rest = resumed.push(tokens[cut:], last=False).text
            if not any(piece.stopped for piece in pieces):
                assert rest == "".join(piece.text for piece in pieces[cut:])
