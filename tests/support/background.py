"""Commands as shells start them in the background, and the services that run there."""

import os
from collections.abc import Sequence
from pathlib import Path


def in_background(command: Sequence[str]) -> list[str]:
    """The command with SIGINT ignored when it starts. Not by `preexec_fn`: between fork and exec gRPC of the
    process that runs the tests could abort the child."""
    return ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]


def services_of(logs: Path) -> set[int]:
    """Process ids of the services that write to a log in this folder: those of one local system. Tests
    that run beside this one have others."""
    services = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                output = os.readlink(entry / "fd/1")
            except OSError:
                continue  # it ended while we looked
            if output.startswith(str(logs)):
                services.add(int(entry.name))
    return services
