"""Grammars of answers with calls, in the model's form or JSON.

Marks that are added tokens stand in a grammar by their numbers: no text may have such a token.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from http_svc.body.tools import Function
from http_svc.calls.any_object import object_rules
from http_svc.calls.elements import ELEMENT_TEXT, are_elements, element_rules
from http_svc.calls.heads import JSON_MIDDLE, JSON_NEAR_OPENING, JSON_OPENING, SPACE
from http_svc.calls.reader import MAX_CALLS
from http_svc.tool_schemas import followed
from specinfer.chat.forms import BY_NAME, HERMES, JSON, PYTHON_TAG, CallForm

_QUOTED = r'"\w+"'


@dataclass(frozen=True, slots=True)
class Wanted:
    """Forms that an answer may have."""

    functions: Sequence[Function]
    form: CallForm
    must_call: bool = False
    several: bool = True
    """True: more than one call."""
    other: str = ""
    """Rule of an answer without calls, in Lark's notation; empty: any words."""
    any_object: bool = False
    """True: the answer is any JSON object instead of calls."""
    thoughts: tuple[str, str] = ("", "")
    """Marks around thoughts; empty: there are none."""
    begins_in_thoughts: bool = False
    mark_tokens: Mapping[str, int] = field(default_factory=dict)
    """Marks that are added tokens."""

    def text(self, text: str) -> str:
        """Return a text's terminals, one per part of JSON.

        A longer part would exclude other JSON that begins alike.
        """
        tokens = self.mark_tokens
        marks = [re.escape(mark) for mark in tokens]
        parts = re.findall("|".join([*marks, _QUOTED, "."]), text, re.DOTALL)
        written = [
            f"<[{tokens[part]}]>" if part in tokens else json.dumps(part, ensure_ascii=False)
            for part in parts
        ]
        return " ".join(written)


def form_named(name: str) -> CallForm:
    """Return a form of calls by name; JSON if unknown."""
    return BY_NAME.get(name, JSON)


def call_grammar(wanted: Wanted) -> str:
    """Return the grammar of an answer.

    The arguments of function i are line i + 1, so that errors about them name that line.
    """
    arguments = [
        f"args_{i}: %json {json.dumps(followed(function))}" for i, function in enumerate(wanted.functions)
    ]
    bound = wanted.must_call or wanted.any_object or wanted.other
    answer = _strict(wanted) if bound else _free(wanted)
    return "\n".join([*arguments, *_section(wanted), *answer, *_thoughts(wanted)])


def _section(wanted: Wanted) -> list[str]:
    """Return rules of calls in the model's form, after its mark."""
    form, arguments, rules = wanted.form, "args", list[str]()
    if any(form.parameters):
        schemas = [followed(function) for function in wanted.functions]
        if all(
            are_elements(schema, bool(one.strict))
            for schema, one in zip(schemas, wanted.functions, strict=True)
        ):
            arguments = "elements"
            rules = [rule for i, schema in enumerate(schemas) for rule in element_rules(i, schema)]
            rules += [ELEMENT_TEXT] * any("element_text" in rule for rule in rules)
        else:
            form = HERMES
    calls = [
        f"call_{i}: {wanted.text(form.before + one.name + form.middle)} {arguments}_{i} {wanted.text(form.after)}"
        for i, one in enumerate(wanted.functions)
    ]
    either = " | ".join([f"call_{i}" for i in range(len(calls))])
    more = f"({wanted.text(form.between)} call){{0,{MAX_CALLS - 1}}}" if wanted.several else ""
    blank = '" "?' if form.begin.startswith(" ") else ""
    section = f"section: {blank} {wanted.text(form.begin.lstrip(' '))} call {more} {wanted.text(form.end)}"
    return [*rules, *calls, f"call: {either}", section]


def _strict(wanted: Wanted) -> list[str]:
    """Return rules of answers that are calls, or the other form.

    JSON without the form's mark is a call only where the answer may be any object.
    """
    calls, more_rules = [f"{_python(wanted)} {wanted.text(wanted.form.mark)} section LINE?"], []
    rules = ["LINE: /[ \\n]{1,4}/"]
    if not wanted.must_call and wanted.any_object:
        calls = [*(calls if wanted.form.mark else ()), f"{_python(wanted)} json_calls LINE?"]
        more_rules = ["other_object"]
        rules += object_rules([one.name for one in wanted.functions], wanted.several)
    elif not wanted.must_call:
        more_rules = [wanted.other]
    return [f"start: {_thought(wanted)} answer", f"answer: {' | '.join([*calls, *more_rules])}", *rules]


