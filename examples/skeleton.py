"""Skeleton-of-thought (Ning et al. 2023): write an answer's points concurrently. Lossy.

python examples/skeleton.py "What keeps a team working well together?"

route      ask the model whether the answer has several independent points; if not, answer the question directly
skeleton   ask for a list of the points, a few words each
points     ask for the text of every point, concurrently; the prompts differ only in their last line, so the
           cache stores their common prefix once
"""

import asyncio
import re
import sys
from collections.abc import Sequence

from specinfer import AsyncClient

FEWEST, MOST = 2, 10
"""Minimum and maximum points of a skeleton; with fewer, answer as usual."""
POINT = re.compile(r"^\s*(\d{1,2})[.):]\s*(.+?)\s*$", re.MULTILINE)


async def answer(client: AsyncClient, question: str, max_new_tokens: int = 256) -> str:
    """Answer a question point by point if possible, else directly."""
    points = await find_points(client, question)
    if len(points) < FEWEST:
        return (await client.generate(question, max_new_tokens=max_new_tokens)).text
    share = max(1, max_new_tokens // len(points))
    questions = [expand(question, points, index) for index in range(len(points))]
    found = await asyncio.gather(*(client.generate(one, max_new_tokens=share) for one in questions))
    return "\n\n".join(
        f"{i}. {point.rstrip('.:')}: {one.text}"
        for i, (point, one) in enumerate(zip(points, found, strict=True), 1)
    )


async def find_points(client: AsyncClient, question: str) -> list[str]:
    """Return the answer's points; empty if the answer has no independent points."""
    routed = await client.generate(route(question), max_new_tokens=4)
    if not routed.text.strip().lower().startswith("yes"):
        return []
    return read_points((await client.generate(outline(question), max_new_tokens=96)).text)


def route(question: str) -> str:
    """Return the prompt that asks whether a question suits this method."""
    return (
        f"Question: {question}\n\nCan this question be answered with a list of several points that do not "
        "depend on each other? Questions of mathematics, code, a single fact or a step-by-step derivation "
        "cannot. Answer with yes or no only."
    )


def outline(question: str) -> str:
    return (
        f"Question: {question}\n\nWrite only the skeleton of the answer: a numbered list of {FEWEST + 1} to "
        f"{MOST} points, each of 3 to 5 words and nothing else, one on a line."
    )


def read_points(skeleton: str) -> list[str]:
    """Return a skeleton's points in order; stop at the first misnumbered line."""
    found: list[str] = []
    for number, point in POINT.findall(skeleton):
        if int(number) != len(found) + 1 or len(found) == MOST:
            break
        found.append(point)
    return found


def expand(question: str, points: Sequence[str], index: int) -> str:
    listed = "\n".join(f"{i + 1}. {point}" for i, point in enumerate(points))
    return (
        f"Question: {question}\n\nThe skeleton of the answer:\n{listed}\n\nContinue the writing of one point "
        "only, in one or two short sentences. Do not write about the other points.\n"
        f"Point {index + 1}: {points[index]}"
    )


async def main(question: str) -> None:
    async with AsyncClient("127.0.0.1:50051") as client:
        print(await answer(client, question))


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "What keeps a team working well together?"))
