"""Render conversations as text by Jinja chat templates, like `transformers`.

A model may have several named templates: "tool_use" is used with tools, else "default".
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from jinja2 import TemplateError

from specinfer.errors import IncompatibleError, InvalidInputError
from specinfer.system.json_files import read_json
from specinfer.text.chat.bounded import BoundedTemplates, RenderError, RenderLimitError
from specinfer.text.chat.forms import HARMONY, ChatForm, reasoning_marks, taught_form
from specinfer.text.chat.hidden import Hider
from specinfer.text.chat.turns import single_calls, takes_text, variants, with_text_arguments, with_thinking
from specinfer.text.chat.words import Message, with_common_roles

Stored: TypeAlias = str | Sequence[Mapping[str, str]] | Mapping[str, str] | None
"""One template, templates by name, or objects with `name` and `template`."""
_FIELD = "tokenizer_config.json: chat_template"
_DEFAULT, _TOOLS = "default", "tool_use"


class ChatEnd(IntEnum):
    """End of the rendered conversation; values are the protocol's."""

    OPENED = 0
    """The header of the assistant's turn follows the last message."""
    CLOSED = 1
    """Nothing follows the last message."""
    CONTINUED = 2
    """The answer continues the last message, an assistant's."""


class ChatTemplate:
    def __init__(self, stored: Stored, specials: Mapping[str, Any]) -> None:
        """Read stored templates; `specials`: special tokens by role."""
        self._specials = dict(specials)
        self.texts = _by_name(stored)
        """Templates by name."""

    def problem(self) -> str | None:
        """Return the error of a template that is invalid or unbounded."""
        return self._problem

    @cached_property
    def _problem(self) -> str | None:
        if not self.texts:
            return None
        try:
            if (problem := self._bounded.problem()) is not None or _DEFAULT not in self.texts:
                return problem
            self._render(_DEFAULT, [{"role": "user", "content": "a"}], {"tools": None})
        except RenderLimitError as error:
            return str(error)
        except (TemplateError, RenderError):  # raised for this conversation only
            pass
        return None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        end: ChatEnd = ChatEnd.OPENED,
        variables: Mapping[str, Any] | None = None,
        hider: Hider | None = None,
    ) -> str:
        """Return a conversation as text.

        If the template refuses the messages, variants of them are tried (`specinfer.text.chat.turns`).

        Args:
            messages: messages of OpenAI's API.
            tools: functions that may be called.
            end: how the conversation ends.
            variables: further variables of the template.
            hider: hides names of special tokens in callers' texts; the names stay hidden in the result.
        """
        name = self._name(bool(tools))
        roles = [message.get("role") for message in messages]
        if problem := self.problem():
            raise InvalidInputError("chat", roles, f"the model's chat template cannot be used: {problem}")
        try:
            turns = [_hidden(message, hider) for message in messages] if hider else list(messages)
            functions = hider.hide_all(list(tools)) if hider else list(tools)
            given = (hider.hide_all(variables) if hider else dict(variables)) if variables else {}
        except RecursionError as error:
            raise InvalidInputError("chat", roles, "lists or objects are nested too deeply") from error
        if end is ChatEnd.CONTINUED:
            turns = [*turns[:-1], {**turns[-1], "content": f"{turns[-1]['content']}{_MARK}"}]
        if "tools" not in self.texts[name]:
            turns, functions = with_common_roles(turns, functions), []
        elif self._takes_text(name):
            turns = with_text_arguments(turns)
        if taught_form(self.texts[name]) == HARMONY:
            turns = with_thinking(single_calls(turns))
        values = given | {"tools": functions or None, "add_generation_prompt": end is ChatEnd.OPENED}
        text = self._first_rendered(name, turns, values, roles, hider)
        if end is not ChatEnd.CONTINUED:
            return text
        shown = hider.show(text) if hider else text
        return text[: len(_continued(shown, str(messages[-1]["content"])))]

    def _first_rendered(
        self,
        name: str,
        turns: Sequence[Message],
        values: Mapping[str, Any],
        roles: Sequence[Any],
        hider: Hider | None,
    ) -> str:
        """Return the text of the first variant that the template accepts."""
        refusal: InvalidInputError | None = None
        for variant in variants(turns):
            try:
                return self._render(name, variant, values, hider)
            except TemplateError as error:
                refusal = refusal or InvalidInputError("chat", roles, str(error))
            except RenderError as error:
                reason = f"the model's chat template fails: {error}"
                refusal = refusal or InvalidInputError("chat", roles, reason)
                if isinstance(error, RenderLimitError):
                    break
        assert refusal is not None
        raise refusal

    def _render(
        self, name: str, turns: Sequence[Message], values: Mapping[str, Any], hider: Hider | None = None
    ) -> str:
        return self._bounded.render(
            name, {"documents": None} | dict(values) | {"messages": list(turns)}, hider
        )

    def _takes_text(self, name: str) -> bool:
        """Return whether a template needs earlier calls' arguments as JSON text."""
        if name not in self._text_takers:
            self._text_takers[name] = takes_text(lambda turns: self._attempt(name, turns))
        return self._text_takers[name]

    def form(self) -> ChatForm:
        """Return the format of answers; without a template, plain text."""
        if not self.texts or self.problem() or _DEFAULT not in self.texts:
            return ChatForm()
        text = self.texts[self._name(with_tools=True)]
        return ChatForm(taught_form(text), self.reasoning_marks, tools="tools" in text)

    @property
    def reasoning_marks(self) -> tuple[str, str]:
        """Marks of reasoning; empty strings without marks."""
        return reasoning_marks("".join(self.texts.values()))

    def _attempt(
        self, name: str, turns: Sequence[Message], values: Mapping[str, Any] = MappingProxyType({})
    ) -> str | None:
        """Return a conversation as text; None if the template fails."""
        try:
            return self._render(name, turns, {"tools": None, **values})
        except (TemplateError, RenderError):
            return None

    @cached_property
    def _text_takers(self) -> dict[str, bool]:
        return {}

    def _name(self, with_tools: bool) -> str:
        """Return the name of the template for conversations with or without tools."""
        for name in (_TOOLS, _DEFAULT) if with_tools else (_DEFAULT,):
            if name in self.texts:
                return name
        if self.texts:
            raise IncompatibleError(
                f"the model's chat templates are named {sorted(self.texts)}: one must be named {_DEFAULT!r}"
            )
        raise IncompatibleError("the model has no chat template: send plain text or token ids")

    @cached_property
    def _bounded(self) -> BoundedTemplates:
        return BoundedTemplates(self.texts, self._specials)


