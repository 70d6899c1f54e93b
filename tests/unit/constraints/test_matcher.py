"""Allowed and forced tokens of a constraint, for simple regular expressions."""

import numpy as np
import pytest

from specinfer.errors import ConstraintError, IncompatibleError, InvalidInputError
from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.text.constraints.matcher import Matcher
from tests.support.system import VOCABULARY, ascii_tokenizer, text_of

EOS = 0
TOKENIZER = ascii_tokenizer()


def matcher_of(regex: str) -> Matcher:
    compiler = Compiler(TOKENIZER.to_json(), VOCABULARY, [EOS])
    return compiler.compile(Constraint(ConstraintKind.REGEX, regex))


def allowed(matcher: Matcher) -> str:
    """Return the characters that may follow, and $ if the sequence may end."""
    tokens = np.flatnonzero(matcher.mask()).tolist()
    return text_of(tokens) + ("$" if EOS in tokens else "")


def test_the_end_is_allowed_only_where_the_text_may_end() -> None:
    matcher = matcher_of("ab*c?")
    assert allowed(matcher) == "a"
    matcher.read(TOKENIZER.encode("a"))
    assert allowed(matcher) == "bc$"
    matcher.read(TOKENIZER.encode("bb"))
    assert allowed(matcher) == "bc$"
    assert not matcher.finished
    matcher.read(TOKENIZER.encode("c"))
    assert matcher.finished
    matcher.take_back(3)
    assert (allowed(matcher), matcher.finished) == ("bc$", False)
    matcher.read([EOS])
    assert matcher.finished


def test_what_may_not_follow_is_not_read() -> None:
    matcher = matcher_of("abc")
    assert matcher.try_read(TOKENIZER.encode("abd")) == 2
    matcher.take_back(2)
    with pytest.raises(ConstraintError, match="token at index 2 of 3"):
        matcher.read(TOKENIZER.encode("abd"))
    assert allowed(matcher) == "a"
    assert matcher.try_read([EOS]) == 0


@pytest.mark.parametrize("eos", [EOS, 2])
@pytest.mark.parametrize(
    ("regex", "text"), [("ab\u00e9", "ab"), ("(yes|no)( \u00fc){2}", "no"), ("[a-c]{2}\u00e9x", "ab")]
)
def test_text_that_no_token_can_write_allows_no_token(regex: str, text: str, eos: int) -> None:
    """Token 2 writes the blank; where it also ends the text, it writes none."""
    compiler = Compiler(TOKENIZER.to_json(), VOCABULARY, [eos])
    matcher = compiler.compile(Constraint(ConstraintKind.REGEX, regex))
    matcher.read(TOKENIZER.encode(text))
    if "( " in regex and eos != 2:
        assert matcher.mask()[2]
        matcher.read([2])
    assert not matcher.mask().any()


def test_forced_tokens_are_the_only_text_that_may_follow() -> None:
    matcher = matcher_of("x(hello|help)!")
    assert text_of(matcher.forced()) == "xhel"
    matcher.read(TOKENIZER.encode("xhell"))
    assert text_of(matcher.forced()) == "o!"
    matcher.read(TOKENIZER.encode("o!"))
    assert matcher.forced() == []


def test_copies_read_by_themselves() -> None:
    compiler = Compiler(TOKENIZER.to_json(), VOCABULARY, [EOS])
    constraint = Constraint(ConstraintKind.REGEX, "ab|cd")
    first, second = (compiler.ready(constraint, 10.0) for _ in range(2))
    assert first is not None
    assert second is not None
    first.read(TOKENIZER.encode("a"))
    second.read(TOKENIZER.encode("c"))
    assert (allowed(first), allowed(second)) == ("b", "d")


def test_token_ids_that_the_tokenizer_lacks_are_never_allowed() -> None:
    compiler = Compiler(TOKENIZER.to_json(), VOCABULARY + 7, [EOS])
    mask = compiler.compile(Constraint(ConstraintKind.REGEX, "[^a]*")).mask()
    assert mask.shape == (VOCABULARY + 7,)
    assert not mask[VOCABULARY:].any()


def test_bad_constraints_do_not_stay_bad_for_others() -> None:
    compiler = Compiler(TOKENIZER.to_json(), VOCABULARY, [EOS])
    with pytest.raises(InvalidInputError, match="unclosed group"):
        compiler.ready(Constraint(ConstraintKind.REGEX, "(a"), 10.0)
    assert compiler.ready(Constraint(ConstraintKind.REGEX, "a"), 10.0) is not None


def test_a_tokenizer_without_bytes_allows_no_constraints() -> None:
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(IncompatibleError, match="tokenizer"):
        Compiler(words.to_str(), 1, [0])
