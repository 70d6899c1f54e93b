"""Integers in JSON schemas keep their exact value, or the schema is refused with their place."""

import json

import pytest

from specinfer.text.constraints.schemas import InexactNumberError, exact_grammar, exact_schema

ODD = 2**53 + 1


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"const": ODD}, "#/const"),
        ({"properties": {"const": {"enum": [1, {"a": [ODD]}]}}}, "#/properties/const/enum"),
        ({"anyOf": [{}, {"const": 2**64}]}, "#/anyOf/1/const"),
        ({"const": -(10**400)}, "#/const"),
        ({"multipleOf": ODD}, "#/multipleOf"),
    ],
)
def test_a_constant_that_would_change_is_refused(schema: dict[str, object], place: str) -> None:
    with pytest.raises(InexactNumberError, match=f"at {place}\\)"):
        exact_schema(json.dumps(schema))
    with pytest.raises(InexactNumberError, match=f"at line 2, column 10: .*at {place}\\)"):
        exact_grammar(f"start: a\na: %json {json.dumps(schema)}")
    lenient = json.loads(exact_schema(json.dumps({**schema, "x-guidance": {"lenient": True}})))
    assert str(ODD) not in json.dumps(lenient)


def test_bounds_move_inwards_and_other_numbers_stay() -> None:
    bounds = json.loads(exact_schema(json.dumps({"minimum": ODD, "maximum": ODD, "exclusiveMaximum": 2**64})))
    assert bounds == {"minimum": 2**53 + 2, "maximum": 2**53, "exclusiveMaximum": 2**63 - 1}
    for same in ({"const": 2**53}, {"default": ODD}, {"maximum": 2**63 - 1}, {"const": 123456789012345680}):
        assert json.loads(exact_schema(json.dumps(same))) == same


@pytest.mark.parametrize("length", [None, 30, 100])
def test_texts_of_times_have_a_length(length: int | None) -> None:
    options = {} if length is None else {"maxLength": length}
    schema = {
        "type": "object",
        "properties": {"format": {"format": "time", **options}, "b": {"format": "uri"}},
    }
    written = json.loads(exact_schema(json.dumps(schema)))
    assert written["properties"] == {
        "format": {"format": "time", "maxLength": min(64, length or 64)},
        "b": {"format": "uri"},
    }
