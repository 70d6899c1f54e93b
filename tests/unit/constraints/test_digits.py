"""The length of JSON numbers is bounded; strings may have any number of digits."""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.text.constraints.digits import MAX_DIGITS
from specinfer.text.constraints.matcher import Matcher
from tests.support.system import VOCABULARY, ascii_tokenizer, text_of

TOKENIZER = ascii_tokenizer()
COMPILER = Compiler(TOKENIZER.to_json(), VOCABULARY, [0])
LONG = "7" * (MAX_DIGITS + 8)


def matcher_of(schema: Any) -> Matcher:
    return COMPILER.compile(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))


def written(matcher: Matcher, wanted: str, max_length: int = 400) -> str:
    """Return the output of a model that always chooses the first allowed character of `wanted`."""
    text = ""
    while not matcher.finished and len(text) < max_length:
        mask = matcher.mask()
        allowed = text_of([token for token in range(1, VOCABULARY) if mask[token]])
        sign = next((sign for sign in wanted if sign in allowed), allowed[:1])
        if not sign:
            break
        matcher.read(TOKENIZER.encode(sign))
        text += sign
    return text


SCHEMAS: dict[str, Any] = {
    "number": {"type": "number"},
    "bounds": {"type": "number", "minimum": 0.1, "maximum": 0.3},
    "least": {"type": "number", "minimum": 5},
    "integer": {"type": "integer"},
    "anything": True,
    "either": {"type": ["number", "string"]},
    "time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
}


@pytest.mark.parametrize(("kind", "wanted"), list(product(SCHEMAS, ["91.e", "0.91", "-31.e+", "3P."])))
def test_numbers_end_for_any_model_output(kind: str, wanted: str) -> None:
    schema = {"properties": {"a": SCHEMAS[kind]}, "required": ["a"], "additionalProperties": False}
    text = written(matcher_of(schema | {"type": "object"}), f"{wanted}}}")
    assert isinstance(json.loads(text), dict)


def test_strings_keep_their_digits() -> None:
    for schema, text in (
        ({"type": "string"}, f'"{LONG}"'),
        ({"type": "string", "pattern": "^[0-9]{40}$"}, f'"{LONG}"'),
        ({"type": "object"}, f'{{"a\\"{LONG}": "{LONG}", "b": 1}}'),
    ):
        matcher_of(schema).read(TOKENIZER.encode(text))


@given(st.lists(st.integers(0, MAX_DIGITS + 3), min_size=1, max_size=4))
def test_tokens_are_read_if_the_mask_allows_them(cuts: list[int]) -> None:
    """Digits are read and taken back several times."""
    matcher = matcher_of({"type": "array", "items": {"type": "integer"}})
    matcher.read(TOKENIZER.encode("["))
    digits = TOKENIZER.encode("7" * (MAX_DIGITS + 4))
    for cut in cuts:
        assert matcher.try_read(digits[:cut]) == min(cut, MAX_DIGITS)
        copy = matcher.copy()
        assert bool(copy.mask()[digits[0]]) == (cut < MAX_DIGITS)
        matcher.take_back(min(cut, MAX_DIGITS))
    matcher.read(digits[:MAX_DIGITS])


def test_only_json_in_a_grammar_is_bounded() -> None:
    grammar = Constraint(
        ConstraintKind.GRAMMAR,
        'start: /[0-9 "]*/ (json)?\njson: %json {"type": "array", "items": {"type": "number"}}',
    )
    matcher = COMPILER.compile(grammar)
    matcher.read(TOKENIZER.encode(f'{LONG} " '))
    assert matcher.try_read(TOKENIZER.encode(f"[{LONG}")) == 1 + MAX_DIGITS
    free = COMPILER.compile(Constraint(ConstraintKind.REGEX, r"\[[0-9]*\]"))
    free.read(TOKENIZER.encode(f"[{LONG}]"))
