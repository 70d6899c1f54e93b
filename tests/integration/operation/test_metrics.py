"""Metrics after known runs of a whole system equal values computed by hand."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from specinfer.drafters import DraftJob
from specinfer.errors import FaultError, SpecInferError
from specinfer.hub import DEFAULT_MODEL
from specinfer.planning.choice import Reason
from specinfer.service.api_keys import make_key, write_keys
from specinfer.tree import TokenTree
from specinfer.v1 import common_pb2, generation_pb2
from tests.support.network.scrape import Scrape
from tests.support.oracle import always, first, greedy
from tests.support.system import ScriptedDrafter, System, request_for, running_system, until

PROMPT = [5, 17, 3, 88, 41, 9, 60]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "settings.md"


AFTER = {
    "gateway": {"specinfer_speculator_calibration_error", "specinfer_speculator_auc"},
    "verifier": set[str](),
    "speculator": set[str](),
}
"""Metrics that appear later: after a hundred candidates."""


def documented(service: str) -> set[str]:
    """Return the names of a service's metrics, as the page names those without residents and learning."""
    rows = re.findall(r"^\| `(\w+)[{`][^|]*\| ([^|]+) \|", PAGE.read_text().split("| metric |")[1], re.M)
    return {
        f"specinfer_{name}"
        for name, services in rows
        if (services == "all" or service in services) and "learning" not in name and "resident" not in name
    }


def scrape(system: System, service: str = "gateway") -> Scrape:
    return Scrape.of(system.registries[service])


def address_of(system: System, name: str) -> str:
    (place,) = [p for p, n in zip(system.loop.pool.places, system.loop.pool.names, strict=True) if n == name]
    return place


async def idle(system: System) -> None:
    """Wait until the last step is counted."""
    await until(lambda: not system.loop.persistence.unfinished)


async def test_steps_of_two_speculators_are_counted_as_computed_by_hand(redis_url: str) -> None:
    """Nine tokens take three steps: `two` drafts t1-t2, `one` t1-x; t1 and t2 are accepted."""
    drafters = {"two": ScriptedDrafter(first(2)), "one": ScriptedDrafter(first(1))}
    async with running_system(redis_url, drafters, tree_depth=2) as system:
        assert await system.tokens(PROMPT, max_new_tokens=9) == greedy(PROMPT, 9)
        await idle(system)
        metrics, two, one = scrape(system), address_of(system, "two"), address_of(system, "one")
    both = {"two": 3, "one": 3}
    assert metrics.by("spec_decode_num_drafts_total", "speculator") == both
    assert metrics.by("spec_decode_num_drafts_total", "service") == {two: 3, one: 3}
    assert metrics.by("spec_decode_num_draft_tokens_total", "speculator") == {"two": 6, "one": 6}
    assert metrics.by("spec_decode_num_accepted_tokens_total", "speculator") == {"two": 6, "one": 3}
    assert metrics.by("spec_decode_num_accepted_tokens_per_pos_total", "position") == {"0": 3, "1": 3}
    assert metrics.by("speculator_wins_total", "speculator") == {"two": 3}
    for stage, nodes in (("proposed", 6), ("kept", 6), ("duplicate", 3)):
        assert metrics.value("tree_nodes_total", speculator="two", stage=stage) == nodes
        assert metrics.value("tree_nodes_total", speculator="one", stage=stage) == nodes
    assert (metrics.value("accepted_depth_count"), metrics.value("accepted_depth_sum")) == (3, 6)
    assert metrics.value("accepted_depth_bucket", le="1.0") == 0
    assert metrics.value("accepted_depth_bucket", le="2.0") == 3
    assert metrics.value("planner_step_nodes_sum") == 9
    assert metrics.by("drafts_total", "outcome") == {"ok": 6}
    assert metrics.by("planner_steps_total", "reason") == {"not adaptive": 3}
    for reason in Reason:  # also those without a step
        assert metrics.value("planner_steps_total", reason=reason) == 3 * (reason is Reason.NOT_ADAPTIVE)
    assert metrics.by("planner_asked_total", "speculator") == both
    assert metrics.value("iteration_batch_size_sum") == 3
    for phase in ("draft", "merge", "verify", "commit"):
        assert metrics.value("iteration_phase_seconds_count", phase=phase) == 3


