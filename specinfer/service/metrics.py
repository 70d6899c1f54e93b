"""The Prometheus endpoint of a service. Registries are passed in: several services fit into one process.

`disable_created_metrics` is for the whole process: prometheus_client has no other way to leave out the
`_created` series, one more for each counter and histogram, which nothing here reads.
"""

import errno
import logging
import time
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from specinfer import __version__
from specinfer.errors import SettingError

log = logging.getLogger(__name__)
_LOG_EVERY_S = 5.0
disable_created_metrics()  # type: ignore[no-untyped-call]


def service_registry() -> CollectorRegistry:
    """A registry that tells memory, processor time and open files of this process (`process_*`)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def declare_build_info(registry: CollectorRegistry) -> None:
    """The version of SpecInfer, as a label of a metric that is always 1."""
    info = Gauge("specinfer_build_info", "Version of SpecInfer; always 1.", ["version"], registry=registry)
    info.labels(__version__).set(1)


def declare_model_info(registry: CollectorRegistry) -> Gauge:
    """The large model and how it runs, as labels of a metric that is always 1."""
    return Gauge(
        "specinfer_model_info",
        "The large model and how it runs; always 1.",
        ["model", "dtype", "weights", "executor", "device"],
        registry=registry,
    )


class Observing:
    """Counts beside the work of a service: a fault in it costs a line in the log, and never what is counted.

    Counters that hang on what was counted before belong to one thread: call it on the engine's.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: float | None = None

    def __call__(self, count: Callable[[], None]) -> None:
        """Counts."""
        try:
            count()
        except Exception:
            now = self._clock()
            if self._told is None or now - self._told >= _LOG_EVERY_S:
                self._told = now
                log.exception("something could not be counted; metrics are wrong from now on")


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> None:
    """Serves `registry` at http://host:port/metrics from a thread; port 0 does nothing.

    Raises:
        SettingError: if the port is taken, or the host is no address of this machine.
    """
    if not port:
        return
    try:
        start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = "in use by another program; choose another port, or 0 for no metrics"
            raise SettingError("metrics_port", port, why) from error
        if error.errno == errno.EACCES:
            raise SettingError("metrics_port", port, "this user may not listen there") from error
        raise SettingError("metrics_host", host, error.strerror or "no such address") from error
