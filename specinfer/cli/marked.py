"""Stream an answer to the terminal, with tokens coloured by speculator."""

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from rich.text import Text

from specinfer.cli.show import output
from specinfer.client import Answer, AsyncClient, new_request_id
from specinfer.v1 import generation_pb2

_STYLES = ("black on green3", "black on sky_blue1", "black on gold1", "black on plum2")
"""Styles of speculators by number; the target's own tokens have none."""


class MarkedToken(NamedTuple):
    """A token's text and speculator; None: the target's own."""

    text: str
    speculator: int | None


def marked_tokens(step: generation_pb2.WatchedStep) -> list[MarkedToken]:
    """Return a step's tokens: accepted nodes, then the target's own."""
    guessed: list[int | None] = []
    for node in step.accepted:
        proposals = step.nodes[node].proposals
        guessed.append(proposals[0].speculator if proposals else None)
    guessed += [None] * (len(step.tokens) - len(guessed))
    return [MarkedToken(token.text, by) for token, by in zip(step.tokens, guessed, strict=False)]


async def print_marked(client: AsyncClient, prompt: str, max_new_tokens: int) -> Answer:
    """Stream an answer to the terminal, and return it.

    A gateway drops steps that come too fast. The text after the first dropped step is printed at the end, unmarked.
    """
    request_id = new_request_id()
    steps = client.watch(request_id)
    await anext(steps)  # watching has begun
    printing = asyncio.create_task(_print_steps(steps))
    answer = await client.generate(prompt, request_id=request_id, max_new_tokens=max_new_tokens)
    shown = await printing
    if rest := answer.token_ids[shown:]:
        _print(await client.detokenize(rest) if shown else answer.text)
    output.print()
    return answer


async def _print_steps(steps: AsyncGenerator[generation_pb2.WatchReply, None]) -> int:
    """Print steps until one was dropped; return the number of printed tokens."""
    shown = 0
    async for reply in steps:
        if reply.HasField("step") and reply.step.position == shown:
            for token in marked_tokens(reply.step):
                _print(token.text, "" if token.speculator is None else style_of(token.speculator))
            shown += len(reply.step.tokens)
    return shown


def style_of(speculator: int) -> str:
    return _STYLES[speculator % len(_STYLES)]


def _print(text: str, style: str = "") -> None:
    output.print(Text(text, style), end="", soft_wrap=True)