async def test_requests_and_tokens_are_counted_as_computed_by_hand(redis_url: str) -> None:
    async with running_system(redis_url, {"two": ScriptedDrafter(first(2))}, tree_depth=2) as system:
        await asyncio.gather(*(system.tokens(PROMPT, max_new_tokens=9) for _ in range(2)))
        await system.tokens(PROMPT, max_new_tokens=9, stop_token_ids=[greedy(PROMPT, 2)[1]])
        await idle(system)
        metrics = scrape(system)
    assert metrics.by("request_success_total", "finished_reason") == {"length": 2, "stop_token": 1}
    assert metrics.value("prompt_tokens_total") == 3 * len(PROMPT)
    assert metrics.value("generation_tokens_total") == 2 * 9 + 2
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert metrics.value(f"{name}_seconds_count") == 3, name
    assert metrics.value("inter_token_latency_seconds_count") == 2 * 6, "all tokens after the first step"
    e2e, first_token = (
        metrics.value(f"{name}_seconds_sum") or 0.0 for name in ("e2e_request_latency", "time_to_first_token")
    )
    later = metrics.value("inter_token_latency_seconds_sum") or 0.0
    assert later == pytest.approx(e2e - first_token, abs=1e-6), "the latencies add up"


async def test_bytes_on_the_wire_are_those_of_the_messages(redis_url: str) -> None:
    async with running_system(redis_url, {"two": ScriptedDrafter(first(2))}) as system:
        request = request_for(PROMPT, max_new_tokens=6)
        replies = [reply async for reply in system.stub.Generate(request)]
        await idle(system)
        metrics = scrape(system)
    assert metrics.value("wire_bytes_total", peer="client", direction="received") == request.ByteSize()
    sent = sum(reply.ByteSize() for reply in replies)
    assert metrics.value("wire_bytes_total", peer="client", direction="sent") == sent
    for peer in ("verifier", "speculator"):
        for direction in ("sent", "received"):
            assert (metrics.value("wire_bytes_total", peer=peer, direction=direction) or 0) > 50


async def test_services_count_what_they_do(redis_url: str) -> None:
    prompt = [7 + i % 50 for i in range(40)]
    async with running_system(redis_url, {"two": ScriptedDrafter(first(2))}, tree_depth=2) as system:
        for _ in range(2):
            await system.tokens(prompt, max_new_tokens=9)
        await until(lambda: scrape(system, "verifier").value("verifier_requests") == 0)
        await until(lambda: scrape(system, "two").value("speculator_requests") == 0)
        verifier, speculator = scrape(system, "verifier"), scrape(system, "two")
    assert verifier.by("verifier_entries_total", "status") == {"ok": 6}
    assert (verifier.value("verifier_nodes_total"), verifier.value("verifier_accepted_total")) == (12, 12)
    assert verifier.value("verifier_batch_size_sum") == verifier.value("verifier_step_seconds_count") == 6
    # the prompt with two nodes; its rest after two cached blocks; a token with two nodes
    assert verifier.value("verifier_pass_seconds_count", tokens="17-64") == 1
    assert verifier.value("verifier_pass_seconds_count", tokens="5-16") == 1
    assert verifier.value("verifier_pass_seconds_count", tokens="2-4") == 4
    assert verifier.value("prefix_cache_queries_total") == 2 * 32
    assert verifier.value("prefix_cache_hits_total") == 32
    assert (verifier.value("kv_cache_tokens"), verifier.value("kv_cache_usage_ratio")) == (2048, 0)
    assert speculator.by("speculator_entries_total", "status") == {"ok": 6}
    assert speculator.by("speculator_nodes_total", "speculator") == {"two": 12}
    assert speculator.value("speculator_step_seconds_count") == 6
    assert speculator.value("speculator_draft_seconds_count", speculator="two") == 6


def failing(job: DraftJob) -> TokenTree | SpecInferError:
    return FaultError("the drafter failed", ValueError("of a test"))


def foreign(job: DraftJob) -> TokenTree:
    """Draft a token that is not in the vocabulary."""
    tree = always(job)
    tree.token_ids[1:] = 500
    return tree


