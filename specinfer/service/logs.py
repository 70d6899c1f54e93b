"""Log lines: time, level, service, message; to standard error."""

import logging


def set_up_logs(service: str, level: str) -> None:
    """Configures the root logger of a service process."""
    logging.basicConfig(
        level=level.upper(),
        format=f"%(asctime)s %(levelname)-7s {service} %(name)s: %(message)s",
        force=True,
    )
