"""Types and values of a schema, behind references and combinations, next to a library's answers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from specinfer.text.constraints.references import definitions_in, resolved, types_of, values_of

SAMPLES: list[tuple[str, Any]] = [
    *[("null", None), ("boolean", True), ("boolean", False), ("integer", 0), ("integer", 7), ("number", 1.5)],
    *[
        ("string", ""),
        ("string", "02134"),
        ("array", []),
        ("array", ["x"]),
        ("object", {}),
        ("object", {"a": 1}),
    ],
]
DEFINITIONS = {
    "zip": {"type": "string", "enum": ["02134", "10001"]},
    "a/b~c": {"type": ["integer", "null"]},
    "again": {"$ref": "#/$defs/zip"},
    "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "boolean"}]},
}
LEAVES = st.one_of(
    st.sampled_from([True, {}, {"description": "d"}, {"const": 7}, {"enum": ["x", None]}, {"minimum": 1}]),
    st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"]).map(
        lambda kind: {"type": kind}
    ),
    st.lists(st.sampled_from(["null", "string", "integer"]), min_size=1, max_size=2).map(
        lambda kinds: {"type": sorted(set(kinds))}
    ),
    st.sampled_from(["zip", "a~1b~0c", "again", "loop"]).map(lambda name: {"$ref": f"#/$defs/{name}"}),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda parts: st.builds(
        lambda key, some, more: {key: some, **(more if isinstance(more, dict) else {})},
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(parts, min_size=1, max_size=3),
        LEAVES,
    ),
    max_leaves=5,
)


@given(SCHEMAS)
def test_every_value_that_a_schema_admits_has_one_of_its_types(schema: Any) -> None:
    root = {"$defs": DEFINITIONS, "properties": {"a": schema}}
    if isinstance(schema, dict) and "loop" in json.dumps(schema):
        validator = None  # the library follows such a loop for ever
    else:
        validator = Draft202012Validator({"$defs": DEFINITIONS, "allOf": [schema]})
    types, values = types_of(schema, root), values_of(schema, root)
    for kind, sample in SAMPLES:
        if validator is not None and validator.is_valid(sample):
            assert not types or kind in types or (kind == "integer" and "number" in types), sample
            assert values is None or sample in values


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"anyOf": [{"$ref": "#/$defs/zip"}, {"type": "null"}]}, {"string", "null"}),
        ({"allOf": [{"$ref": "#/$defs/again"}], "description": "d"}, {"string"}),
        ({"$ref": "#/$defs/a~1b~0c"}, {"integer", "null"}),
        ({"$ref": "#/$defs/a%7E1b~0c"}, {"integer", "null"}),
        ({"$ref": "#/properties/a/items/0", "type": ["string", "boolean"]}, {"boolean"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "#/$defs/none"}, set()),
        ({"oneOf": [{"const": 1}, {"const": 2.5}]}, {"number"}),
        ({"type": 5}, set()),
        ({"type": [[]], "enum": 3, "allOf": {}, "anyOf": [5], "$ref": 1}, set()),
    ],
)
def test_types_are_found_behind_references(schema: Any, types: set[str]) -> None:
    items = [{"type": ["boolean", "null"]}]
    root = {"$defs": DEFINITIONS, "properties": {"a": {"items": items}}}
    assert types_of(schema, root) == types


@given(
    st.recursive(
        st.text("a/~%#0", max_size=3), lambda part: st.dictionaries(st.text("a/~%0", max_size=3), part)
    )
)
def test_references_are_resolved_as_a_library_does(root: Any) -> None:
    resource = Resource.from_contents(root, default_specification=DRAFT202012)
    resolver = Registry().with_resource("", resource).resolver()

    def look(part: Any, pointer: str) -> None:
        assert resolved(f"#{pointer}", root) == resolver.lookup(f"#{pointer}").contents == part
        for name, below in part.items() if isinstance(part, dict) else ():
            step = name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
            look(below, f"{pointer}/{step}")

    if isinstance(root, dict):
        look(root, "")


def test_only_needed_definitions_are_kept() -> None:
    root = {"$defs": DEFINITIONS, "properties": {}}
    assert definitions_in({"items": {"$ref": "#/$defs/again"}}, root) == {
        "$defs": {"again": DEFINITIONS["again"], "zip": DEFINITIONS["zip"]}
    }
    assert definitions_in({"$ref": "#/properties/a"}, root) is None
    assert definitions_in({"type": "string"}, root) == {}