@pytest.mark.parametrize(("script", "outcome"), [(failing, "failed"), (foreign, "malformed")])
async def test_failed_and_malformed_drafts_are_counted(
    redis_url: str, script: Callable[[DraftJob], TokenTree], outcome: str
) -> None:
    """A failing speculator is called less and less; one with malformed trees stops after eight."""
    drafters = {"bad": ScriptedDrafter(script), "good": ScriptedDrafter(first(1))}
    async with running_system(redis_url, drafters, tree_depth=1) as system:
        await system.tokens(PROMPT, max_new_tokens=20)
        await idle(system)
        metrics, bad, good = scrape(system), address_of(system, "bad"), address_of(system, "good")
    assert metrics.value("drafts_total", service=bad, outcome=outcome) == (4 if outcome == "failed" else 8)
    assert metrics.by("drafts_total", "outcome").keys() == {"ok", outcome}
    assert metrics.value("drafts_total", service=good, outcome="ok") == 10
    quarantines = {} if outcome == "failed" else {"bad": 1}
    assert metrics.by("speculator_quarantines_total", "speculator") == quarantines


class BusyWithTwo(ScriptedDrafter):
    """Drafter that blocks on a step of two requests until released."""

    def __init__(self) -> None:
        super().__init__(always)
        self.release_both = threading.Event()

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        if len(jobs) == 2:
            self.release_both.wait(120)
        return super().draft(jobs)


async def test_late_and_stale_drafts_are_counted_separately(redis_url: str) -> None:
    """One of two requests ends during their draft: one draft is late, the other stale."""
    drafter = BusyWithTwo()
    async with running_system(redis_url, {"busy": drafter}, deadline_s=2.0, tree_depth=1) as system:
        long = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=400))
        await system.tokens(PROMPT[:3], max_new_tokens=60)
        drafter.release_both.set()
        await until(lambda: "late" in scrape(system).by("drafts_total", "outcome"))
        outcomes = scrape(system).by("drafts_total", "outcome")
        long.cancel()
    assert (outcomes["late"], outcomes["stale"]) == (1, 1)
    assert outcomes.keys() <= {"ok", "late", "stale"}


async def test_a_service_that_is_gone_fails_its_drafts_and_is_not_ready(redis_url: str) -> None:
    release = threading.Event()

    def silent(job: DraftJob) -> TokenTree:
        release.wait(120)
        return always(job)

    async with running_system(
        redis_url, {"gone": ScriptedDrafter(silent)}, deadline_s=0.2, hung_s=0.4
    ) as system:
        address = address_of(system, "gone")
        await until(lambda: scrape(system).value("speculator_ready", service=address) == 1)
        task = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=480))
        await until(lambda: scrape(system).value("drafts_total", service=address, outcome="failed") >= 1)
        release.set()
        await system.servers["gone"].stop()
        await until(lambda: scrape(system).value("speculator_ready", service=address) == 0)
        task.cancel()


async def test_the_load_has_vllms_names_if_configured(redis_url: str) -> None:
    """Two requests wait for one that blocks at its first draft, and has one of 128 cache blocks."""
    release = threading.Event()

    def released_draft(job: DraftJob) -> TokenTree:
        release.wait(20)
        return always(job)

    options: dict[str, Any] = {"vllm_metrics": True, "max_batch": 1, "adaptive": False}
    async with running_system(redis_url, {"held": ScriptedDrafter(released_draft)}, **options) as system:
        tasks = [asyncio.create_task(system.tokens(PROMPT, max_new_tokens=4)) for _ in range(3)]

        def shown() -> dict[str, float]:
            families = scrape(system).families.values()
            samples = [sample for family in families for sample in family.samples]
            return {s.name: s.value for s in samples if s.name.startswith("vllm:")}

        busy = {
            "vllm:num_requests_running": 1,
            "vllm:num_requests_waiting": 2,
            "vllm:kv_cache_usage_perc": 1 / 128,
            "vllm:cache_config_info": 1,
        }
        await until(lambda: shown() == busy)
        (config,) = scrape(system).families["vllm:cache_config_info"].samples
        assert config.labels == {
            "model_name": DEFAULT_MODEL, "engine": "0", "block_size": "16", "num_gpu_blocks": "128"
        }  # fmt: skip
        release.set()
        await asyncio.gather(*tasks)
        idle_now = dict.fromkeys(busy, 0.0) | {"vllm:cache_config_info": 1}
        await until(lambda: shown() == idle_now)


