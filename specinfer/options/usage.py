"""Format errors about wrong usage of a command line."""

from collections.abc import Sequence

import typer

# typer may contain its own copy of click, so click's class is derived from typer's
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


def usage_message(error: Exception) -> str:
    """Return the error's message; empty if typer has shown help instead."""
    return str(getattr(error, "format_message", error.__str__)())


def as_typed(message: str, app: typer.Typer, argv: Sequence[str]) -> str:
    """Name an error's field as the command's option or argument.

    Errors without `FIELD = VALUE`, and fields that the command does not have, are unchanged.
    """
    command = typer.main.get_command(app)
    for word in argv:
        command = getattr(command, "commands", {}).get(word, command)
    field, mark, _ = message.partition(" = ")
    name = field.partition(":")[0]  # of "speculator: model"
    for parameter in command.params:
        if mark and parameter.name == name:
            option = parameter.opts[0]
            return (option if option.startswith("-") else name.upper()) + message.removeprefix(name)
    return message
