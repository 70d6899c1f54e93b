"""Commands as shells start them in the background."""

from collections.abc import Sequence


def in_background(command: Sequence[str]) -> list[str]:
    """The command with SIGINT ignored when it starts. Not by `preexec_fn`: between fork and exec gRPC of the
    process that runs the tests could abort the child."""
    return ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
