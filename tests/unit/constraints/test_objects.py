"""Objects take declared keys in any order: no key can be begun and not ended."""

import json
import random
from itertools import permutations
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.text.constraints.grammars import grammars_of
from specinfer.text.constraints.matcher import Matcher
from tests.support.system import text_of
from tests.unit.constraints.test_digits import COMPILER, TOKENIZER

END = 0
NAMES = ["a", "ab", "abc", "b", "x_1"]
VALUES: dict[str, Any] = {"integer": [0, -12], "boolean": [True], "null": [None], "string": ["", "a b"]}
DEFINITIONS = {
    "leaf": {"enum": ["red", 1, None]},
    "node": {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        },
        "required": ["a"],
    },
}


def objects(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda properties, asked, further: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in asked],
            **further,
        },
        st.dictionaries(st.sampled_from(NAMES), parts, max_size=4),
        st.sets(st.sampled_from(NAMES)),
        st.sampled_from(
            [
                *({}, {"additionalProperties": False}, {"additionalProperties": True}),
                {"additionalProperties": {"type": "boolean"}},
                {"patternProperties": {"^y": {"type": "null"}}, "additionalProperties": False},
            ]
        ),
    )


SCHEMAS = st.recursive(
    st.sampled_from(
        [*[{"type": kind} for kind in VALUES], {"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/node"}]
    ),
    lambda parts: st.one_of(
        objects(parts),
        st.builds(lambda part: {"type": "array", "items": part, "maxItems": 2}, parts),
        st.builds(lambda part: {"anyOf": [part, {"type": "null"}]}, parts),
        st.builds(lambda part: {"allOf": [part], "description": "d"}, parts),
    ),
    max_leaves=6,
)
ROOTS = objects(SCHEMAS).map(lambda schema: schema | {"$defs": DEFINITIONS})


def compiled(schema: Any, kind: str) -> Matcher:
    """Return a matcher of a schema's first grammar, which must be valid: others are for schemas that it refuses."""
    if kind == "schema":
        constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))
    else:
        grammar = f"start: %json {json.dumps(schema)}\nother: %json {{}}"
        constraint = Constraint(ConstraintKind.GRAMMAR, grammar)
    assert not LLMatcher.validate_grammar(next(grammars_of(constraint)))
    return COMPILER.compile(constraint)


def accepts(schema: Any, text: str, kind: str = "schema") -> bool:
    matcher, tokens = compiled(schema, kind), TOKENIZER.encode(text)
    return matcher.try_read(tokens) == len(tokens) and ended(matcher)


def ended(matcher: Matcher) -> bool:
    return matcher.finished or bool(matcher.mask()[END])


def written(schema: Any, choices: random.Random, depth: int = 0) -> Any:
    """Return a random value of a schema, with its keys in random order."""
    if "$ref" in schema:
        return written(DEFINITIONS[schema["$ref"].rpartition("/")[2]], choices, depth)
    if "enum" in schema:
        return choices.choice(schema["enum"])
    if "allOf" in schema:
        return written(schema["allOf"][0], choices, depth)
    if "anyOf" in schema:
        return None if depth > 3 else written(choices.choice(schema["anyOf"]), choices, depth)
    if schema["type"] == "array":
        return [written(schema["items"], choices, depth + 1) for _ in range(choices.randrange(3))]
    if schema["type"] != "object":
        return choices.choice(VALUES[schema["type"]])
    names = [name for name in schema["properties"] if name in schema["required"] or choices.random() < 0.5]
    choices.shuffle(names)
    return {name: written(schema["properties"][name], choices, depth + 1) for name in names}


@settings(max_examples=60, deadline=None)
@given(ROOTS, st.integers(0, 2**32), st.sampled_from(["schema", "grammar"]))
def test_values_are_taken_with_their_keys_in_any_order(schema: Any, seed: int, kind: str) -> None:
    value = written(schema, random.Random(seed))
    jsonschema.validate(value, schema)
    ordered = all_closed(schema)  # llguidance's order, which forbids other keys from their first letter
    assert ordered or accepts(schema, json.dumps(value), kind)


def all_closed(schema: Any) -> bool:
    """Return whether some object has its keys in the schema's order."""
    if isinstance(schema, list):
        return any(map(all_closed, schema))
    if not isinstance(schema, dict):
        return False
    return schema.get("additionalProperties") is False or any(map(all_closed, schema.values()))


