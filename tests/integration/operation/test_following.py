"""Requests can be followed through all services: by ids in JSON logs, and by traces."""

import asyncio
import json
import logging
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent import futures
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from gateway.observability.traces import RequestTraces
from gateway.settings import GatewaySettings
from specinfer.client import AsyncClient, make_request
from specinfer.errors import SettingError
from specinfer.service.logs import make_formatter
from specinfer.service.tracing import Tracer, open_tracer
from tests.support.oracle import first
from tests.support.system import ScriptedDrafter, System, running_system, until

PROMPT = [5, 17, 3, 88, 41, 9, 60]
SERVICES = {"gateway": "gateway", "verifier_svc": "verifier", "speculator_svc": "speculator"}
LOGGERS = {
    "gateway": ("gateway.",),
    "verifier_svc": ("verifier_svc.", "specinfer.verification."),
    "speculator_svc": ("speculator_svc.", "specinfer.drafters."),
}
"""Prefixes of the loggers that only a service's own process uses."""


def lines_of(caplog: pytest.LogCaptureFixture, package: str) -> list[dict[str, Any]]:
    """Return the log lines of a service, parsed from its JSON format."""
    formatter = make_formatter(SERVICES[package], "json")
    return [json.loads(formatter.format(r)) for r in caplog.records if r.name.startswith(LOGGERS[package])]


