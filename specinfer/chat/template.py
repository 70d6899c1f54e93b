"""Chat templates in the environment that `transformers` gives them: conversations become text.

A model may have several by name: "tool_use" is taken where there are tools, else "default".
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specinfer.errors import IncompatibleError, InvalidInputError

_INSTRUCTIONS = (
    "You may call these functions, each described by a JSON object:\n{functions}\n"
    'To call, answer with nothing but {{"name": "NAME", "arguments": {{...}}}}, one a line.'
)


def told_in_words(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the conversation with roles that every template knows.

    Functions are described in the system's turn, calls are the assistant's words, results are the user's.
    """
    turns = [_in_words(message) for message in messages]
    if not tools:
        return turns
    functions = "\n".join([json.dumps(tool.get("function", tool)) for tool in tools])
    told = _INSTRUCTIONS.format(functions=functions)
    if turns and turns[0]["role"] == "system":
        return [{"role": "system", "content": f"{turns[0]['content']}\n\n{told}"}, *turns[1:]]
    return [{"role": "system", "content": told}, *turns]


def _in_words(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result of the function: {message['content']}"}
    if calls := message.get("tool_calls"):
        texts = [json.dumps(call["function"]) for call in calls]
        return {"role": message["role"], "content": "\n".join([*filter(None, [message["content"]]), *texts])}
    return message


Stored: TypeAlias = str | Sequence[Mapping[str, str]] | Mapping[str, str] | None
"""A template, or several: objects with `name` and `template`, or templates by name."""
Message: TypeAlias = Mapping[str, Any]
_DEFAULT, _TOOLS = "default", "tool_use"


class ChatEnd(IntEnum):
    """End of a conversation, in front of the answer; numbers are those of the contract."""

    OPENED = 0
    """The head of the assistant's turn."""
    CLOSED = 1
    """Nothing behind the last message."""
    CONTINUED = 2
    """The last message, which is the assistant's, goes on."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is what is inside."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """The templates of a model."""

    def __init__(self, stored: Stored, specials: Mapping[str, Any]) -> None:
        """Take the templates as they are stored; `specials` are the special tokens by their roles.

        Raises:
            IncompatibleError: if they are stored in no known form.
        """
        self._specials = dict(specials)
        self.texts = _by_name(stored)
        """Templates by name."""

    def problem(self) -> str | None:
        """Return why a template cannot be read; None if all can."""
        for name in self.texts:
            try:
                self._compiled(name)
            except TemplateError as error:
                return f"{name}: {error}"
        return None

    def render(
        self, messages: Sequence[Message], tools: Sequence[Message], end: ChatEnd = ChatEnd.OPENED
    ) -> str:
        """Return a conversation as text.

        Raises:
            InvalidInputError: if the template refuses the messages, or fails.
            IncompatibleError: if the model has no template for them.
        """
        name = self._name(bool(tools))
        knows = "tools" in self.texts[name]
        turns, tools = (messages, tools) if knows else (told_in_words(messages, tools), ())
        if end is ChatEnd.CONTINUED:
            turns = [*turns[:-1], {**turns[-1], "content": f"{turns[-1]['content']}{_MARK}"}]
        roles = [message.get("role") for message in messages]
        try:
            text = self._compiled(name).render(
                {"messages": turns, "tools": list(tools) or None, "documents": None}
                | {"add_generation_prompt": end is ChatEnd.OPENED}
                | self._specials
            )
        except TemplateError as error:
            raise InvalidInputError("chat", roles, str(error)) from error
        except Exception as error:  # it is the template's code, which may raise anything
            what = f"the model's chat template fails: {type(error).__name__}: {error}"
            raise InvalidInputError("chat", roles, what) from error
        return _continued(text, str(messages[-1]["content"])) if end is ChatEnd.CONTINUED else text

    def _name(self, with_tools: bool) -> str:
        for name in (_TOOLS, _DEFAULT) if with_tools else (_DEFAULT,):
            if name in self.texts:
                return name
        if self.texts:
            raise IncompatibleError(
                f"the model's chat templates are {sorted(self.texts)}: none is the default"
            )
        raise IncompatibleError("the model has no chat template: send plain text or token ids")

    def _compiled(self, name: str) -> Template:
        """Return a compiled template; compiling takes milliseconds."""
        if name not in self._templates:
            self._templates[name] = self._environment.from_string(self.texts[name])
        return self._templates[name]

    @cached_property
    def _templates(self) -> dict[str, Template]:
        return {}

    @cached_property
    def _environment(self) -> Environment:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        environment.filters["tojson"] = _to_json
        return environment


def stored_templates(directory: Path, config: Mapping[str, Any]) -> Stored:
    """Return the chat templates of a model directory; files of their own come before `config`.

    Args:
        config: content of `tokenizer_config.json`.
    """
    path, others = directory / "chat_template.jinja", directory / "additional_chat_templates"
    found = {other.stem: other.read_text() for other in sorted(others.glob("*.jinja"))}
    if path.is_file():
        found[_DEFAULT] = path.read_text()
    if found:
        return found
    beside = directory / "chat_template.json"
    stored: Stored = config.get("chat_template")
    return (
        json.loads(beside.read_text()).get("chat_template") if stored is None and beside.is_file() else stored
    )


def _by_name(stored: Stored) -> dict[str, str]:
    if not stored:
        return {}
    match stored:
        case str():
            return {_DEFAULT: stored}
        case Mapping():
            named = dict(stored)
        case _:
            try:
                named = {entry["name"]: entry["template"] for entry in stored}
            except (KeyError, TypeError) as error:
                raise IncompatibleError(
                    "chat_template: a list of other things than names and templates"
                ) from error
    if not all(isinstance(text, str) for text in named.values()):
        raise IncompatibleError("chat_template: a template is no text")
    return named


_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""Follows the words of a message that goes on: they may be in what closes a turn, too. It is that of `transformers`."""


def _continued(text: str, last: str) -> str:
    """Return a conversation up to the mark behind its last message's words, as `transformers` cuts it.

    Raises:
        InvalidInputError: if the template does not show it.
    """
    place = text.rfind(_MARK.strip())
    if place < 0 or last.strip() not in text[:place]:
        raise InvalidInputError("chat", last, "the chat template does not show the last message as it is")
    kept = text[:place]
    return kept if text.startswith(_MARK, place) else kept.rstrip()


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # the local day, as `transformers` has it


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON for models, not for pages: nothing is escaped for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
