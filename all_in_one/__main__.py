"""Starts `specinfer serve`: reads the settings, then imports the server."""

import logging
import os
import signal
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from all_in_one.settings import ServeSettings

PROGRAM = "specinfer serve"


def main(argv: Sequence[str] | None = None) -> None:
    """Run `python -m all_in_one`, the program of `specinfer serve`."""
    from all_in_one.settings import ServeSettings
    from specinfer.service.entry_point import run_service

    os.environ.setdefault(
        "OMP_WAIT_POLICY", "PASSIVE"
    )  # before torch: its idle threads would take the others' cores
    logging.getLogger("gateway.access").setLevel(logging.WARNING)  # calls have a line of the HTTP service
    run_service(PROGRAM, ServeSettings, argv, lambda _: "server", _serve)


def _serve(settings: "ServeSettings") -> Coroutine[Any, Any, None]:
    from all_in_one.app import serve

    return serve(settings)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while modules are imported
    main()
