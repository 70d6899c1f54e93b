"""Conversations: turns, functions that may be called, and how the answer begins."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from http_svc.body.fields import FIRST, Schema, Strict, Text, at_most
from http_svc.body.messages import Message
from http_svc.body.tools import ChosenTool, Function, Tool, usable_only

MAX_MESSAGES, MAX_TOOLS = 1024, 128
"""Messages of a conversation, tools."""
Turns = Annotated[list[Message], Field(min_length=1), FIRST, at_most(MAX_MESSAGES)]


class Conversation(Strict):
    """Fields of the model's input."""

    messages: Turns | None = None
    tools: Annotated[list[Tool], FIRST, at_most(MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    """False: an answer has one call at most."""
    add_generation_prompt: bool | None = None
    """vLLM's; false: nothing stands between the last message and the answer."""
    chat_template_kwargs: Schema | None = None
    """vLLM's; more variables of the chat template."""
    enable_thinking: bool | None = None
    """A variable of chat templates (Qwen3 and others)."""
    reasoning_effort: Text | None = None
    """A variable of chat templates; none: `enable_thinking` is false, too."""
    continue_final_message: bool | None = None
    """vLLM's; the answer continues the last message, the assistant's."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unusable_tools(cls, data: Any) -> Any:
        return usable_only(data)

    @model_validator(mode="after")
    def _check_end(self) -> "Conversation":
        if self.continue_final_message and self.add_generation_prompt:
            reason = "{field}: excludes add_generation_prompt"
            raise PydanticCustomError("excluded", reason, {"field": "continue_final_message"})
        self._check_tools()
        return self

    @property
    def callable(self) -> list[Function]:
        """The functions of which one may be called."""
        functions = [tool.function for tool in self.tools or ()]
        if isinstance(self.tool_choice, ChosenTool):
            return [one for one in functions if one.name == self.tool_choice.function.name]
        return [] if self.tool_choice == "none" else functions

    @property
    def must_call(self) -> bool:
        """True if the answer may be nothing but calls."""
        return self.tool_choice not in (None, "auto", "none")

    @property
    def several_calls(self) -> bool:
        """True if an answer may have more than one call."""
        return self.parallel_tool_calls is not False and not isinstance(self.tool_choice, ChosenTool)

    @property
    def variables(self) -> dict[str, Any]:
        """The caller's variables of the chat template."""
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
            reason = "{field}: two functions have the same name"
            raise PydanticCustomError("twice", reason, {"field": "tools"})
        if self.tool_choice not in (None, "none", "auto") and not self.callable:
            reason = "{field}: needs a function of tools"
            raise PydanticCustomError("no_tool", reason, {"field": "tool_choice"})
