"""Build the table of the HTTP service's fields that are accepted and change nothing."""

import json
from collections import defaultdict
from typing import Any

from pydantic import BaseModel, BeforeValidator

from http_svc.body.bodies import ChatBody, CompletionBody, StreamOptions
from http_svc.body.fields import Neutral, leave_out
from http_svc.body.forms import JsonSchema
from http_svc.body.messages import Message, TextPart
from http_svc.body.tools import Tool

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


def neutral_fields() -> str:
    """Return the table of all these fields."""
    lines = ["| in | accepted | fields |", "|---|---|---|"]
    for place, models in PLACES.items():
        shared = set.intersection(*[set(accepted(model).items()) for model in models])
        if len(models) == 1 and models[0] in PLACES["calls"]:
            shared -= set.intersection(*[set(accepted(model).items()) for model in PLACES["calls"]])
        fields = defaultdict[str, list[str]](list)
        for name, value in sorted(shared):
            fields[value].append(f"`{name}`")
        lines += [f"| {place} | {value} | {', '.join(names)} |" for value, names in sorted(fields.items())]
    return "\n".join(lines) + "\n"


def accepted(model: type[BaseModel]) -> dict[str, str]:
    """Return the accepted values by field, for the fields of a model that change nothing."""
    values = {}
    for name, field in model.model_fields.items():
        for part in field.metadata:
            check: Any = part.func if isinstance(part, BeforeValidator) else None
            if check is leave_out:
                values[name] = "any value"
            elif isinstance(part, Neutral):
                values[name] = ", ".join(f"`{json.dumps(value)}`" for value in part.values) or "nothing"
    return values
