"""Formats of function calls and reasoning in models' answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

REASONING_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""(begin, end) marks of reasoning."""
CALLS = (
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
)
"""Marks of function calls."""
START, CHANNEL, MESSAGE, CONSTRAIN, END = (
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
)
HARMONY = "harmony"
"""Name of gpt-oss's format: messages in channels, one of them of reasoning."""
HARMONY_MARKS = frozenset([START, CHANNEL, MESSAGE, CONSTRAIN, END])
TEXT_MARKS = frozenset(
    [START, CHANNEL, MESSAGE, CONSTRAIN, *CALLS, *[mark for pair in REASONING_MARKS for mark in pair]]
)
"""Marks kept in an answer's text, even if they are special tokens."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """Format of function calls: the texts around names and arguments."""

    name: str
    mark: str
    """Text that only the first call begins with; empty for `JSON`."""
    begin: str
    """Optional second text before the first call."""
    before: str
    """Text before a call's function name."""
    middle: str
    """Text between a call's function name and its arguments."""
    after: str
    """Text after a call's arguments."""
    between: str
    """Text between two calls."""
    end: str
    """Text after the last call."""
    parameters: tuple[str, str, str] = ("", "", "")
    """Texts around a parameter: before its name, before and after its value.

    Empty if the arguments are JSON.
    """


_NAME, _ARGUMENTS, _PARAMETERS = '{"name": "', '", "arguments": ', '", "parameters": '
TOOL_CALL = ("<tool_call>", "</tool_call>")
PYTHON_TAG = "<|python_tag|>"
"""Optional text before calls of Llama 3."""
DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
JSON = CallForm("json", "", "", _NAME, _ARGUMENTS, "}", "\n", "")
"""Format for templates without tools: a JSON object per line."""
HERMES = CallForm(
    *("hermes", TOOL_CALL[0], "\n", _NAME, _ARGUMENTS, f"}}\n{TOOL_CALL[1]}"),
    between=f"\n{TOOL_CALL[0]}\n",
    end="",
)
FORMS = (
    CallForm("mistral_args", "[TOOL_CALLS]", "", "", "[ARGS]", "", "[TOOL_CALLS]", ""),
    CallForm("mistral", "[TOOL_CALLS]", " [", _NAME, _ARGUMENTS, "}", ", ", "]"),
    CallForm(
        "deepseek",
        DEEPSEEK[0],
        "",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        "\n```json\n",
        f"\n```{DEEPSEEK[1]}",
        "\n",
        DEEPSEEK[2],
    ),
    CallForm(
        "deepseek_flat",
        DEEPSEEK[0],
        "",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        DEEPSEEK[1],
        "",
        DEEPSEEK[2],
    ),
    CallForm(
        *("qwen3_coder", TOOL_CALL[0], "\n", "<function=", ">\n", f"</function>\n{TOOL_CALL[1]}"),
        between=f"\n{TOOL_CALL[0]}\n",
        end="",
        parameters=("<parameter=", ">\n", "\n</parameter>\n"),
    ),
    HERMES,
    CallForm("llama", "", "", _NAME, _PARAMETERS, "}", "; ", ""),
    JSON,
)
"""Known formats, recognised by their marks in the template's text."""
BY_NAME = {form.name: form for form in FORMS}
_TAUGHT: Mapping[str, Callable[[str], bool]] = {
    "mistral_args": lambda text: "[TOOL_CALLS]" in text and "[ARGS]" in text,
    "mistral": lambda text: "[TOOL_CALLS]" in text,
    "deepseek": lambda text: "<｜tool▁sep｜>" in text and "```json" in text,
    "deepseek_flat": lambda text: "<｜tool▁sep｜>" in text,
    "qwen3_coder": lambda text: "<function=" in text and "<parameter=" in text,
    "hermes": lambda text: TOOL_CALL[0] in text,
    "llama": lambda text: PYTHON_TAG in text or '"parameters": dictionary' in text,
}


def taught_form(template: str) -> str:
    """Return the name of a template's format of calls; "json" if unknown."""
    if CHANNEL in template and MESSAGE in template:
        return HARMONY
    if "tools" not in template:
        return JSON.name
    return next((name for name, teaches in _TAUGHT.items() if teaches(template)), JSON.name)


@dataclass(frozen=True, slots=True)
class ChatForm:
    """Format of a model's answers to conversations."""

    calls: str = JSON.name
    """Name of the format of calls."""
    reasoning: tuple[str, str] = ("", "")
    """Marks of reasoning; empty if the template has none."""
    mark_tokens: Mapping[str, int] = field(default_factory=dict)
    """Ids of special tokens that are marks, by text."""
    tools: bool = False
    """True if the template shows tools; otherwise they are described in a system message."""
    infill: bool = False
    """True if the model has tokens for texts with a gap."""


def reasoning_marks(template: str) -> tuple[str, str]:
    """Return a template's marks of reasoning; empty strings without marks."""
    if CHANNEL in template and MESSAGE in template:
        return f"{CHANNEL}analysis{MESSAGE}", END
    return next((pair for pair in REASONING_MARKS if pair[0] in template or pair[1] in template), ("", ""))


def ends_in_reasoning(prompt: str, marks: tuple[str, str], begun: str = "") -> bool:
    """Return whether a rendered conversation ends within reasoning.

    Args:
        prompt: the text that the answer continues.
        marks: the template's marks of reasoning.
        begun: the assistant's message that the answer continues; empty: a new message.
    """
    begin, end = marks
    if not begin or (begun.partition(begin)[0].strip() and begin in begun):
        return False  # reasoning is at an answer's beginning: a mark after words is part of them
    _, mark, thoughts = prompt.rpartition(begin)
    return bool(mark) and end not in thoughts and begun.rstrip().endswith(thoughts.strip())
