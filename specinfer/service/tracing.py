"""Send OpenTelemetry traces, if `otlp_endpoint` is set.

Spans contain ids, counts and times, never text or tokens. A call is traced if its `traceparent` (W3C Trace
Context, https://www.w3.org/TR/trace-context/) is sampled; of other calls, a given share is traced.
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
"""Key of the trace context in a call's metadata."""
Attributes: TypeAlias = Mapping[str, str | int | float | bool]
_NO_ATTRIBUTES: Attributes = {}
_CLOSE_S = 2.0
"""Maximum seconds to send the remaining spans when a service ends."""


class Tracer:
    """Creates spans; times are seconds of `time.monotonic` or `time.perf_counter`."""

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
        """Start a span within the trace context; return None if not sampled."""
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
        """Add a finished child span of `parent`."""
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start_span(
            name, set_span_in_context(parent), attributes=dict(attributes), start_time=self._ns(start)
        )
        span.end(self._ns(end))

    def end(self, span: "Span", at: float, attributes: Attributes = _NO_ATTRIBUTES, error: str = "") -> None:
        """End a span; `error` sets the error status."""
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
    """Return the trace context of a span in W3C's format."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def trace_id_of(span: "Span") -> str:
    """Return the id of a span's trace, in hex."""
    return f"{span.get_span_context().trace_id:032x}"


def open_tracer(service: str, settings: "ServiceSettings", ratio: float = 0.0) -> Tracer | None:
    """Return the tracer of a service; None without `otlp_endpoint`.

    Args:
        service: name of the service.
        settings: settings with `otlp_endpoint`.
        ratio: traced share of calls without a trace context, 0 to 1.
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
    """Return a context that records a span if the step is traced."""
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
