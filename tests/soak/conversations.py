"""Make random conversations like those of agents: functions, results, schemas, reasoning. Pure."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

Body = dict[str, Any]
CITIES = ["Paris", "Köln", "東京", "São Paulo", "a } city", "x</tool_call>"]
TOOLS: list[Body] = [
    {"name": name, "description": about, "parameters": parameters}
    for name, about, parameters in (
        (
            "get_weather",
            "Current weather of a city.",
            {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
                "required": ["city"],
            },
        ),
        ("list_files", "Files of the working directory.", None),
        (
            "write_file",
            "Write a text to a file.",
            {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "pattern": "^[a-z/.]{1,30}$"},
                    "lines": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 4},
                    "mode": {"type": "integer", "minimum": 0, "maximum": 511},
                },
                "required": ["path", "lines"],
                "additionalProperties": False,
            },
        ),
        (
            "search",
            "Search the project.",
            {
                "type": "object",
                "$defs": {"range": {"type": "object", "properties": {"from": {"type": "integer"}}}},
                "properties": {"query": {"type": "string"}, "within": {"$ref": "#/$defs/range"}},
                "required": ["query"],
            },
        ),
    )
]
SCHEMA = {
    "type": "object",
    "properties": {
        "done": {"type": "boolean"},
        "steps": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 3},
        "size": {"type": "integer", "minimum": 0, "maximum": 9999},
    },
    "required": ["done", "steps", "size"],
    "additionalProperties": False,
}
QUESTIONS = (
    "What is the weather in {city}?",
    "Compare the weather of {city} and Rome, then write it to notes.txt.",
    "Which files are there? Search for <|im_end|> in them.",
    "Write a function that adds two numbers and save it.",
    "Say hello to {city}.",
    'Reply with {{"name": "get_weather", "arguments": {{}}}} and nothing else.',
)
RESULTS = ("", "ok", "null", '{"error": "timeout"}', "18 °C, rain\n" * 3, "<tool_call>\n", "a.py\n" * 60)


def openings(choices: random.Random) -> list[Body]:
    """Return random first messages of a conversation."""
    question = choices.choice(QUESTIONS).format(city=choices.choice(CITIES))
    system = {
        "role": "system",
        "content": choices.choice(["Be brief.", "You are a coding agent.", "Réponds."]),
    }
    return [system] * choices.choice([0, 1, 1]) + [{"role": "user", "content": question}]


def options(choices: random.Random) -> Body:
    """Return random options of one call; each option is usually left out."""
    every: Mapping[str, Callable[[], Any]] = {
        "tool_choice": lambda: choices.choice(
            [
                "auto",
                "required",
                "none",
                {"type": "function", "function": {"name": choices.choice(TOOLS)["name"]}},
            ]
        ),
        "parallel_tool_calls": lambda: choices.choice([True, False]),
        "temperature": lambda: choices.choice([0, 0.7, 1.3]),
        "top_p": lambda: choices.choice([0.5, 0.95]),
        "seed": lambda: choices.randrange(2**31),
        "stop": lambda: choices.choice(["\n\n\n", ["STOP", "END"]]),
        "logprobs": lambda: True,
        "n": lambda: 2,
        "frequency_penalty": lambda: 0.4,
        "response_format": lambda: choices.choice(
            [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}]
        ),
        "chat_template_kwargs": lambda: {"enable_thinking": choices.choice([True, False])},
        "reasoning_effort": lambda: choices.choice(["low", "high"]),
    }
    body: Body = {name: make() for name, make in every.items() if choices.random() < 0.3}
    if choices.random() < 0.75:
        tools = choices.sample(TOOLS, choices.randint(1, len(TOOLS)))
        body["tools"] = [{"type": "function", "function": _function(tool, choices)} for tool in tools]
    _agree(body, choices)
    body["max_tokens"] = choices.choice([8, 48, 120])
    if choices.random() < 0.6:
        body |= {"stream": True, "stream_options": {"include_usage": choices.choice([True, False])}}
    return body


def _function(tool: Body, choices: random.Random) -> Body:
    function = {name: value for name, value in tool.items() if value is not None}
    return {**function, "strict": True} if choices.random() < 0.2 else function


def _agree(body: Body, choices: random.Random) -> None:
    """Remove options that the service would refuse together."""
    tools = [tool["function"]["name"] for tool in body.get("tools", ())]
    if not tools:
        body.pop("tool_choice", None)
        body.pop("parallel_tool_calls", None)
    elif isinstance(chosen := body.get("tool_choice"), dict) and chosen["function"]["name"] not in tools:
        body["tool_choice"] = {"type": "function", "function": {"name": choices.choice(tools)}}


def with_results(turns: list[Body], message: Body, choices: random.Random) -> list[Body]:
    """Return the messages of the next call: with the answer, and results of its calls or another question."""
    turns = [*turns, {name: value for name, value in message.items() if name != "refusal"}]
    calls = message.get("tool_calls") or []
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": choices.choice(RESULTS)} for call in calls
    ]
    if choices.random() < 0.3:
        choices.shuffle(results)
    if not calls or choices.random() < 0.3:
        results.append({"role": "user", "content": choices.choice(["Go on.", "And then?", "Are you sure?"])})
    return [*turns, *results]


def schema_of(body: Body) -> Any:
    """Return the schema of an answer without calls; None if it may be any text."""
    wanted = body.get("response_format", {})
    if wanted.get("type") == "json_schema":
        return wanted["json_schema"]["schema"]
    return {"type": "object"} if wanted.get("type") == "json_object" else None


def parameters_of(body: Body, name: str) -> Any:
    """Return the schema of a function's arguments; without patterns, which only strict functions follow."""
    (function,) = [tool["function"] for tool in body["tools"] if tool["function"]["name"] == name]
    return json.loads(json.dumps(function.get("parameters") or {"type": "object", "maxProperties": 0}))
