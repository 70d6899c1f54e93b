"""Answer several prompts concurrently with asyncio."""

import asyncio

from specinfer import AsyncClient


async def main() -> None:
    async with AsyncClient("127.0.0.1:50051") as client:
        prompts = ("Name a river.", "Name a mountain.", "Name a sea.")
        for answer in await asyncio.gather(*(client.generate(prompt) for prompt in prompts)):
            print(answer.text)


asyncio.run(main())
