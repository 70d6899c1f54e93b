"""Start commands like background jobs of a shell, and find a system's services."""

import os
from collections.abc import Sequence
from pathlib import Path


def in_background(command: Sequence[str]) -> list[str]:
    """Return a command that starts with SIGINT ignored. `preexec_fn` is unsuitable: between fork and exec, gRPC of
    the test process could abort the child."""
    return ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]


def services_of(logs: Path) -> set[int]:
    """Return the process ids of the services that write their logs into this folder, which are those of one local
    system."""
    services = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                output = os.readlink(entry / "fd/1")
            except OSError:
                continue  # the process has just ended
            if output.startswith(str(logs)):
                services.add(int(entry.name))
    return services
