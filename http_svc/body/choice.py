"""Field `tool_choice`, in OpenAI's nested and flat forms."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator

from http_svc.body.fields import FIRST, Strict, at_most
from http_svc.body.tools import ChosenTool, is_other_kind

MAX_TOOLS = 128
"""Maximum entries of `tools`."""


class Allowed(Strict):
    """Field `allowed_tools`: the functions of `tools` that may be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], FIRST, at_most(MAX_TOOLS)]


class AllowedTools(Strict):
    """Form `allowed_tools` of `tool_choice`."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


def _nested(choice: Any) -> Any:
    """Return a choice in nested form; `required` for Mistral's `any`."""
    if not isinstance(choice, Mapping):
        return "required" if choice == "any" else choice
    if choice.get("type") == "function" and "function" not in choice:
        return {"type": "function", "function": {name: choice[name] for name in choice if name != "type"}}
    if choice.get("type") != "allowed_tools":
        return choice
    allowed = choice.get("allowed_tools", {name: choice[name] for name in choice if name != "type"})
    if isinstance(allowed, Mapping) and isinstance(allowed.get("tools"), list):
        auto = allowed.get("mode") == "auto"  # tools that are not functions are ignored, as in `tools`
        functions = [_nested(tool) for tool in allowed["tools"] if not (auto and is_other_kind(tool))]
        allowed = {**allowed, "tools": functions}
    return {"type": "allowed_tools", "allowed_tools": allowed}


ToolChoice: TypeAlias = Annotated[
    Literal["none", "auto", "required"] | ChosenTool | AllowedTools, BeforeValidator(_nested)
]


def dumped_choice(choice: ToolChoice) -> Any:
    """Return a choice as JSON in the nested form."""
    return choice if isinstance(choice, str) else choice.model_dump()


def chosen_names(choice: ToolChoice | None) -> frozenset[str] | None:
    """Return the names of the functions that a choice allows; None: all."""
    if isinstance(choice, ChosenTool):
        return frozenset([choice.function.name])
    if isinstance(choice, AllowedTools):
        return frozenset([tool.function.name for tool in choice.allowed_tools.tools])
    return frozenset() if choice == "none" else None


def requires_call(choice: ToolChoice | None) -> bool:
    """Return whether the answer must consist of function calls."""
    if isinstance(choice, AllowedTools):
        return choice.allowed_tools.mode == "required"
    return choice not in (None, "auto", "none")
