"""Conversations: messages, callable functions, variables of the chat template."""

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from http_svc.body.choice import MAX_TOOLS, ToolChoice, chosen_names, requires_call
from http_svc.body.fields import FIRST, Schema, Strict, Text, at_most
from http_svc.body.messages import Message, with_ids
from http_svc.body.tools import ChosenTool, Function, Tool, usable_only

MAX_MESSAGES = 1024
"""Maximum entries of `messages`."""
Turns = Annotated[list[Message], Field(min_length=1), FIRST, at_most(MAX_MESSAGES)]


class Conversation(Strict):
    """Fields from which the chat template renders the model's input."""

    messages: Turns | None = None
    tools: Annotated[list[Tool], FIRST, at_most(MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    """False: an answer calls at most one function."""
    add_generation_prompt: bool | None = None
    """vLLM's field; False: the prompt does not begin an assistant's message."""
    chat_template_kwargs: Schema | None = None
    """vLLM's field: additional variables of the chat template."""
    enable_thinking: bool | None = None
    """Variable of chat templates (Qwen3 and others)."""
    reasoning_effort: Text | None = None
    """Variable of chat templates. "none" also sets `enable_thinking` to false."""
    continue_final_message: bool | None = None
    """vLLM's field: the answer continues the last message, an assistant's."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unusable_tools(cls, data: Any) -> Any:
        return usable_only(data)

    @model_validator(mode="after")
    def _complete_ids(self) -> "Conversation":
        with_ids(self.messages or ())
        return self

    @model_validator(mode="after")
    def _check_end(self) -> "Conversation":
        if self.continue_final_message and self.add_generation_prompt:
            reason = "{field} = true: only with add_generation_prompt = false"
            raise PydanticCustomError("excluded", reason, {"field": "continue_final_message"})
        self._check_tools()
        return self

    @property
    def callable(self) -> list[Function]:
        """Functions that the model may call, by `tools` and `tool_choice`."""
        functions, chosen = [tool.function for tool in self.tools or ()], chosen_names(self.tool_choice)
        return [one for one in functions if chosen is None or one.name in chosen]

    @property
    def must_call(self) -> bool:
        """True if the answer must consist of function calls."""
        return requires_call(self.tool_choice)

    @property
    def several_calls(self) -> bool:
        """True if one answer may call several functions."""
        return self.parallel_tool_calls is not False and not isinstance(self.tool_choice, ChosenTool)

    @property
    def variables(self) -> dict[str, Any]:
        """Chat template variables set by the caller."""
        variables: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            variables["reasoning_effort"] = self.reasoning_effort
            if self.reasoning_effort == "none":
                variables["enable_thinking"] = False
        if self.enable_thinking is not None:
            variables["enable_thinking"] = self.enable_thinking
        return variables | (self.chat_template_kwargs or {})

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            reason = "{field}: two functions are named {name}; names must differ"
            raise PydanticCustomError("twice", reason, {"field": "tools", "name": twice})
        unknown = (chosen_names(self.tool_choice) or frozenset()).difference(names)
        if unknown or (self.must_call and not self.callable):
            context = {"field": "tool_choice", "names": ", ".join(names) or "no function"}
            raise PydanticCustomError("no_tool", "{field}: must name a function of tools: {names}", context)
