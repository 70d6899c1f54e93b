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
from specinfer.drafters import DraftJob
from specinfer.errors import IncompatibleError
from specinfer.remote.directory import SpeculatorDirectory
from specinfer.tree import TokenTree
from specinfer.v1 import generation_pb2
from tests.support.oracle import always, first, greedy
from tests.support.system import ScriptedDrafter, ascii_tokenizer, running_system, until

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


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_trees_are_dropped_and_counted(redis_url: str, name: str, resident: bool) -> None:
    drafters = {"bad": ScriptedDrafter(MALFORMED[name]), "good": ScriptedDrafter(first(1))}
    async with running_system(redis_url, drafters, resident=resident) as system:
        replies = await system.generate(PROMPT)
        bad, *good = system.loop.pool.records
    assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
    assert bad.faults.malformed >= 6
    assert not any(service.faults.malformed for service in good)
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
        late, _ = system.loop.pool.records
        assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
        assert {row.name for row in replies[-1].summary.stats.speculators} == {"fast"}
        assert late.answered == 0
        assert late.missed >= 6
        release.set()
        await until(lambda: not late.busy)
        assert await system.tokens([1, 2, 3]) == greedy([1, 2, 3], 16)
        assert late.answered > 0, "it drafts again"


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
