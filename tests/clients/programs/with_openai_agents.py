"""OpenAI's Agents SDK over chat completions: an agent that calls a function and stops there."""

import asyncio
import json
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
model = OpenAIChatCompletionsModel(model="tiny", openai_client=client)
settings = ModelSettings(temperature=0, max_tokens=200)
called = []


class City(BaseModel):
    """A city."""

    name: Literal["Rome", "Oslo"]


@function_tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Say the weather of a city."""
    called.append(city)
    return "rain"


async def main() -> None:
    """Ask in four ways."""
    plain = Agent(name="a", instructions="be brief", model=model, model_settings=settings)
    text = (await Runner.run(plain, "hi")).final_output
    stream, streamed = Runner.run_streamed(plain, "hi"), ""
    async for event in stream.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            streamed += event.data.delta
    formed = await Runner.run(plain.clone(output_type=City), "hi")
    must = ModelSettings(temperature=0, max_tokens=200, tool_choice="weather")
    caller = plain.clone(tools=[weather], model_settings=must, tool_use_behavior="stop_on_first_tool")
    await Runner.run(caller, "hi")
    newer = plain.clone(output_type=City, model=OpenAIResponsesModel(model="tiny", openai_client=client))
    by_items = (await Runner.run(newer, "hi")).final_output.name
    stream, streamed_items = Runner.run_streamed(newer, "hi"), ""
    async for event in stream.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            streamed_items += event.data.delta
    print(
        json.dumps(
            {
                "answers": bool(text),
                "streams": streamed == text,
                "schemas": formed.final_output.name in ("Rome", "Oslo"),
                "items": by_items in ("Rome", "Oslo") and by_items in streamed_items,
                "tools": len(called) == 1,
            }
        )
    )


asyncio.run(main())
