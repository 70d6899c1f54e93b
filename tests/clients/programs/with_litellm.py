"""LiteLLM as a library; its proxy sends the same requests."""

import json
import sys

import litellm

QUESTION = [
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
asked = {
    "model": "openai/tiny",
    "api_base": sys.argv[1],
    "api_key": "none",
    "messages": QUESTION,
    "max_tokens": 200,
    "temperature": 0,
    "user": "u1",
    "metadata": {"a": "b"},
}

text = litellm.completion(**asked).choices[0].message.content
stream = litellm.completion(**asked, stream=True, stream_options={"include_usage": True})
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
formed = json.loads(litellm.completion(**asked, response_format=form).choices[0].message.content)
first = litellm.completion(**asked, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
message = first.choices[0].message
(call,) = message.tool_calls
result = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "rain"}
again = litellm.completion(**asked | {"messages": [*QUESTION, message.model_dump(), result]})
newer = {name: value for name, value in asked.items() if name not in ("messages", "max_tokens")}
items = litellm.responses(**newer, input="hi", max_output_tokens=200)
print(
    json.dumps(
        {
            "answers": bool(text),
            "streams": streamed == text,
            "schemas": formed["city"] in ("Rome", "Oslo"),
            "items": items.output[0].content[0].text == text,
            "tools": json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
            and bool(again.choices[0].message.content),
        }
    )
)
