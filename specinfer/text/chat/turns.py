"""Adapt conversations to strict templates: ids, alternating roles, no system message."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specinfer.text.chat.words import Message

Change = Callable[[Sequence[Message]], list[Message]]
_CALL_ID = re.compile("[a-zA-Z0-9]{9}")
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def call_id_of(*parts: object) -> str:
    """Return a stable call id of nine letters and digits."""
    number = int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8])
    signs = ""
    for _ in range(9):
        number, place = divmod(number, len(_ALPHABET))
        signs += _ALPHABET[place]
    return signs


def with_short_ids(turns: Sequence[Message]) -> list[Message]:
    """Replace call ids except those of nine letters and digits."""
    return [_with_short_ids(turn) for turn in turns]


def _with_short_ids(turn: Message) -> Message:
    changed: dict[str, Any] = dict(turn)
    if "tool_call_id" in turn:
        changed["tool_call_id"] = _short(turn["tool_call_id"])
    if calls := turn.get("tool_calls"):
        changed["tool_calls"] = [
            {**call, "id": _short(call["id"])} if isinstance(call.get("id"), str) else call for call in calls
        ]
    return changed


def _short(identity: str) -> str:
    text = "".join(identity)  # a plain `str`, even of a hidden text
    return identity if _CALL_ID.fullmatch(text) else call_id_of(text.encode(errors="surrogatepass"))


def merged(turns: Sequence[Message]) -> list[Message]:
    """Merge consecutive text messages of the same role."""
    kept = list[Message]()
    for turn in turns:
        before = kept[-1] if kept else None
        if before is not None and _mergeable(before, turn):
            content = "\n\n".join(filter(None, [before["content"], turn["content"]]))
            kept[-1] = {**before, **turn, "content": content}
        else:
            kept.append(turn)
    return kept


def _mergeable(before: Message, turn: Message) -> bool:
    texts = isinstance(before.get("content"), str) and isinstance(turn.get("content"), str)
    same = before["role"] == turn["role"] and turn["role"] in ("user", "assistant", "system")
    return texts and same and not before.get("tool_calls")


def single_calls(turns: Sequence[Message]) -> list[Message]:
    """Give every call its own message, followed by the call's result."""
    kept, results = list[Message](), dict[Any, list[Message]]()
    for turn in turns:
        if turn["role"] == "tool":
            results.setdefault(turn.get("tool_call_id"), []).append(turn)
    for turn in turns:
        calls = turn.get("tool_calls") or ()
        for place, call in enumerate(calls):
            kept.append({**turn, "tool_calls": [call], "content": "" if place else turn["content"]})
            if len(calls) > 1:
                kept += results.pop(call.get("id"), [])
        if not calls and (turn["role"] != "tool" or turn in results.get(turn.get("tool_call_id"), ())):
            kept.append(turn)
    return kept


def answered(turns: Sequence[Message]) -> list[Message]:
    """Insert empty assistant messages between results and user messages."""
    kept = list[Message]()
    for turn in turns:
        if kept and kept[-1]["role"] == "tool" and turn["role"] == "user":
            kept.append({"role": "assistant", "content": ""})
        kept.append(turn)
    return kept


def without_system(turns: Sequence[Message]) -> list[Message]:
    """Move system messages into the next user message."""
    kept, words = list[Message](), list[str]()
    for turn in turns:
        if turn["role"] == "system" and isinstance(turn.get("content"), str):
            words.append(turn["content"])
        elif words:
            if turn["role"] == "user" and isinstance(turn.get("content"), str):
                kept.append({**turn, "content": "\n\n".join([*words, turn["content"]])})
            else:
                kept += [{"role": "user", "content": "\n\n".join(words)}, turn]
            words = []
        else:
            kept.append(turn)
    return [*kept, {"role": "user", "content": "\n\n".join(words)}] if words else kept


_CHANGES: tuple[tuple[Change, ...], ...] = (
    (with_short_ids,),
    (single_calls,),
    (with_short_ids, merged),
    (with_short_ids, merged, answered),
    (with_short_ids, merged, answered, single_calls),
    (without_system,),
    (without_system, with_short_ids, merged, answered),
    (without_system, with_short_ids, merged, answered, single_calls),
)
"""Sets of changes, tried in this order."""


def variants(turns: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield a conversation unchanged, then with more and more changes."""
    known = [list(turns)]
    yield known[0]
    for changes in _CHANGES:
        changed = list(turns)
        for change in changes:
            changed = change(changed)
        if changed not in known:
            known.append(changed)
            yield changed


_KEY = "probe_key"


def takes_text(render: Callable[[Sequence[Message]], str | None]) -> bool:
    """Return whether a template needs earlier calls' arguments as JSON text.

    Args:
        render: renders a conversation; returns None if the template refuses it or fails.
    """
    arguments = {_KEY: "probe_value"}
    as_object = render(_probe(arguments))
    if as_object is not None and f"{{'{_KEY}'" not in as_object:
        return False
    as_text = render(_probe(json.dumps(arguments)))
    return as_text is not None and f'{{"{_KEY}"' in as_text


def _probe(arguments: Any) -> list[Message]:
    function = {"name": "probe", "arguments": arguments}
    call = {"id": "probe0000", "type": "function", "function": function}
    return [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "probe0000", "name": "probe", "content": "b"},
    ]


def with_thinking(turns: Sequence[Message]) -> list[Message]:
    """Name reasoning `thinking`, as in gpt-oss's template.

    The template refuses it next to text and calls.
    """
    return [
        {**turn, "thinking": turn["reasoning_content"]}
        if turn.get("reasoning_content") and not (turn.get("tool_calls") and turn.get("content"))
        else turn
        for turn in turns
    ]


def with_text_arguments(turns: Sequence[Message]) -> list[Message]:
    """Return messages with the arguments of calls as JSON text."""
    return [
        {**turn, "tool_calls": [_with_text(call) for call in calls]}
        if (calls := turn.get("tool_calls"))
        else turn
        for turn in turns
    ]


def _with_text(call: Message) -> Message:
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
