"""Pydantic AI: agents whose output is a model, by a tool and by a schema."""

import asyncio
import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    """A city."""

    name: Literal["Rome", "Oslo"]


provider = OpenAIProvider(base_url=sys.argv[1], api_key="none")
model = OpenAIChatModel("tiny", provider=provider)
settings = {"max_tokens": 200, "temperature": 0.0}


async def main() -> None:
    """Ask in four ways."""
    plain = Agent(model, model_settings=settings)
    text = (await plain.run("hi")).output
    async with plain.run_stream("hi") as stream:
        streamed = "".join([part async for part in stream.stream_text(delta=True)])
    by_tool = await Agent(model, output_type=City, model_settings=settings).run("hi")
    by_schema = await Agent(model, output_type=NativeOutput(City), model_settings=settings).run("hi")
    items = Agent(OpenAIResponsesModel("tiny", provider=provider), model_settings=settings)
    by_items = (await items.run("hi")).output
    print(
        json.dumps(
            {
                "answers": bool(text),
                "streams": streamed == text,
                "schemas": by_schema.output.name in ("Rome", "Oslo"),
                "items": by_items == text,
                "tools": by_tool.output.name in ("Rome", "Oslo"),
            }
        )
    )


asyncio.run(main())
