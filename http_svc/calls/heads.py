"""Match the heads of function calls: their text up to the arguments."""

import re
from collections.abc import Sequence

from http_svc.calls.answer_form import AnswerForm
from specinfer.text.chat.forms import BY_NAME, DEEPSEEK, FORMS, PYTHON_TAG, TOOL_CALL

SPACE = r"[ \t\r\n]{0,20}"
"""White space in a head; valid in Rust's and Python's regular expressions."""
MAX_NAME = 256
"""Maximum characters of a function's name; OpenAI's API has 64."""
_NAME = r"[\w./:@-]"
NAME = rf"^{_NAME}+$"
"""Names that all forms of calls can express, up to `MAX_NAME` characters."""
ELEMENT = BY_NAME["qwen3_coder"].before
"""Beginning of a call whose arguments are XML elements, not JSON."""


_BLANKS = r"[ \t\r\n]*"
_TYPE = _BLANKS.join(['(?:"type"', ":", '"function"', ",", ")?"])
JSON_OPENING = _BLANKS.join([r"\{", f'{_TYPE}"name"', ":", '"'])
"""Start of a JSON call, up to its name, with unlimited blanks."""
JSON_NEAR_OPENING = JSON_OPENING.replace("*", "{0,4}")
"""`JSON_OPENING` with at most 4 blanks in a row."""
JSON_MIDDLE = r"[ \t\r\n]{0,4}".join(['"', ",", '"(?:arguments|parameters)"', ":"])
"""Text of a JSON call between its name and its arguments."""
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
"""Per form, the texts before and after a function's name."""
_FENCES = ("```json", "```tool_call", "```tool_code", "```")
_OPENERS = (
    *_FENCES,
    *dict.fromkeys(form.mark for form in FORMS if form.mark),
    *(PYTHON_TAG, "<function_call>", "[", ",", ";"),
)
"""Texts removed directly before a call."""
_CLOSERS = (*_FENCES, TOOL_CALL[1], "</function_call>", *DEEPSEEK[1:], "]", ",", ";", "}")
"""Texts removed directly after a call."""


def _spaced(text: str, in_text: bool = False) -> list[str]:
    """Return one regular expression per character, with optional blanks in JSON.

    `in_text`: the text begins inside a JSON string.
    """
    signs = list[str]()
    for sign in text:
        in_text ^= sign == '"'
        if text[:1] in '{"' and not in_text and sign in ":,}":
            signs += [_BLANKS, re.escape(sign), _BLANKS]
        else:
            signs += [re.escape(sign)] + [_BLANKS] * (sign == "{")
    return signs


def prefixes_of(signs: Sequence[str]) -> str:
    """Return an expression that matches every non-empty prefix of `signs`."""
    return signs[0] + "".join([f"(?:{sign}" for sign in signs[1:]]) + ")?" * (len(signs) - 1)


def _any(texts: Sequence[str]) -> str:
    return "|".join(map(re.escape, texts))


def _whole(before: str, after: str, number: int) -> str:
    lookahead = "" if before == ELEMENT else r"(?=[ \t\r\n]*\{)"
    name = f"(?P<name_{number}>{_NAME}{{1,{MAX_NAME}}})"
    return f"{''.join(_spaced(before))}{name}{''.join(_spaced(after, True))}{lookahead}"


HEAD = re.compile("|".join([_whole(*head, number) for number, head in enumerate(_HEADS)]))
"""A call's head, without preceding `_OPENERS`."""
_OPENED = "|".join([prefixes_of([*map(re.escape, opener)]) for opener in _OPENERS])
_BEGUN = "|".join(
    [
        prefixes_of([*_spaced(before), f"{_NAME}{{0,{MAX_NAME}}}", *_spaced(after, True), SPACE])
        for before, after in _HEADS
    ]
)
UNDECIDED = re.compile(rf"(?:{_OPENED}|{_BEGUN})?\Z")
"""The longest end of a text that may become a head."""
_BACKWARDS = re.compile(rf"(?:[ \t\r\n]|{_any([opener[::-1] for opener in _OPENERS])})*")


def without_openers(text: str, start: int, end: int) -> int:
    """Return the end of `text[start:end]` without `_OPENERS` and white space."""
    opened = _BACKWARDS.match(text[start:end][::-1])
    assert opened is not None
    return end - opened.end()


_CLOSED = "|".join([prefixes_of([*map(re.escape, closer)]) for closer in _CLOSERS])
CLOSER = re.compile(rf"(?:[ \t\r\n]|{_any(_CLOSERS)})*")
"""`_CLOSERS` and white space after a call."""
FENCE = re.compile(rf"```(?:{prefixes_of([*'json'])}|{prefixes_of([*'tool_co'])}|tool_c(?:al?|ode?)?)?\Z")
"""A Markdown fence at the text's end, possibly with an incomplete language."""
CLOSING = re.compile(rf"(?:{_CLOSED})\Z")
"""The incomplete beginning of a closer at the text's end."""


def may_call(name: str, before: str, form: AnswerForm) -> bool:
    """Return whether a head has an accepted form and function name.

    Other heads are text, as no grammar constrains their arguments.
    """
    of_form = form.calls is None or before.startswith("{") or before == (form.calls.before or form.calls.mark)
    return of_form and (not form.functions or name in form.functions)


def begins_calls(text: str, form: AnswerForm) -> bool | None:
    """Return whether an answer begins with a call; None if unknown yet."""
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
"""End of a JSON call, after the arguments."""


def name_of(match: "re.Match[str]") -> tuple[str, str]:
    """Return a head's function name, and its form's text before the name."""
    number, name = next(
        (number, name) for number in range(len(_HEADS)) if (name := match[f"name_{number}"]) is not None
    )
    return name, _HEADS[number][0]
