"""OpenAI's Python package."""

import json
import sys

import openai

QUESTION = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
asked = {"model": "tiny", "messages": QUESTION, "max_tokens": 200, "temperature": 0}

text = client.chat.completions.create(**asked).choices[0].message.content
stream = client.chat.completions.create(**asked, stream=True)
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
formed = json.loads(client.chat.completions.create(**asked, response_format=form).choices[0].message.content)
called = client.chat.completions.create(
    **asked, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
)
items = client.responses.create(model="tiny", input="hi", max_output_tokens=200, temperature=0)
(call,) = called.choices[0].message.tool_calls
print(
    json.dumps(
        {
            "answers": bool(text),
            "streams": streamed == text,
            "schemas": formed["city"] in ("Rome", "Oslo"),
            "items": items.output_text == text,
            "tools": json.loads(call.function.arguments)["city"] in ("Rome", "Oslo"),
        }
    )
)
