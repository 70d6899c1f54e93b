"""The doors through which an agent converses: its calls, and what their answers say."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.soak.checks import joined
from tests.soak.conversations import Body, options, with_results
from tests.soak.items import answer_of_events, as_chat, item_body, items_of, next_items

History = list[Body]


@dataclass(frozen=True, slots=True)
class Door:
    """A path of the service."""

    path: str
    begin: Callable[[History, random.Random], History]
    """Make the first history of the first turns."""
    body: Callable[[History, Body], Body]
    """Make a body of a history and the options of a conversation."""
    joined: Callable[[Iterable[str]], tuple[Body, list[str]]]
    """Read the answer of a stream's lines, and what is wrong with them."""
    chat: Callable[[Body], Body]
    """Make the answer of a conversation of an answer."""
    go_on: Callable[[History, Body, random.Random], History]
    """Make the next history of a history and its answer."""


CHAT = Door(
    "/v1/chat/completions",
    begin=lambda turns, _: turns,
    body=lambda turns, chosen: {**chosen, "messages": turns},
    joined=joined,
    chat=lambda answer: answer,
    go_on=lambda turns, answer, choices: with_results(turns, answer["choices"][0]["message"], choices),
)
ITEMS = Door(
    "/v1/responses",
    begin=items_of,
    body=item_body,
    joined=answer_of_events,
    chat=as_chat,
    go_on=next_items,
)


def chosen_options(door: Door, model: str, choices: random.Random) -> dict[str, Any]:
    """Return the options of a call in the form of a conversation: those that the door knows."""
    chosen = {"model": model, **options(choices)}
    if door is ITEMS:
        for name in ("n", "stop", "logprobs", "seed", "frequency_penalty", "stream_options"):
            chosen.pop(name, None)
    return chosen
