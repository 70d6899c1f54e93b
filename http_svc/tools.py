"""Functions that a model may call, as OpenAI's API describes, chooses and remembers them. Types only."""

from typing import Annotated, Any, Literal

from pydantic import Field

from http_svc.fields import Strict, Text

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class Function(Strict):
    """What can be called."""

    name: Name
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    """A schema of the arguments; None: no arguments."""
    strict: bool | None = None
    """Arguments follow their schema in any case."""


class Tool(Strict):
    """The only kind of tool: a function."""

    type: Literal["function"]
    function: Function


class ChosenFunction(Strict):
    """A function's name."""

    name: Name


class ChosenTool(Strict):
    """The function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class CalledFunction(Strict):
    """What was called."""

    name: Name
    arguments: Text
    """A JSON object."""


class ToolCall(Strict):
    """A call of an earlier turn."""

    id: Text
    type: Literal["function"]
    function: CalledFunction
