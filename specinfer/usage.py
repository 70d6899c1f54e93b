"""Format typer's errors about wrong usage of a command line."""

import typer

# typer may contain its own copy of click, so click's class is derived from typer's
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


def usage_message(error: Exception) -> str:
    """Return the error's message; empty if typer has shown help instead."""
    return str(getattr(error, "format_message", error.__str__)())
