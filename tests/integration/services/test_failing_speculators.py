"""A speculator that is late, wrong, dead or of another model costs drafts, but no request."""

import asyncio
import io
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from specinfer.cli.show import status_table
from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.ssm import SsmDrafter
from specinfer.errors import ExhaustedError, IncompatibleError, SpecInferError
from specinfer.model.drafting.task import GrowthShape
from specinfer.planning.choice import PLAIN, Choice
from specinfer.planning.step_report import StepReport
from specinfer.planning.table_planner import TablePlanner
from specinfer.remote.directory import SpeculatorDirectory
from specinfer.service.server import ServiceServer
from specinfer.service.settings import ServiceSettings
from specinfer.service.threads import EngineThread
from specinfer.tree import TokenTree
from specinfer.v1 import generation_pb2
from tests.support.oracle import always, first, greedy
from tests.support.system import ScriptedDrafter, add_speculators, ascii_tokenizer, running_system, until
from tests.support.tiny_models import runner_of, tiny_transformers

PROMPT = [5, 17, 3, 88, 41]


def _broken(change: Callable[[TokenTree, DraftJob], TokenTree]) -> Callable[[DraftJob], TokenTree]:
    return lambda job: change(always(job), job)


def _ints(values: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.array(values, np.int32)


MALFORMED = {
    "cycle": _broken(lambda t, j: replace(t, parents=_ints([-1, *([2, 1, 1, 1, 1][: len(t) - 1])]))),
    "foreign token": _broken(
        lambda t, j: replace(t, token_ids=_ints([int(t.token_ids[0])] + [500] * (len(t) - 1)))
    ),
    "wrong root": _broken(
        lambda t, j: replace(t, token_ids=_ints([96 - int(t.token_ids[0]), *t.token_ids[1:]]))
    ),
    "unproposed": _broken(lambda t, j: replace(t, proposals=())),
    "over the budget": lambda j: always(replace(j, limits=replace(j.limits, nodes=30, depth=30))),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_trees_are_dropped_and_counted(redis_url: str, name: str) -> None:
    drafters = {"bad": ScriptedDrafter(MALFORMED[name]), "good": ScriptedDrafter(first(1))}
    async with running_system(redis_url, drafters) as system:
        replies = await system.generate(PROMPT)
        bad, good = system.loop.pool.services
    assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
    assert bad.faults.malformed >= 7
    assert good.faults.malformed == 0
    assert {row.name for row in replies[-1].summary.stats.speculators} == {"good"}


async def test_a_late_speculator_is_not_waited_for(redis_url: str) -> None:
    """It blocks until the request has ended; the drafts of the other one are used."""
    release = threading.Event()

    def slow(job: DraftJob) -> TokenTree:
        release.wait(120)
        return always(job)

    drafters = {"slow": ScriptedDrafter(slow), "fast": ScriptedDrafter(first(1))}
    async with running_system(redis_url, drafters, deadline_s=1.0) as system:
        replies = await system.generate(PROMPT)
        late, _ = system.loop.pool.services
        assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
        assert {row.name for row in replies[-1].summary.stats.speculators} == {"fast"}
        assert late.counters.answered == 0
        assert late.counters.missed >= 6
        release.set()
        await until(lambda: not late.busy)
        assert await system.tokens([1, 2, 3]) == greedy([1, 2, 3], 16)
        assert late.counters.answered > 0, "it drafts again"


async def test_a_failing_drafter_costs_only_its_drafts(redis_url: str) -> None:
    def fail(job: DraftJob) -> TokenTree:
        raise RuntimeError("out of luck")

    async with running_system(redis_url, {"bad": ScriptedDrafter(fail)}) as system:
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)


@pytest.mark.parametrize("one_service", [False, True])
async def test_failed_drafts_are_counted_and_logged_by_name_but_not_each(
    redis_url: str, one_service: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(job: DraftJob) -> TokenTree:
        raise RuntimeError("out of luck")

    malformed = ScriptedDrafter(MALFORMED["foreign token"])
    drafters = {"good": ScriptedDrafter(first(1)), "bad": ScriptedDrafter(fail), "odd": malformed}
    async with running_system(redis_url, drafters, one_service=one_service) as system:
        for _ in range(3):
            assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        status = await system.stub.Status(generation_pb2.StatusRequest())
    failed = {speculator.name: speculator.failed for speculator in status.speculators}
    assert failed["good"] == 0
    assert 3 <= failed["bad"] <= 5 * 3, "less and less often in each request"
    assert failed["odd"] >= 7, "every tree"
    table = Console(width=200, record=True, file=io.StringIO())
    table.print(status_table("here", status))
    assert f"{failed['bad']} failed" in table.export_text()
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("a draft of")]
    assert len(lines) == 2, lines
    assert "speculator bad at" in lines[0] + lines[1]
    assert (
        "(1 so far): the drafter ScriptedDrafter failed: RuntimeError at test_failing_speculators.py:"
        in lines[0] + lines[1]
    )
    assert "speculator odd at" in lines[0] + lines[1]
    assert "(1 so far): malformed tree: tree.token_ids" in lines[0] + lines[1]


async def test_a_refused_draft_is_not_requested_again(redis_url: str) -> None:
    drafter = ScriptedDrafter(lambda job: SpecInferError("not this one"))
    async with running_system(redis_url, {"bad": drafter}) as system:
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
    assert len(drafter.jobs) == 1


async def test_in_one_service_only_the_speculator_that_refuses_is_left_out(redis_url: str) -> None:
    drafters = {
        "bad": ScriptedDrafter(lambda job: SpecInferError("not this one")),
        "good": ScriptedDrafter(first(1)),
    }
    async with running_system(redis_url, drafters, one_service=True) as system:
        replies = await system.generate(PROMPT)
        assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
        assert await system.tokens([1, 2, 3]) == greedy([1, 2, 3], 16)
        await until(lambda: not system.loop.pool.services[0].refusals)  # forgotten with its request
    assert {row.name for row in replies[-1].summary.stats.speculators} == {"good"}
    assert len(drafters["bad"].jobs) == 2, "once per request"
    assert len(drafters["good"].jobs) > 10


@pytest.mark.parametrize("one_service", [False, True])
@pytest.mark.parametrize("fault", ["full", "raises", "no tree", "step"])
async def test_a_speculator_that_fails_in_one_step_drafts_in_the_next(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, fault: str, one_service: bool
) -> None:
    """The draft fails because of a full cache, or an exception of drafter or service."""
    jobs: list[DraftJob] = []

    def now_and_then(job: DraftJob) -> TokenTree | SpecInferError:
        jobs.append(job)
        if len(jobs) % 3:
            return first(1)(job)
        if fault == "full":
            return ExhaustedError("KV cache full")
        if fault == "raises":
            raise RuntimeError("out of luck")
        return first(1)(job) if fault == "step" else NOT_A_TREE

    if fault == "step":
        ask = SpeculatorEngine._ask_all

        def fails(engine: SpeculatorEngine, *arguments: Any) -> Any:
            reply = ask(engine, *arguments)
            if jobs and not len(jobs) % 3:
                raise KeyError("a fault of ours")
            return reply

        monkeypatch.setattr(SpeculatorEngine, "_ask_all", fails)
    drafters = {"odd": ScriptedDrafter(now_and_then), "none": ScriptedDrafter(nothing)}
    async with running_system(redis_url, drafters, one_service=one_service) as system:
        replies = await system.generate(PROMPT, max_new_tokens=48)
        service = system.loop.pool.services[0]
        assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 48)
        assert service.faults.drafts[0] >= 5
    (row,) = replies[-1].summary.stats.speculators
    assert row.name == "odd"
    assert row.accepted >= 10, "at most one step in three had no draft"


