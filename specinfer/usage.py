"""Wrong usage of a command line, as typer reports it."""

import typer

# typer may carry its own copy of click, so the class is found through typer
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


def usage_message(error: Exception) -> str:
    """Return the message; empty where typer has shown help instead."""
    return str(getattr(error, "format_message", error.__str__)())
