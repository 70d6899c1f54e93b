"""`--constraint` of the command line, and constraints in the Python client."""

from pathlib import Path

import pytest

from specinfer.cli.options.request import read_constraint
from specinfer.client import make_request
from specinfer.errors import InvalidInputError
from specinfer.v1 import common_pb2


def test_values_and_files_become_options(tmp_path: Path) -> None:
    grammar = tmp_path / "grammar.lark"
    grammar.write_text('start: "a"\n')
    assert read_constraint(None) == {}
    assert read_constraint("regex=a=b") == {"regex": "a=b"}
    assert read_constraint(f"grammar=@{grammar}") == {"grammar": 'start: "a"\n'}
    assert read_constraint('choice=["a", "b"]') == {"choice": ["a", "b"]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a+", "must begin with one of json_schema=, regex=, grammar=, choice="),
        ("xml=a", "must begin with one of"),
        ("choice=a,b", "must be choice="),
        ("choice=[1]", "must be choice="),
        ("json_schema=@/nowhere", "No such file"),
    ],
)
def test_bad_constraints_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_constraint(text)
    assert caught.value.field == "--constraint"
    assert reason in str(caught.value)


def test_the_client_has_four_kinds_of_constraints() -> None:
    schema = {"type": "boolean"}
    assert make_request("hi", json_schema=schema).constraint.json_schema == '{"type": "boolean"}'
    assert make_request("hi", json_schema='{"type":"null"}').constraint.json_schema == '{"type":"null"}'
    assert make_request("hi", regex="a+").constraint == common_pb2.Constraint(regex="a+")
    assert list(make_request("hi", choice=["a", "b"]).constraint.choice.texts) == ["a", "b"]
    assert make_request("hi", grammar="start: A").constraint.WhichOneof("kind") == "grammar"
    assert not make_request("hi").HasField("constraint")


def test_the_client_refuses_two_at_once_and_what_is_no_json() -> None:
    with pytest.raises(InvalidInputError, match="regex = "):
        make_request("hi", json_schema={}, regex="a")
    with pytest.raises(InvalidInputError, match=r"json_schema = .*not JSON"):
        make_request("hi", json_schema={"a": {1, 2}})