def nothing(job: DraftJob) -> TokenTree:
    return TokenTree.root_only(job.context[-1])


class _NotATree:
    def __len__(self) -> int:
        return 2


NOT_A_TREE: Any = _NotATree()


async def test_an_ssm_whose_cache_is_full_drafts_again_when_there_is_room(redis_url: str) -> None:
    """The SSM's cache has room for one of two requests."""
    runner = runner_of(tiny_transformers("llama"), kv_tokens=192)
    ssm = SsmDrafter(runner, DrafterDescription("tiny", 97), GrowthShape(beam=2))
    async with running_system(redis_url, {"ssm": ssm}) as system:
        long = asyncio.create_task(system.generate([7] * 100, max_new_tokens=30))
        short = asyncio.create_task(system.generate(PROMPT + [9] * 60, max_new_tokens=200))
        drafted = []
        for requested in (long, short):
            replies = await requested
            (row,) = replies[-1].summary.stats.speculators
            drafted.append(row.accepted)
        (service,) = system.loop.pool.services
        assert service.faults.drafts[0] > 0, "its cache was full"
        assert min(drafted) > 5


async def test_a_late_service_joins_and_so_does_its_replacement(redis_url: str) -> None:
    early, late = ScriptedDrafter(first(2)), ScriptedDrafter(first(1))
    async with running_system(redis_url, {"late": late, "early": early}, absent={"late"}) as system:
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        service, _ = system.loop.pool.services
        status = await system.stub.Status(generation_pb2.StatusRequest())
        assert [(s.name, s.ready) for s in status.speculators] == [(service.address, False), ("early", True)]
        settings = ServiceSettings(listen=service.address, drain_seconds=0.1)
        joining = ServiceServer(settings, [])
        add_speculators(joining, EngineThread("joining"), {"late": late})
        await joining.start()
        await until(lambda: service.description is not None)
        replies = await system.generate(PROMPT)
        assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
        assert {row.name for row in replies[-1].summary.stats.speculators} == {"early", "late"}
        assert system.loop.pool.names == ["early", "late"], "numbered as they came"
        await joining.stop()
        stranger = ServiceServer(settings, [])
        add_speculators(stranger, EngineThread("stranger"), {"stranger": late})
        await stranger.start()
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16), "the lost service costs nothing"
        await until(lambda: service.description is not None)
        replies = await system.generate(PROMPT)
        assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
        assert {row.name for row in replies[-1].summary.stats.speculators} == {"early", "stranger"}
        assert system.loop.pool.names == ["early", "late", "stranger"], "no number is used again"
        status = await system.stub.Status(generation_pb2.StatusRequest())
        assert [(s.name, s.ready) for s in status.speculators] == [("stranger", True), ("early", True)]
        await stranger.stop()


