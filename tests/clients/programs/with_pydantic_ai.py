"""Pydantic AI: agents whose output is a model, by a tool and by a schema."""

import asyncio
import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    """A city."""

    name: Literal["Rome", "Oslo"]


model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=sys.argv[1], api_key="none"))
settings = {"max_tokens": 200, "temperature": 0.0}


async def main() -> None:
    """Ask in four ways."""
    plain = Agent(model, model_settings=settings)
    text = (await plain.run("hi")).output
    async with plain.run_stream("hi") as stream:
        streamed = "".join([part async for part in stream.stream_text(delta=True)])
    by_tool = await Agent(model, output_type=City, model_settings=settings).run("hi")
    by_schema = await Agent(model, output_type=NativeOutput(City), model_settings=settings).run("hi")
    print(
        json.dumps(
            {
                "answers": bool(text),
                "streams": streamed == text,
                "schemas": by_schema.output.name in ("Rome", "Oslo"),
                "tools": by_tool.output.name in ("Rome", "Oslo"),
            }
        )
    )


asyncio.run(main())
