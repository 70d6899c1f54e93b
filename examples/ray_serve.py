"""A model in Ray Serve: `serve run examples.ray_serve:app model=smollm2-135m`, then POST {"prompt": "..."}."""

from ray import serve
from starlette.requests import Request

from specinfer import AsyncLLM, SamplingParams


@serve.deployment(max_ongoing_requests=64)
class Model:
    def __init__(self, model: str) -> None:
        self._llm = AsyncLLM(model)  # batches what comes at once

    async def __call__(self, request: Request) -> dict[str, str]:
        asked = await request.json()
        params = SamplingParams(temperature=0, max_tokens=asked.get("max_tokens", 64))
        output = await self._llm.generate(asked["prompt"], params)
        return {"text": output.outputs[0].text}


def app(arguments: dict[str, str]) -> serve.Application:
    return Model.bind(arguments["model"])
