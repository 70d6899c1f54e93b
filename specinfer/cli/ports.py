"""Ports of a local system beside its gateway's: whether they can be used, found before anything starts."""

import os
from importlib.util import find_spec

from specinfer.cli.processes import check_listen_address
from specinfer.errors import InvalidInputError

DEFAULT_METRICS_PORT = 9464
"""Of a gateway."""


def check_metrics_port() -> None:
    """Checks that the gateway can serve its metrics.

    Raises:
        InvalidInputError: naming the variable that sets the port.
    """
    variable, host = "SPECINFER_GATEWAY_METRICS_PORT", "SPECINFER_GATEWAY_METRICS_HOST"
    port = os.environ.get(variable, str(DEFAULT_METRICS_PORT))
    if port == "0":
        return
    try:
        check_listen_address(f"{os.environ.get(host, '127.0.0.1')}:{port}")
    except InvalidInputError as error:
        why = "in use by another program, or no port; set another, or 0 for no metrics"
        raise InvalidInputError(variable, port, why) from error


def check_http(address: str) -> None:
    """Checks that the HTTP service can be started at an address.

    Raises:
        InvalidInputError: if it cannot listen there, or is not installed.
    """
    if find_spec("fastapi") is None:
        raise InvalidInputError("http_listen", address, "needs pip install 'specinfer[http]'; or give none")
    check_listen_address(address, "http_listen", "choose another address, or none")
