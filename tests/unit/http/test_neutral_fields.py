"""Fields that change nothing: the table of docs/http.md is what the code does."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, BeforeValidator

from http_svc.body.bodies import ChatBody, CompletionBody, StreamOptions
from http_svc.body.fields import Neutral, leave_out
from http_svc.body.forms import JsonSchema
from http_svc.body.messages import Message, TextPart
from http_svc.body.tools import Tool

PAGE = Path(__file__).resolve().parents[3] / "docs" / "http.md"
PLACES: dict[str, tuple[type[BaseModel], ...]] = {
    "calls": (ChatBody, CompletionBody),
    "conversations": (ChatBody,),
    "completions": (CompletionBody,),
    "`stream_options`": (StreamOptions,),
    "messages": (Message,),
    "parts": (TextPart,),
    "tools": (Tool,),
    "`json_schema`": (JsonSchema,),
}
Table = dict[tuple[str, str], set[str]]
"""Names of fields by where they stand and what is taken."""


def taken(model: type[BaseModel]) -> dict[str, str]:
    """Values that are taken of each field that changes nothing, as the table says it."""
    found = {}
    for name, field in model.model_fields.items():
        for part in field.metadata:
            check: Any = part.func if isinstance(part, BeforeValidator) else None
            if check is leave_out:
                found[name] = "any value"
            elif isinstance(part, Neutral):
                found[name] = ", ".join(f"`{json.dumps(value)}`" for value in part.values) or "nothing"
    return found


def table_of_the_code() -> Table:
    found = defaultdict[tuple[str, str], set[str]](set)
    for place, models in PLACES.items():
        shared = set.intersection(*[set(taken(model).items()) for model in models])
        if len(models) == 1 and models[0] in PLACES["calls"]:
            shared -= set.intersection(*[set(taken(model).items()) for model in PLACES["calls"]])
        for name, value in shared:
            found[place, value].add(name)
    return dict(found)


def table_of_the_page() -> Table:
    section = PAGE.read_text().partition("## Fields that change nothing")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:]
    assert rows
    return {
        (place, value): set(re.findall(r"`(\w+)`", names)) for place, value, names in rows if "-" not in place
    }


def test_the_page_lists_what_the_code_takes() -> None:
    assert table_of_the_page() == table_of_the_code()


@pytest.mark.parametrize("model", [ChatBody, CompletionBody])
def test_neutral_values_are_taken_and_no_others(model: Any) -> None:
    good: dict[str, Any] = {"model": "m", "prompt": "x"}
    if model is ChatBody:
        good = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    for name, value in taken(model).items():
        neutral = json.loads(f"[{value.replace('`', '')}]") if value[0] == "`" else []
        for each in [None, *neutral]:
            assert getattr(model.model_validate({**good, name: each}), name) is None
        for other in (["nobody means this"], -3, True if 1 in neutral else 1.5):
            if value == "any value":
                assert getattr(model.model_validate({**good, name: other}), name) is None
            elif other not in neutral:
                with pytest.raises(ValueError, match="not supported"):
                    model.model_validate({**good, name: other})