async def test_a_resync_is_counted_for_its_service(redis_url: str) -> None:
    async with running_system(redis_url, {"two": ScriptedDrafter(first(2))}) as system:
        task = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=300))
        await until(lambda: system.loop.steps > 2)
        pool, names = system.loop.pool, list(system.loop.scheduler.states)
        forget = common_pb2.ReleaseRequest(request_ids=names, client=pool._policy.client)
        await pool.services[0].stub.Release(forget)
        address = address_of(system, "two")
        await until(lambda: scrape(system).value("resyncs_total", service=address) == 1)
        await system.loop.verifier.release(names)
        await until(lambda: scrape(system).value("resyncs_total", service="verifier") == 1)
        assert await task == greedy(PROMPT, 300)


async def test_refused_requests_are_counted_by_status_code(redis_url: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key, kept = make_key("tester", max_priority=0)
    write_keys(path, [kept])
    async with running_system(redis_url, api_keys=str(path)) as system:

        async def refuse(call: Callable[..., AsyncIterator[object]], message: object) -> None:
            with pytest.raises(grpc.aio.AioRpcError):
                _ = [r async for r in call(message, metadata=[("authorization", f"Bearer {key}")])]

        generate, attach = system.stub.Generate, system.stub.Attach
        for request in (request_for([]), request_for([500]), request_for(PROMPT, max_new_tokens=-1)):
            await refuse(generate, request)
        await refuse(generate, request_for(PROMPT, priority=5))
        await refuse(attach, generation_pb2.AttachRequest(request_id="unknown"))
        with pytest.raises(grpc.aio.AioRpcError):
            await system.tokens(PROMPT)  # without a key
        system.gateway.lease_manager.draining = True
        await refuse(generate, request_for(PROMPT))
        refused = scrape(system).by("requests_refused_total", "code")
        assert refused == {
            "INVALID_ARGUMENT": 3,
            "PERMISSION_DENIED": 1,
            "NOT_FOUND": 1,
            "UNAUTHENTICATED": 1,
            "UNAVAILABLE": 1,
        }
        assert scrape(system).by("request_success_total", "finished_reason") == {}


async def test_metrics_show_which_services_answer(redis_url: str) -> None:
    async with running_system(redis_url, {"two": ScriptedDrafter(first(2))}) as system:
        gateway = lambda name, **labels: scrape(system).value(name, **labels)  # noqa: E731
        await until(lambda: gateway("gateway_ready") == 1)
        assert (gateway("redis_ready"), gateway("gateways_alive"), gateway("verifiers_leased")) == (1, 1, 1)
        assert gateway("verifier_ready", verifier=system.verifier_address) == 1
        expected_labels = {"model": "tiny", "dtype": "", "weights": "", "executor": "", "device": ""}
        assert gateway("model_info", **expected_labels) == 1
        await system.servers["verifier"].stop()
        task = asyncio.create_task(system.tokens(PROMPT))
        await until(lambda: gateway("verifier_ready", verifier=system.verifier_address) == 0)
        await until(lambda: gateway("gateway_ready") == 0)
        assert (gateway("verifier_failures_total") or 0) >= 1
        task.cancel()


async def test_every_metric_is_there_from_the_start_and_none_was_created(redis_url: str) -> None:
    """Exceptions are series by position and reason, and those after a hundred candidates."""
    async with running_system(redis_url, {"two": ScriptedDrafter(first(2))}) as system:
        await system.tokens(PROMPT, max_new_tokens=6)
        await idle(system)
        await until(lambda: scrape(system).value("gateway_ready") == 1)
        for service, registry in (("gateway", "gateway"), ("verifier", "verifier"), ("speculator", "two")):
            metrics, names = scrape(system, registry), documented(service)
            assert len(names) > 5
            assert names - {name.removesuffix("_bucket") for name in metrics.names} == AFTER[service]
            assert not any(name.endswith("_created") for name in metrics.names)
            assert {name.removesuffix("_total") for name in names} == metrics.families.keys(), service
