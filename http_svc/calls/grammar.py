"""Write Lark grammars of answers with function calls, in any model's form.

A mark (such as `<tool_call>`) that is one special token appears in a grammar as its token id: free text cannot
contain this token.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from http_svc.body.tools import Function
from http_svc.calls.any_object import object_rules
from http_svc.calls.elements import ELEMENT_TEXTS, FUNCTION_END, are_elements, element_rules
from http_svc.calls.harmony import harmony_rules
from http_svc.calls.heads import JSON_MIDDLE, JSON_NEAR_OPENING, JSON_OPENING, SPACE
from http_svc.calls.reader import MAX_CALLS
from http_svc.tool_schemas import followed
from specinfer.text.chat.forms import BY_NAME, HERMES, JSON, PYTHON_TAG, CallForm

_QUOTED = r'"\w+"'


@dataclass(frozen=True, slots=True)
class Wanted:
    """Description of the answers that a grammar must accept."""

    functions: Sequence[Function]
    form: CallForm
    must_call: bool = False
    several: bool = True
    """True: one answer may have several calls."""
    other: str = ""
    """Lark rule of an answer without calls; empty: any text."""
    any_object: bool = False
    """True: an answer without calls is any JSON object."""
    harmony: bool = False
    """True for gpt-oss's format."""
    reasoning: tuple[str, str] = ("", "")
    """Marks around the reasoning; empty if the model has none."""
    mark_tokens: Mapping[str, int] = field(default_factory=dict)
    """Token ids of marks that are one special token."""

    def text(self, text: str) -> str:
        """Return the Lark terminals of a text: marks, quoted words, single characters.

        The lexer prefers longer terminals, and would exclude other JSON with the same beginning.
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
    return BY_NAME.get(name, JSON)


def call_grammar(wanted: Wanted) -> str:
    """Return the grammar of an answer.

    Line i + 1 defines the arguments of function i, and the next line an answer without calls, so that
    `name_function` can name what an error concerns.
    """
    arguments = [
        f"args_{i}: %json {json.dumps(followed(function))}" for i, function in enumerate(wanted.functions)
    ]
    if wanted.harmony:
        return "\n".join([*arguments, *harmony_rules(wanted)])
    bound = wanted.must_call or wanted.any_object or wanted.other
    answer = _strict(wanted) if bound else _free(wanted)
    other = [f"other: {wanted.other}"] if wanted.other else []
    begun = [
        _begun_in_reasoning(line) for line in answer if line.startswith("start:") and wanted.reasoning[0]
    ]
    return "\n".join([*arguments, *other, *_section(wanted), *answer, *begun, *_reasoning_rules(wanted)])


def _section(wanted: Wanted) -> list[str]:
    """Return rules of the calls, which follow the form's mark."""
    form, arguments, rules = wanted.form, "args", list[str]()
    after = form.after
    if any(form.parameters):
        schemas = [followed(function) for function in wanted.functions]
        if all(
            are_elements(schema, bool(one.strict))
            for schema, one in zip(schemas, wanted.functions, strict=True)
        ):
            arguments, after = "elements", after.removeprefix(FUNCTION_END)
            rules = [rule for i, schema in enumerate(schemas) for rule in element_rules(i, schema)]
            rules += ELEMENT_TEXTS
        else:
            form, after = HERMES, HERMES.after
    calls = [
        f"call_{i}: {wanted.text(form.before + one.name + form.middle)} {arguments}_{i} {wanted.text(after)}"
        for i, one in enumerate(wanted.functions)
    ]
    either = " | ".join([f"call_{i}" for i in range(len(calls))])
    more = f"({wanted.text(form.between)} call){{0,{MAX_CALLS - 1}}}" if wanted.several else ""
    blank = '" "?' if form.begin.startswith(" ") else ""
    section = f"section: {blank} {wanted.text(form.begin.lstrip(' '))} call {more} {wanted.text(form.end)}"
    return [*rules, *calls, f"call: {either}", section]


def _strict(wanted: Wanted) -> list[str]:
    """Return rules of answers without free text: calls, `other` or JSON objects.

    JSON without the form's mark is a call only with `any_object`.
    """
    calls, more_rules = [f"{_python(wanted)} {wanted.text(wanted.form.mark)} section LINE?"], []
    rules = ["LINE: /[ \\n]{1,4}/"]
    if not wanted.must_call and wanted.any_object:
        calls = [*(calls if wanted.form.mark else ()), f"{_python(wanted)} json_calls LINE?"]
        more_rules = ["other_object"]
        rules += object_rules([one.name for one in wanted.functions], wanted.several)
    elif not wanted.must_call:
        more_rules = ["other"]
    return [
        f"start: {_reasoning_symbol(wanted)} answer",
        f"answer: {' | '.join([*calls, *more_rules])}",
        *rules,
    ]


def _free(wanted: Wanted) -> list[str]:
    """Return rules of answers of free text, then calls.

    Text ends where a call begins: in the model's form, or as JSON with the name of a function. JSON that begins as a
    call with another name is text. If the model's form is plain JSON, an answer that begins with a brace is a call.
    """
    form, functions = wanted.form, wanted.functions
    names = " | ".join([json.dumps(function.name) for function in functions])
    calls = " | ".join([f"name_{i} GAP? args_{i} CLOSE" for i in range(len(functions))])
    first = "REST? | opening named" if form.mark else "WORDS? | opened calls | words_opening named"
    later = f"TAIL? | again calls{_marked(wanted, 'TAIL?', 'tail_marked')}" if wanted.several else "TAIL?"
    return [
        f"start: {_reasoning_symbol(wanted)} {_python(wanted)} ({first}{_marked(wanted, 'REST?', 'marked')})",
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
    """Return the alternative for a rule: text, the form's mark, calls."""
    mark = wanted.form.mark
    if mark in wanted.mark_tokens:
        return f" | {words} {wanted.text(mark)} section later"
    return f" | {spelled} section later" if mark else ""


def _spelled(wanted: Wanted) -> list[str]:
    """Return rules of text before a mark without a special token."""
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


def _reasoning_symbol(wanted: Wanted) -> str:
    return _THOUGHT if wanted.reasoning[0] else ""


_THOUGHT = "(thought LINES?)?"


def _begun_in_reasoning(start: str) -> str:
    """Return the rule of an answer whose prompt ends within reasoning."""
    return start.replace("start:", "start_in_reasoning:").replace(_THOUGHT, "thinking LINES?")


def _reasoning_rules(wanted: Wanted) -> list[str]:
    """Return rules of the reasoning before the answer."""
    begin, end = wanted.reasoning
    if not begin:
        return []
    lines = "LINES: /[ \\n]{1,8}/"
    if end in wanted.mark_tokens:
        thinking = f"thinking: THINKING? {wanted.text(end)}"
        return [f"thought: {wanted.text(begin)} thinking", thinking, "THINKING: /(?s:.+)/", lines]
    thinking = f"/(?s:.*)/ {json.dumps(end)}"
    thought = f"thought[lazy]: /{SPACE}/ {json.dumps(begin)} {thinking}"
    return [thought, f"thinking[lazy]: {thinking}", lines]
