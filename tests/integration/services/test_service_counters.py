"""Metrics of both services: one thread updates them, and their faults are only logged."""

import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from specinfer.errors import FencedError, ServiceChangedError
from specinfer.service.channel import open_channel
from specinfer.v1 import (
    common_pb2,
    speculator_pb2_grpc,
    verifier_pb2_grpc,
)
from speculator_svc.metrics import SpeculatorMetrics
from tests.support.oracle import first
from tests.support.service_messages import (
    OK,
    RESYNC,
    draft_entry,
    drafting,
    one_reply,
    request,
    verify_entry,
)
from tests.support.services import speculator_service, verifier_service
from tests.support.system import ScriptedDrafter
from verifier_svc.metrics import CacheMetrics, VerifierMetrics


def test_errors_have_statuses_of_their_own() -> None:
    from specinfer.wire.status import status_of

    assert status_of(FencedError("x")) is grpc.StatusCode.ABORTED
    assert status_of(ServiceChangedError("x")) is grpc.StatusCode.UNAVAILABLE


async def test_metrics_are_updated_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters computed from earlier values would decrease if two threads updated them."""
    threads: dict[str, set[str]] = {"cache": set(), "held": set()}

    def noting(name: str, original: Callable[..., None]) -> Callable[..., None]:
        def noted(*arguments: Any) -> None:
            threads[name].add(threading.current_thread().name)
            original(*arguments)

        return noted

    async with (
        verifier_service() as (verifier, _),
        speculator_service({"a": ScriptedDrafter(first(1))}) as (speculator, _),
        open_channel(verifier) as to_verifier,
        open_channel(speculator) as to_speculator,
    ):
        monkeypatch.setattr(CacheMetrics, "observe", noting("cache", CacheMetrics.observe))
        monkeypatch.setattr(
            SpeculatorMetrics, "observe_requests", noting("held", SpeculatorMetrics.observe_requests)
        )
        verify = verifier_pb2_grpc.VerifierStub(to_verifier)
        draft = speculator_pb2_grpc.SpeculatorStub(to_speculator)
        await one_reply(verify.Verify, request([verify_entry("a")]))
        await one_reply(draft.Draft, drafting([draft_entry("a")]))
        await verify.Release(common_pb2.ReleaseRequest(request_ids=["a"]))
        await draft.Release(common_pb2.ReleaseRequest(request_ids=["a"]))
    assert {name: len(names) for name, names in threads.items()} == {"cache": 1, "held": 1}
    assert "MainThread" not in threads["cache"] | threads["held"]


async def test_a_fault_in_metrics_costs_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(*_: Any) -> None:
        raise ValueError("Counters can only be incremented by non-negative amounts.")

    async with (
        verifier_service() as (verifier, _),
        speculator_service({"a": ScriptedDrafter(first(1))}) as (speculator, engine),
        open_channel(verifier) as to_verifier,
        open_channel(speculator) as to_speculator,
    ):
        for name in ("observe", "refused"):
            monkeypatch.setattr(VerifierMetrics, name, raises)
        monkeypatch.setattr(CacheMetrics, "observe", raises)
        for name in ("observe", "observe_requests"):
            monkeypatch.setattr(SpeculatorMetrics, name, raises)
        verify = verifier_pb2_grpc.VerifierStub(to_verifier)
        draft = speculator_pb2_grpc.SpeculatorStub(to_speculator)
        steps = [
            request([verify_entry("a", base_len=3 * i), verify_entry("b", base_len=9)]) for i in range(3)
        ]
        replies = await one_reply(verify.Verify, *steps)
        assert [[v.status for v in reply.entries] for reply in replies] == [[OK, RESYNC]] * 3
        drafts = await one_reply(
            draft.Draft, *[drafting([draft_entry("a", base_len=3 * i)]) for i in range(3)]
        )
        assert [r.status for reply in drafts for r in reply.entries] == [OK] * 3
        assert engine.cached_requests == 1, "the request is still cached"
        assert (await verify.Release(common_pb2.ReleaseRequest(request_ids=["a"]))).released == 1
        assert (await draft.Release(common_pb2.ReleaseRequest(request_ids=["a"]))).released == 1
    records = [record for record in caplog.records if "could not be updated" in record.getMessage()]
    assert len(records) == 2, "a line each, not one for every step"