async def test_one_request_is_followed_through_the_logs_of_all_services(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_system(redis_url, {"two": ScriptedDrafter(first(2))}) as system:
        await asyncio.gather(*(system.tokens(PROMPT, request_id=name) for name in ("mine", "other")))
        await until(lambda: not system.verifier.cached_requests)
        await until(lambda: "released" in "".join(x["message"] for x in lines_of(caplog, "speculator_svc")))
    messages = {
        package: [line["message"] for line in lines_of(caplog, package) if line.get("request_id") == "mine"]
        for package in SERVICES
    }
    assert messages["verifier_svc"] == ["request mine is first seen", "request mine is released"]
    assert messages["speculator_svc"] == ["request mine is first seen", "request mine is released"]
    arrives, ends = messages["gateway"]
    assert arrives == "request mine arrives: 7 prompt tokens, at most 16 new ones"
    assert ends.startswith("request mine ends: length, caller -, 7+16 tokens, first after ")
    (line,) = [x for x in lines_of(caplog, "gateway") if x["message"] == arrives]
    assert (line["level"], line["service"], line["logger"]) == (
        "DEBUG",
        "gateway",
        "gateway.observability.observer",
    )
    assert "trace_id" not in line


@asynccontextmanager
async def traced_system(
    redis_url: str, ratio: float = 0.0
) -> AsyncIterator[tuple[System, InMemorySpanExporter]]:
    """Run a system whose services share an exporter; `ratio` is the share of traced requests."""
    provider, exporter = TracerProvider(ParentBased(TraceIdRatioBased(ratio))), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    drafters = {"two": ScriptedDrafter(first(2))}
    async with running_system(redis_url, drafters, tree_depth=2, tracer=Tracer(provider)) as system:
        yield system, exporter


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def below(parent: ReadableSpan, spans: Sequence[ReadableSpan]) -> list[str]:
    """Return the names of a span's children, by start time."""
    assert parent.context is not None
    children = [s for s in spans if s.parent is not None and s.parent.span_id == parent.context.span_id]
    return [span.name for span in sorted(children, key=lambda span: span.start_time or 0)]


async def test_a_trace_leads_from_the_client_through_all_services(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """There are three steps of three tokens each."""
    caplog.set_level(logging.INFO)
    trace_id, caller = secrets.token_hex(16), secrets.token_hex(8)
    async with traced_system(redis_url) as (system, exporter):
        request = make_request("abc", chat=False, max_new_tokens=9, ignore_eos=True, request_id="mine")
        async with AsyncClient(system.address, traceparent=f"00-{trace_id}-{caller}-01") as client:
            await client.generate(request)
        await system.tokens(PROMPT)  # not traced: it has no traceparent, and the ratio is 0
        await until(lambda: bool(named(exporter, "request")))
    spans = exporter.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {trace_id}
    (root,) = named(exporter, "request")
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == caller
    assert sorted(below(root, spans)) == ["decode", "prefill", "queue", "step", "step", "step"]
    assert root.attributes is not None
    assert root.attributes["specinfer.request_id"] == "mine"
    assert root.attributes["specinfer.new_tokens"] == 9
    for step in named(exporter, "step"):
        phases = [name for name in below(step, spans) if name not in ("verifier", "speculator")]
        assert phases == ["draft", "merge", "verify", "commit"]
        assert {"verifier", "speculator"} <= set(below(step, spans)), "the services' own spans"
        assert (root.start_time or 0) <= (step.start_time or 0) <= (step.end_time or 0)
    (line,) = [x for x in lines_of(caplog, "gateway") if x["message"].startswith("request mine ends")]
    assert line["trace_id"] == trace_id


async def test_steps_of_several_traced_requests_are_linked(redis_url: str) -> None:
    async with traced_system(redis_url, ratio=1.0) as (system, exporter):
        release = system.hold()
        tasks = [asyncio.create_task(system.tokens(PROMPT, max_new_tokens=30)) for _ in range(2)]
        await until(lambda: len(system.loop.scheduler.states) == 2)
        release.set()
        await asyncio.gather(*tasks)
        await until(lambda: len(named(exporter, "request")) == 2)
    one, two = (span.context for span in named(exporter, "request"))
    assert one is not None
    assert two is not None
    assert one.trace_id != two.trace_id
    linked = [step for step in named(exporter, "step") if step.links]
    assert linked
    for step in linked:
        assert step.context is not None
        other = two if step.context.trace_id == one.trace_id else one
        assert [link.context.span_id for link in step.links] == [other.span_id]


async def test_requests_continued_by_other_gateways_leave_no_open_span(redis_url: str) -> None:
    async with traced_system(redis_url, ratio=1.0) as (system, exporter):
        task = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=400))
        await until(lambda: system.loop.steps > 1)
        traces = system.gateway.observer._traces
        assert isinstance(traces, RequestTraces)
        assert len(traces) == 1
        system.loop.persistence.release_requests(list(system.loop.scheduler.states))
        assert len(traces) == 0
        (root,) = named(exporter, "request")
        assert root.attributes is not None
        assert root.attributes["specinfer.left"]
        task.cancel()


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """OTLP collector that stores the names of spans and services."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.services: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.services.add(attributes["service.name"])
            self.names += [span.name for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


async def test_spans_reach_a_collector(redis_url: str) -> None:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    settings = GatewaySettings(otlp_endpoint=f"http://127.0.0.1:{port}")
    tracer = open_tracer("gateway", settings, 1.0)
    assert tracer is not None
    try:
        async with running_system(redis_url, tracer=tracer) as system:
            await system.tokens(PROMPT)
            await until(lambda: not system.loop.persistence.unfinished)
        await asyncio.to_thread(tracer.close)
    finally:
        server.stop(0)
    assert {"request", "queue", "prefill", "decode", "step", "verify", "verifier"} <= set(collector.names)
    assert collector.services == {"specinfer-gateway"}


def test_an_endpoint_that_cannot_be_used_is_a_bad_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_tracer("gateway", GatewaySettings()) is None
    with pytest.raises(SettingError, match="otlp_endpoint = 'collector:4317':"):
        open_tracer("gateway", GatewaySettings(otlp_endpoint="collector:4317"))
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(SettingError, match=r'needs pip install "\.\[tracing\]"'):
        open_tracer("gateway", GatewaySettings(otlp_endpoint="http://collector:4317"))
