"""The chart's schema accepts exactly the settings that services accept."""

import json
from typing import Any

import jsonschema
import pytest

from specinfer.drafters import DRAFTERS
from specinfer.errors import SettingError
from specinfer.model.formats.registry import FORMATS
from specinfer.model.options import RunnerOptions
from tests.deploy.helm.settings_schema import CHOICES, ROLES, SCHEMA, settings_schema, with_settings


def test_the_schema_is_that_of_the_settings() -> None:
    """`python -m tests.deploy.helm.settings_schema` writes the schema."""
    schema = json.loads(SCHEMA.read_text())
    assert with_settings(json.loads(SCHEMA.read_text())) == schema


def allows(role: str, name: str, value: Any) -> bool:
    part = settings_schema(role)["properties"][name]
    return bool(jsonschema.Draft7Validator(part).is_valid(value))


@pytest.mark.parametrize("name", ["weights", "dtype", "executor", "offload"])
def test_choices_are_those_that_the_program_takes(name: str) -> None:
    """Program and schema both refuse an unknown name; the program's error lists the choices."""
    with pytest.raises(SettingError) as error:
        RunnerOptions(**{name: "no such choice"})
    for choice in CHOICES[name]:
        assert choice in str(error.value), choice
    assert not allows("verifier", name, "no such choice")


def test_every_format_and_drafter_is_allowed() -> None:
    for name in FORMATS:
        assert all(allows(role, "weights", name) for role in ("verifier", "speculator", "serve")), name
    for name in DRAFTERS:
        assert allows("speculator", "drafter", name)
        assert allows("speculator", "drafter", f"ngram+{name}")
    assert not allows("speculator", "drafter", "ngram+")
    assert not allows("speculator", "drafter", "")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("threads", [0, 8, None], [-1, 1.5, "2"]),
        ("kv_tokens", [16, 65536], [15, "64k"]),
        ("tls_key", ["a", None], [1]),
    ],
)
def test_numbers_are_numbers_within_their_bounds(name: str, good: list[Any], bad: list[Any]) -> None:
    assert all(allows("verifier", name, value) for value in good)
    assert not any(allows("verifier", name, value) for value in bad)


@pytest.mark.parametrize("role", ROLES)
def test_what_the_chart_sets_itself_nobody_else_may(role: str) -> None:
    assert not {"listen", "metrics_host", "metrics_port", "redis_url"} & set(
        settings_schema(role)["properties"]
    )