def _hidden(message: Message, hider: Hider) -> Message:
    """Hide names in a message's texts, except its role."""
    return {name: value if name == "role" else hider.hide_all(value) for name, value in message.items()}


def stored_templates(directory: Path, config: Mapping[str, Any]) -> Stored:
    """Return a model directory's chat templates.

    Separate template files override `config`.

    Args:
        config: content of `tokenizer_config.json`.
    """
    path, more_templates = directory / "chat_template.jinja", directory / "additional_chat_templates"
    templates = {
        other.stem: other.read_text(encoding="utf-8-sig") for other in sorted(more_templates.glob("*.jinja"))
    }
    if path.is_file():
        templates[_DEFAULT] = path.read_text(encoding="utf-8-sig")
    if templates:
        return templates
    stored: Stored = config.get("chat_template")
    return read_json(directory / "chat_template.json").get("chat_template") if stored is None else stored


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
                reason = "must be text, or a list of objects with name and template"
                raise IncompatibleError(f"{_FIELD} = {str(stored)[:60]!r}: {reason}") from error
    for name, text in named.items():
        if not isinstance(text, str):
            raise IncompatibleError(f"{_FIELD} {name!r} = {str(text)[:60]!r}: must be text")
    return named


_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""Mark appended to a continued message before rendering, as in `transformers`.

The mark shows where to cut: the message's text may also occur later.
"""


def _continued(text: str, last: str) -> str:
    """Cut a rendered conversation after its last message, like `transformers`."""
    place = text.rfind(_MARK.strip())
    if place < 0 or last.strip() not in text[:place]:
        raise InvalidInputError(
            "chat", last, "the chat template changes the last message, so it cannot be continued"
        )
    kept = text[:place]
    return kept if text.startswith(_MARK, place) else kept.rstrip()