@settings(max_examples=60, deadline=None)
@given(ROOTS, st.integers(0, 2**32), st.sampled_from(["schema", "grammar"]))
def test_every_text_follows_the_schema_and_no_declared_key_is_begun_in_vain(
    schema: Any, seed: int, kind: str
) -> None:
    choices, matcher, text = random.Random(seed), compiled(schema, kind), ""
    for _ in range(300):
        if ended(matcher):
            jsonschema.validate(json.loads(text), schema)
            break
        allowed = [int(token) for token in np.flatnonzero(matcher.mask())]
        if text.rstrip().endswith(("{", ",")) and TOKENIZER.encode('"')[0] in allowed and in_root(text):
            for name in schema["properties"]:
                assert not trapped(matcher.copy(), name), (text, name)
        letters = {text_of([token]): token for token in allowed}
        wanted = [letters[sign] for sign in '"}],:' if sign in letters] or allowed
        token = choices.choice(wanted if choices.random() < 0.7 else allowed)
        matcher.read([token])
        text += text_of([token])


def in_root(text: str) -> bool:
    """Return whether a string that begins here is a key of the outermost object."""
    depth, in_text = list[str](), False
    for place, sign in enumerate(text):
        if sign == '"' and (place == 0 or text[place - 1] != "\\"):
            in_text = not in_text
        elif not in_text and sign in "{[":
            depth.append(sign)
        elif not in_text and sign in "}]":
            depth.pop()
    return not in_text and depth == ["{"]


def trapped(matcher: Matcher, name: str) -> bool:
    """Return whether a key can be begun and not ended."""
    tokens = TOKENIZER.encode(f'"{name}')
    if matcher.try_read(tokens) < len(tokens):
        return False
    return not matcher.mask()[TOKENIZER.encode('"')[0]]


def test_required_keys_may_come_last_and_further_keys_only_then() -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in "abc"},
        "required": ["b", "c"],
    }
    for keys in permutations("abc"):
        assert accepts(schema, json.dumps(dict.fromkeys(keys, 1)))
    assert accepts(schema, '{"b": 1, "c": 2, "d": 3, "a": 4}')
    assert not accepts(schema, '{"d": 3, "b": 1, "c": 2}')
    assert not accepts(schema, '{"a": 1, "b": 1}')


def objects_of(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}


def constant(kind: str) -> dict[str, Any]:
    properties = {"b": {"type": "integer"}, "kind": {"const": kind}}
    return {"type": "object", "properties": properties, "required": ["kind"]}


OF_A, OF_B = objects_of("a"), objects_of("b")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": ["object", "integer"], "properties": {"a": {"type": "integer"}}}, '{"a": 1}', "true"),
        (
            {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "null"}}},
            '{"a": null}',
            '{"a": 1}',
        ),
        (
            {"type": "object", "properties": {"a": {"prefixItems": [{"type": "null"}], "type": "array"}}},
            '{"a": [null]}',
            '{"a": [1]}',
        ),
        ({"allOf": [OF_A, OF_B]}, '{"b": 1, "a": 1}', '{"b": 1, "a": true}'),
        ({"oneOf": [constant("x"), constant("y")]}, '{"b": 1, "kind": "x"}', '{"kind": "z"}'),
        ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": OF_A}}, '{"a": 1}', '{"a": true}'),
    ],
)
def test_other_keywords_are_followed_next_to_such_objects(schema: Any, good: str, bad: str) -> None:
    assert accepts(schema, good)
    assert not accepts(schema, bad)


@pytest.mark.parametrize("text", ["%json {}", '"%json {"', "// %json {}", "a/%json {}/b"])
def test_texts_of_a_grammar_stay_texts(text: str) -> None:
    """Schemas are rewritten, and what looks like one in a text is not."""
    schema = json.dumps(OF_A)
    grammar = f"start: {json.dumps(text)} one | two\none: %json {schema}\ntwo: %json {schema}"
    matcher = COMPILER.compile(Constraint(ConstraintKind.GRAMMAR, grammar))
    matcher.read(TOKENIZER.encode(f'{text}{{"a": 1}}'))
    assert ended(matcher)


def test_a_forbidden_key_leaves_the_others_in_any_order() -> None:
    schema = {"type": "object", "properties": {"a": False, "b": {"type": "integer"}, "c": {}}}
    assert accepts(schema, '{"c": 1, "x": 2, "b": 3}')
    assert not accepts(schema, '{"b": 3, "a": 1}')
    assert not accepts(schema, '{"x": 3, "b": "3"}')