def _free(wanted: Wanted) -> list[str]:
    """Return rules of answers in words, then calls.

    Words end where a call begins: in the taught form, or as JSON that has the name of a function. JSON that begins like
    a call and has another name is words. Where calls are plain JSON, an answer that begins with a brace is a call.
    """
    form, functions = wanted.form, wanted.functions
    names = " | ".join([json.dumps(function.name) for function in functions])
    calls = " | ".join([f"name_{i} GAP? args_{i} CLOSE" for i in range(len(functions))])
    first = "REST? | opening named" if form.mark else "WORDS? | opened calls | words_opening named"
    later = f"TAIL? | again calls{_marked(wanted, 'TAIL?', 'tail_marked')}" if wanted.several else "TAIL?"
    return [
        f"start: {_thought(wanted)} {_python(wanted)} ({first}{_marked(wanted, 'REST?', 'marked')})",
        "named: calls | OTHER? | other_opening named",
        f"calls: ({calls}) later",
        f"later: {later}",
        *[f"name_{i}[lazy]: {json.dumps(one.name)} MIDDLE" for i, one in enumerate(functions)],
        "opened[lazy]: BLANK NEAR_OPENING",
        "opening[lazy]: TEXT OPENING",
        "words_opening[lazy]: NO_OBJECT OPENING",
        "other_opening[lazy]: (TEXT & ~NAMED) OPENING",
        "again[lazy]: TAIL? OPENING",
        *_spelled(wanted),
        f"BLANK: /{SPACE}/",
        "TEXT: /(?s:.*)/",
        f"NO_OBJECT: /{SPACE}[^\\{{ \\t\\r\\n](?s:.*)/",
        f"OPENING: /{JSON_OPENING}/",
        f"NEAR_OPENING: /{JSON_NEAR_OPENING}/",
        f"MIDDLE: /{JSON_MIDDLE}/",
        "GAP: /[ \\n]{1,4}/",
        "CLOSE: /[ \\n]{0,4}\\}/",
        "TAIL: /([ \\t\\r\\n,;\\]]|```(json)?|<\\/tool_call>){1,12}/",
        f"NAMED: ({names}) MIDDLE TEXT",
        f"BEGUN: TEXT OPENING TEXT{' | TEXT MARK TEXT' if _spelled(wanted) else ''}",
        "WORDS: (NO_OBJECT | /[ \\t\\r\\n]{1,20}/) & ~BEGUN",
        "REST: /(?s:.+)/ & ~BEGUN",
        "OTHER: /(?s:.+)/ & ~BEGUN & ~NAMED",
    ]


def _marked(wanted: Wanted, words: str, spelled: str) -> str:
    """Return a rule's alternative with words, the mark and calls."""
    mark = wanted.form.mark
    if mark in wanted.mark_tokens:
        return f" | {words} {wanted.text(mark)} section later"
    return f" | {spelled} section later" if mark else ""


def _spelled(wanted: Wanted) -> list[str]:
    """Return rules of words before a mark without its own token."""
    mark = wanted.form.mark
    if not mark or mark in wanted.mark_tokens:
        return []
    return [f"MARK: {json.dumps(mark)}", "marked[lazy]: TEXT MARK", "tail_marked[lazy]: TAIL? MARK"]


def _python(wanted: Wanted) -> str:
    return (
        f"({wanted.text(PYTHON_TAG)})?"
        if wanted.form.name == "llama" and PYTHON_TAG in wanted.mark_tokens
        else ""
    )


def _thought(wanted: Wanted) -> str:
    if not wanted.thoughts[0]:
        return ""
    return "thought LINES?" if wanted.begins_in_thoughts else "(thought LINES?)?"


def _thoughts(wanted: Wanted) -> list[str]:
    """Return rules of thoughts in front of the answer."""
    begin, end = wanted.thoughts
    if not begin:
        return []
    lines = "LINES: /[ \\n]{1,8}/"
    if end in wanted.mark_tokens:
        opening = "" if wanted.begins_in_thoughts else wanted.text(begin)
        return [f"thought: {opening} THINKING? {wanted.text(end)}", "THINKING: /(?s:.+)/", lines]
    opening = "" if wanted.begins_in_thoughts else f"/{SPACE}/ {json.dumps(begin)}"
    return [f"thought[lazy]: {opening} /(?s:.*)/ {json.dumps(end)}", lines]
