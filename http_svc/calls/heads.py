"""Heads of calls in every form: regular expressions, and their beginnings at the end of a text that still grows."""

import re
from collections.abc import Sequence

from http_svc.calls.answer_form import AnswerForm
from specinfer.chat.forms import BY_NAME, DEEPSEEK, FORMS, PYTHON_TAG, TOOL_CALL

SPACE = r"[ \t\r\n]{0,20}"
"""White space between parts of a head, as a regular expression of Rust's and of Python's."""
_NAME = "[a-zA-Z0-9_-]"
ELEMENT = BY_NAME["qwen3_coder"].before
"""Begins a call whose arguments are elements, not JSON."""


_BLANKS = r"[ \t\r\n]*"
_TYPE = _BLANKS.join(['(?:"type"', ":", '"function"', ",", ")?"])
JSON_OPENING = _BLANKS.join([r"\{", f'{_TYPE}"name"', ":", '"'])
"""A call in JSON up to its name; white space has no bound, which would cost grammars much."""
JSON_NEAR_OPENING = JSON_OPENING.replace("*", "{0,4}")
"""The same with little white space, where nothing else may stand."""
JSON_MIDDLE = r"[ \t\r\n]{0,4}".join(['"', ",", '"(?:arguments|parameters)"', ":"])
"""A call in JSON between its name and its arguments."""
_TYPED = '{"type":"function","name":"'
_IN_JSON = [form for form in FORMS if form.before.startswith("{")]
_HEADS = (
    *dict.fromkeys(
        (first, form.middle.replace(" ", "")) for first in ('{"name":"', _TYPED) for form in _IN_JSON
    ),
    *[
        (form.before or form.mark, form.middle.rstrip("\n") if any(form.parameters) else form.middle)
        for form in FORMS
        if form not in _IN_JSON
    ],
)
"""Texts around names of functions; between parts of JSON there may be white space."""
_FENCES = ("```json", "```tool_call", "```tool_code", "```")
_OPENERS = (
    *_FENCES,
    *dict.fromkeys(form.mark for form in FORMS if form.mark),
    *(PYTHON_TAG, "<function_call>", "[", ",", ";"),
)
"""Texts that stand directly in front of a call and belong to it."""
_CLOSERS = (*_FENCES, TOOL_CALL[1], "</function_call>", *DEEPSEEK[1:], "]", ",", ";", "}")
"""Texts that stand directly behind a call and belong to it."""


def _spaced(text: str, in_text: bool = False) -> list[str]:
    """Return the signs of a head as regular expressions, with white space between parts of JSON.

    `in_text`: the text begins within a string of JSON.
    """
    signs = list[str]()
    for sign in text:
        in_text ^= sign == '"'
        if text[:1] in '{"' and not in_text and sign in ":,}":
            signs += [_BLANKS, re.escape(sign), _BLANKS]
        else:
            signs += [re.escape(sign)] + [_BLANKS] * (sign == "{")
    return signs


def _beginnings(signs: Sequence[str]) -> str:
    """Return a regular expression of all beginnings of these signs, at least one sign long."""
    return signs[0] + "".join([f"(?:{sign}" for sign in signs[1:]]) + ")?" * (len(signs) - 1)


def _any(texts: Sequence[str]) -> str:
    return "|".join(map(re.escape, texts))


def _whole(before: str, after: str, number: int) -> str:
    behind = "" if before == ELEMENT else r"(?=[ \t\r\n]*\{)"
    return (
        f"{''.join(_spaced(before))}(?P<name_{number}>{_NAME}{{1,64}}){''.join(_spaced(after, True))}{behind}"
    )


HEAD = re.compile(
    rf"(?P<opener>(?:[ \t\r\n]|{_any(_OPENERS)})*)"
    rf"(?:{'|'.join([_whole(*head, number) for number, head in enumerate(_HEADS)])})"
)
"""A call up to its arguments, with what belongs to it in front."""
_OPENED = "|".join([_beginnings([*map(re.escape, opener)]) for opener in _OPENERS])
_BEGUN = "|".join(
    [
        _beginnings([*_spaced(before), f"{_NAME}{{0,64}}", *_spaced(after, True), SPACE])
        for before, after in _HEADS
    ]
)
UNDECIDED = re.compile(rf"(?:[ \t\r\n]|{_any(_OPENERS)})*(?:{_OPENED}|{_BEGUN})?\Z")
"""The end of a text that may become a call; it matches the empty text, too."""
_CLOSED = "|".join([_beginnings([*map(re.escape, closer)]) for closer in _CLOSERS])
CLOSER = re.compile(rf"(?:[ \t\r\n]|{_any(_CLOSERS)})*")
"""Text behind a call that belongs to it."""
FENCE = re.compile(rf"```(?:{_beginnings([*'json'])}|{_beginnings([*'tool_co'])}|tool_c(?:al?|ode?)?)?\Z")
"""A fence at the end of a text, whose language may still follow."""
CLOSING = re.compile(rf"(?:{_CLOSED})\Z")
"""The beginning of what belongs to a call behind it."""


def may_call(name: str, before: str, form: AnswerForm) -> bool:
    """Return whether a head, with this text before its name, begins a call: grammars bound no others' arguments."""
    of_form = form.calls is None or before.startswith("{") or before == (form.calls.before or form.calls.mark)
    return of_form and (not form.functions or name in form.functions)


def begins_calls(text: str, form: AnswerForm) -> bool | None:
    """Return whether an answer that is calls or another form is calls; None while it is undecided."""
    begun = text.lstrip().removeprefix(PYTHON_TAG).lstrip()
    marks = [mark for mark in form.beginnings if mark]
    if begun.startswith(tuple(marks)):
        return True
    growing = any(mark.startswith(begun) for mark in (*marks, PYTHON_TAG))
    if "" in form.beginnings and begun.startswith("{"):
        head = HEAD.match(begun)
        if head is not None:
            return may_call(*name_of(head), form)
        growing = UNDECIDED.match(begun) is not None
    return None if growing else False


END = re.compile(rf'{SPACE}(?:,{SPACE}"id"{SPACE}:{SPACE}"[^"]*"{SPACE})?\}}')
"""The end of a call in JSON behind its arguments."""


def name_of(found: "re.Match[str]") -> tuple[str, str]:
    """Return the name in a head, and the text before it."""
    number, name = next(
        (number, name) for number in range(len(_HEADS)) if (name := found[f"name_{number}"]) is not None
    )
    return name, _HEADS[number][0]
