"""OpenTelemetry traces of services with an endpoint, loaded only for them.

Spans carry ids, counts and times, never text or tokens. The caller's `traceparent` (W3C Trace Context,
https://www.w3.org/TR/trace-context/) selects traces, else the ratio of the settings.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

from specinfer.errors import SettingError
from specinfer.system.log_lines import in_trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as Span

    from specinfer.service.settings import ServiceSettings

HEADER = "traceparent"
"""Name of the trace context in the metadata of a call."""
Attributes: TypeAlias = Mapping[str, str | int | float | bool]
_NO_ATTRIBUTES: Attributes = {}
_CLOSE_S = 2.0
"""Maximum wait for an unavailable collector when a service ends."""


class Tracer:
    """Makes spans. `time.monotonic` and `time.perf_counter` count as one clock."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider, self._tracer = provider, provider.get_tracer("specinfer")
        self._epoch_s = time.time() - time.monotonic()

    def begin(
        self,
        name: str,
        at: float,
        *,
        traceparent: str = "",
        links: "Sequence[Span]" = (),
        attributes: Attributes = _NO_ATTRIBUTES,
    ) -> "Span | None":
        """Return a span below the trace context's; None if not wanted."""
        from opentelemetry.trace import Link
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({HEADER: traceparent} if traceparent else {})
        span = self._tracer.start_span(
            name,
            parent,
            attributes=dict(attributes),
            links=[Link(span.get_span_context()) for span in links],
            start_time=self._ns(at),
        )
        return span if span.is_recording() else None

    def add(
        self, name: str, parent: "Span", start: float, end: float, attributes: Attributes = _NO_ATTRIBUTES
    ) -> None:
        """Add a span below another one, of which the end is known."""
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start_span(
            name, set_span_in_context(parent), attributes=dict(attributes), start_time=self._ns(start)
        )
        span.end(self._ns(end))

    def end(self, span: "Span", at: float, attributes: Attributes = _NO_ATTRIBUTES, error: str = "") -> None:
        """End a span, well or with an error."""
        from opentelemetry.trace import Status, StatusCode

        span.set_attributes(dict(attributes))
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(self._ns(at))

    def close(self) -> None:
        """Send the remaining spans, for at most two seconds."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_S)

    def _ns(self, at: float) -> int:
        return round((self._epoch_s + at) * 1e9)


def traceparent_of(span: "Span") -> str:
    """Return the trace context of a span, as W3C writes it."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def trace_id_of(span: "Span") -> str:
    """Return the id of a span's trace, as tools show it."""
    return f"{span.get_span_context().trace_id:032x}"


def open_tracer(service: str, settings: "ServiceSettings", ratio: float = 0.0) -> Tracer | None:
    """Return the tracer of a service; None without an endpoint.

    Args:
        service: its name.
        settings: of tracing.
        ratio: part of the calls that is traced of those without a trace context.

    Raises:
        SettingError: if the packages are missing, or the endpoint is no address.
    """
    endpoint = settings.otlp_endpoint
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        raise SettingError("otlp_endpoint", endpoint, 'needs pip install ".[tracing]"') from error
    if not endpoint.startswith(("http://", "https://")):
        raise SettingError("otlp_endpoint", endpoint, "must be http://HOST:PORT or https://HOST:PORT")
    resource = Resource.create({"service.name": "specinfer-" + service})
    provider = TracerProvider(ParentBased(TraceIdRatioBased(ratio)), resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Tracer(provider)


def service_step(
    tracer: Tracer | None, name: str, traceparent: str, requests: int
) -> AbstractContextManager[None]:
    """Return the span of a service's step, if it is traced."""
    if tracer is None or not traceparent:
        return nullcontext()
    return _service_step(tracer, name, traceparent, requests)


@contextmanager
def _service_step(tracer: Tracer, name: str, traceparent: str, requests: int) -> Iterator[None]:
    span = tracer.begin(
        name, time.perf_counter(), traceparent=traceparent, attributes={"specinfer.requests": requests}
    )
    if span is None:
        yield
        return
    error = ""
    with in_trace(trace_id_of(span)):
        try:
            yield
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            tracer.end(span, time.perf_counter(), error=error)
