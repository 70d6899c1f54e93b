"""Forms and marks of function calls and thoughts in chat templates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Marks around thoughts."""
CALLS = (
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
)
"""Marks around calls."""
TEXT_MARKS = frozenset([*CALLS, *[mark for pair in THOUGHTS for mark in pair]])
"""Marks inside an answer's text, even if special tokens."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """Text around the name and the arguments of calls."""

    name: str
    mark: str
    """Always begins a call; empty for plain JSON."""
    begin: str
    """Text before the first call, after the mark."""
    before: str
    """Between a call's beginning and its name."""
    middle: str
    """Between a call's name and its arguments."""
    after: str
    """Text after the arguments."""
    between: str
    """Between two calls."""
    end: str
    """Text after the last call."""
    parameters: tuple[str, str, str] = ("", "", "")
    """Text before a parameter, before and after its value; empty for JSON."""


_NAME, _ARGUMENTS, _PARAMETERS = '{"name": "', '", "arguments": ', '", "parameters": '
TOOL_CALL = ("<tool_call>", "</tool_call>")
PYTHON_TAG = "<|python_tag|>"
"""May stand in front of calls of Llama 3."""
DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
JSON = CallForm("json", "", "", _NAME, _ARGUMENTS, "}", "\n", "")
"""Plain JSON, one call a line, for templates without tools."""
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
"""Forms by name, selected by the template's text."""
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
    """Return the name of a template's form; JSON if it has none."""
    if "tools" not in template:
        return JSON.name
    return next((name for name, teaches in _TAUGHT.items() if teaches(template)), JSON.name)


@dataclass(frozen=True, slots=True)
class ChatForm:
    """Form of a model's answers to conversations."""

    calls: str = JSON.name
    """Name of the form of calls."""
    thoughts: tuple[str, str] = ("", "")
    """Marks around thoughts; empty if the template knows none."""
    begins_in_thoughts: bool = False
    """True if the assistant's turn begins within thoughts."""
    begins_in_thoughts_if_asked: bool = False
    """The same where `enable_thinking` and `thinking` are true."""
    mark_tokens: Mapping[str, int] = field(default_factory=dict)
    """Added tokens that are marks of calls or thoughts, by their text."""


def marks_of_thoughts(template: str) -> tuple[str, str]:
    """Return the marks around a template's thoughts, or empty ones."""
    return next((pair for pair in THOUGHTS if pair[0] in template or pair[1] in template), ("", ""))