async def test_a_speculator_that_dies_and_returns(redis_url: str) -> None:
    drafter = ScriptedDrafter(first(1))
    async with running_system(redis_url, {"a": drafter}) as system:
        speculator = system.loop.pool.services[0]
        await system.servers["a"].stop()
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        assert speculator.description is None
        assert speculator.counters.missed > 0
        requested = len(drafter.jobs)
        returned = ServiceServer(ServiceSettings(listen=speculator.address, drain_seconds=0.1), [])
        add_speculators(returned, EngineThread("returned"), {"a": drafter})
        await returned.start()
        await until(lambda: speculator.description is not None)
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        assert len(drafter.jobs) > requested
        await returned.stop()


async def test_a_speculator_with_another_tokenizer_is_refused(redis_url: str) -> None:
    other = ascii_tokenizer(swap=True)
    with pytest.raises(IncompatibleError) as caught:
        async with running_system(redis_url, {"odd": ScriptedDrafter(first(1))}, speculator_tokenizer=other):
            pass
    assert other.fingerprint() in str(caught.value)
    assert ascii_tokenizer().fingerprint() in str(caught.value)


async def test_a_speculator_that_has_become_incompatible_does_not_stop_a_session(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new service has another tokenizer, and the session must start again."""
    async with running_system(redis_url, {"odd": ScriptedDrafter(first(1))}) as system:
        session = system.loop

        async def misfit(directory: SpeculatorDirectory, service: Any) -> None:
            raise IncompatibleError("another tokenizer")

        monkeypatch.setattr(SpeculatorDirectory, "describe", misfit)
        await system.gateway.sessions.end_all()
        async with asyncio.timeout(60):
            assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        assert system.loop is not session


async def test_the_wait_for_a_late_draft_is_not_counted_as_overhead(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[StepReport] = []
    monkeypatch.setattr(TablePlanner, "observe", lambda _, report: reports.append(report))
    release = threading.Event()

    def slow(job: DraftJob) -> TokenTree:
        release.wait(120)
        return always(job)

    async with running_system(redis_url, {"slow": ScriptedDrafter(slow)}, deadline_s=2.0) as system:
        assert await system.tokens([5], max_new_tokens=2) == greedy([5], 2)
        release.set()
    waited = [report for report in reports if report.choice.speculators]
    assert waited
    assert not any(report.drafts for report in waited)
    assert all(report.overhead_s < 2.0 for report in waited)


async def test_reports_count_the_missed_tokens_that_a_draft_reads(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After twenty steps of plain decoding, the first draft reads twenty tokens."""
    reports: list[StepReport] = []
    everybody = Choice(frozenset({0}), 4)
    monkeypatch.setattr(TablePlanner, "observe", lambda _, report: reports.append(report))
    monkeypatch.setattr(TablePlanner, "choose", lambda *_: everybody if len(reports) >= 20 else PLAIN)
    async with running_system(redis_url, {"a": ScriptedDrafter(first(1))}) as system:
        # reports come after later steps have begun, on a busy machine several steps later
        assert await system.tokens([5], max_new_tokens=100) == greedy([5], 100)
    read = [draft.read for report in reports if report.choice.speculators for draft in report.drafts]
    assert read[0] >= 20
    assert read[1:3] == [0, 0]
