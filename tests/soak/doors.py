"""The paths of the service that agents use, with the functions to build bodies and read answers."""

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
    """A path of the service, with its functions."""

    path: str
    begin: Callable[[History, random.Random], History]
    """Convert the first messages into a history."""
    body: Callable[[History, Body], Body]
    """Build a body from a history and a call's options."""
    joined: Callable[[Iterable[str]], tuple[Body, list[str]]]
    """Return the whole answer of a stream's lines, and the problems of the stream."""
    chat: Callable[[Body], Body]
    """Convert an answer into one of /v1/chat/completions."""
    go_on: Callable[[History, Body, random.Random], History]
    """Return the next history, given a history and its answer."""


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
    """Return random options of a call that the path supports."""
    chosen = {"model": model, **options(choices)}
    if door is ITEMS:
        for name in ("n", "stop", "logprobs", "seed", "frequency_penalty", "stream_options"):
            chosen.pop(name, None)
    return chosen
