"""Processes of a local system."""

import os
from pathlib import Path


def services_of(logs: Path) -> set[int]:
    """Process ids of the services that write to a log in this folder: those of one local system. Tests
    that run beside this one have others."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                output = os.readlink(entry / "fd/1")
            except OSError:
                continue  # it ended while we looked
            if output.startswith(str(logs)):
                found.add(int(entry.name))
    return found
