"""LangChain's adapter for OpenAI, which uses more fields than OpenAI's client."""

from typing import Any

from pydantic import SecretStr

from specinfer import AsyncClient
from tests.support.network.http_service import http_service
from tests.support.oracle import first
from tests.support.system import ScriptedDrafter, running_system

ASKED = [("system", "be brief"), ("human", "hi")]
MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
SCHEMA = {
    "title": "Answer",
    "description": "One number.",
    "type": "object",
    "properties": {"number": {"type": "integer", "enum": [1, 2, 3]}},
    "required": ["number"],
    "additionalProperties": False,
}


async def test_langchain_answers_streams_and_keeps_to_a_schema(redis_url: str) -> None:
    from langchain_openai import ChatOpenAI  # the import takes seconds: only the worker of this test needs it

    drafters: dict[str, Any] = {"a": ScriptedDrafter(first(1))}
    async with (
        running_system(redis_url, drafters, eos=0) as system,
        http_service(system.address) as http,
    ):
        async with AsyncClient(system.address) as client:
            expected = (await client.generate(MESSAGES, max_new_tokens=12)).text
        chat = ChatOpenAI(
            model="tiny",
            base_url=f"{http.url}/v1",
            api_key=SecretStr("none"),
            temperature=0,
            max_completion_tokens=160,
            max_retries=0,
        )
        short = chat.model_copy(update={"max_tokens": 12})
        answer = await short.ainvoke(ASKED)
        assert answer.content == expected
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["output_tokens"] == 12
        assert "".join([str(chunk.content) async for chunk in short.astream(ASKED)]) == expected
        formed = await chat.with_structured_output(SCHEMA, method="json_schema").ainvoke(ASKED)
        assert isinstance(formed, dict)
        assert formed["number"] in (1, 2, 3)
