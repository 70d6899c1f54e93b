"""The pool of speculator services: replacement, malformed trees, trust, sizes, replicas."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from specinfer.cli.local.processes import free_ports
from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.engine.draft_faults import IN_A_ROW
from specinfer.errors import IncompatibleError, SpecInferError
from specinfer.remote.directory import SpeculatorDirectory
from specinfer.remote.policy import PoolPolicy
from specinfer.remote.pool import SpeculatorPool
from specinfer.remote.round import Drafts
from specinfer.remote.service import SpeculatorService
from specinfer.request.sampling import Sampling
from specinfer.scheduling.entries import StepEntry
from specinfer.service.channel import open_channel
from specinfer.tree import Proposal, ProposalKind, TokenTree, TreeBuilder
from specinfer.v1 import speculator_pb2
from tests.support.oracle import chain
from tests.support.services import VOCABULARY, speculator_service, step_entry
from tests.support.system import ScriptedDrafter, until

PROMPT = [5, 17, 3]
POLICY = PoolPolicy(VOCABULARY, "ours", deadline_s=10.0, hung_s=5.0, retry_s=0.01, longest_retry_s=0.05)
SAMPLED = Sampling(seed=1)


def guess(token: int) -> ScriptedDrafter:
    return ScriptedDrafter(lambda job: chain(job.context[-1], [token]))


def malformed() -> ScriptedDrafter:
    def script(job: DraftJob) -> TokenTree:
        tree = chain(job.context[-1], [1])
        return replace(tree, token_ids=np.array([job.context[-1], 500], np.int32))

    return ScriptedDrafter(script)


def drawing(draws: bool = True) -> ScriptedDrafter:
    """Return a drafter that draws; `draws` is the value in its description."""

    def script(job: DraftJob) -> TokenTree:
        builder = TreeBuilder(job.context[-1])
        node = builder.add(0, 7, 1.0)
        q = (np.array([7], np.int32), np.ones(1, np.float32))
        builder.propose(Proposal(0, 0, ProposalKind.WITH_REPLACEMENT, (node,), *q))
        return builder.build((0,))

    drafter = ScriptedDrafter(script)
    drafter.description = DrafterDescription(vocab_size=VOCABULARY, draws=draws)
    return drafter


@asynccontextmanager
async def pool_of(*addresses: str, policy: PoolPolicy = POLICY) -> AsyncIterator[SpeculatorPool]:
    channels: list[grpc.aio.Channel] = []

    def connect(address: str) -> grpc.aio.Channel:
        channels.append(open_channel(address))
        return channels[-1]

    pool = SpeculatorPool(addresses, connect, policy)
    try:
        await pool.connect()
        yield pool
    finally:
        await pool.close()
        for channel in channels:
            await channel.close()


async def draft(pool: SpeculatorPool, entries: Sequence[StepEntry]) -> Drafts:
    return await pool.draft(entries, frozenset(range(len(pool.names))))


def firsts(drafts: Drafts, request_id: str = "r") -> dict[int, int]:
    """Return the first token that each speculator drafted."""
    return {s: int(tree.token_ids[1]) for s, tree in drafts.trees.get(request_id, [])}


def ready(pool: SpeculatorPool) -> bool:
    return all(service.description is not None for service in pool.services)


async def test_another_process_is_noticed_at_its_first_answer_and_described_again() -> None:
    """A new process has taken over the address; the connection still works."""
    drafter = guess(1)
    async with AsyncExitStack() as stack:
        address, _engine = await stack.enter_async_context(
            speculator_service({"a": drafter}, instance_id="one")
        )
        pool = await stack.enter_async_context(pool_of(address))
        entry = step_entry("r", PROMPT)
        assert firsts(await draft(pool, [entry])) == {0: 1}
        (service,) = pool.services
        assert service.cached_len == {"r": 3}
        assert service.description is not None
        service.description.instance_id = "zero"
        service.refusals.refuse("other", 0)
        entry = step_entry("r", [*PROMPT, 9])
        assert not (await draft(pool, [entry])).trees
        await until(lambda: ready(pool))
        assert (service.cached_len, bool(service.refusals), service.description.instance_id) == (
            {},
            False,
            "one",
        )
        assert firsts(await draft(pool, [entry])) == {0: 1}
        assert list(drafter.jobs[-1].context) == [*PROMPT, 9]


async def test_a_service_that_returns_with_other_speculators_gets_new_numbers() -> None:
    async with AsyncExitStack() as outer:
        async with speculator_service({"a": guess(1), "b": guess(2)}, instance_id="one") as (address, _):
            pool = await outer.enter_async_context(pool_of(address))
            assert firsts(await draft(pool, [step_entry("r", PROMPT)])) == {0: 1, 1: 2}
            names = pool.names
        assert not (await draft(pool, [step_entry("r", [*PROMPT, 9])])).trees
        drafters = {"c": guess(3), "a": guess(4)}
        async with speculator_service(drafters, instance_id="two", listen=address):
            await until(lambda: ready(pool))
            assert pool.names == ["a", "b", "c"]
            assert pool.names is names, "metrics use this list"
            assert pool.groups == [frozenset({0, 2})]
            assert firsts(await draft(pool, [step_entry("r", PROMPT)])) == {2: 3, 0: 4}
            chosen = await pool.draft([step_entry("r", [*PROMPT, 8])], frozenset({1, 2}))
            assert firsts(chosen) == {2: 3}


async def test_two_speculators_may_have_the_same_name() -> None:
    directory = SpeculatorDirectory(POLICY)
    assert [directory._members("x", names) for names in (["a", "b", "a"], ["a", "a"])] == [(0, 1, 2), (0, 2)]
    async with (
        speculator_service({"a": guess(1)}) as (one, _),
        speculator_service({"a": guess(2)}) as (two, _),
        pool_of(one, two) as pool,
    ):
        assert pool.names == ["a", "a"]
        assert firsts(await draft(pool, [step_entry("r", PROMPT)])) == {0: 1, 1: 2}


async def test_an_incompatible_service_is_not_used_until_it_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    async with pool_of(address) as pool:
        tried, describe = list[SpeculatorService](), pool._directory.describe

        async def counted(service: SpeculatorService) -> None:
            tried.append(service)
            await describe(service)

        async with speculator_service({"a": guess(1)}, tokenizer_fingerprint="theirs", listen=address) as (
            _,
            _engine,
        ):
            await until(lambda: any("the service is not used" in r.getMessage() for r in caplog.records))
            pool._directory.describe = counted  # type: ignore[method-assign]
            await until(lambda: len(tried) > 3)
            assert not ready(pool)
        async with speculator_service({"a": guess(1)}, tokenizer_fingerprint="ours", listen=address):
            await until(lambda: ready(pool))
            assert firsts(await draft(pool, [step_entry("r", PROMPT)])) == {0: 1}
    lines = [r.getMessage() for r in caplog.records if "the service is not used" in r.getMessage()]
    assert len(lines) == 1
    assert "tokenizer theirs, but the target has ours" in lines[0]


async def test_a_speculator_of_malformed_trees_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bad, good, now = malformed(), guess(1), [0.0]
    async with speculator_service({"bad": bad, "good": good}) as (address, _), pool_of(address) as pool:
        (service,) = pool.services
        service.clock = lambda: now[0]
        for step in range(200):
            assert firsts(await draft(pool, [step_entry(f"r{step}", PROMPT)]), f"r{step}") == {1: 1}
        assert (len(bad.jobs), len(good.jobs)) == (IN_A_ROW, 200)
        assert service.statistics.quarantines == {0: 1}
        lines = [r.getMessage() for r in caplog.records if "is quarantined" in r.getMessage()]
        assert lines == [
            f"speculator bad at {address} is quarantined for 1 s: its trees are malformed repeatedly"
        ]
        now[0] += 1000.0
        bad.script = good.script
        assert firsts(await draft(pool, [step_entry("t", PROMPT)]), "t") == {0: 1, 1: 1}


async def test_an_untrusted_speculator_that_draws_drafts_for_greedy_requests_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drafter = drawing()
    policy = replace(POLICY, trust_draws=False)
    async with speculator_service({"a": drafter}) as (address, _), pool_of(address, policy=policy) as pool:
        assert not pool.draws, "so requests keep their shared noise"
        entries = [step_entry("sampled", PROMPT, SAMPLED), step_entry("greedy", PROMPT)]
        drafts = await draft(pool, entries)
        assert set(drafts.trees) == {"greedy"}
        assert len(drafter.jobs) == 1
    assert any("draws are not trusted" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("trusted", [True, False])
async def test_undeclared_draws_are_malformed(trusted: bool) -> None:
    policy = replace(POLICY, trust_draws=trusted)
    async with (
        speculator_service({"a": drawing(draws=False)}) as (address, _),
        pool_of(address, policy=policy) as pool,
    ):
        entries = [step_entry("s", PROMPT, SAMPLED, draws=True), step_entry("g", PROMPT)]
        assert set((await draft(pool, entries)).trees) == {"g"}
        assert pool.services[0].faults.malformed == 1


async def test_a_repeated_answer_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with speculator_service({"a": guess(1)}) as (address, _), pool_of(address) as pool:
        stream = pool.services[0].stream
        exchange = stream.exchange

        async def twice(request: Any, patience_s: float | None = None) -> speculator_pb2.DraftReply:
            reply = await exchange(request, patience_s)
            reply.entries.extend([*reply.entries, speculator_pb2.DraftResult(request_id="nobody", status=1)])
            reply.entries[0].drafts.append(speculator_pb2.Draft(speculator=4_000_000_000, status=1))
            return reply

        monkeypatch.setattr(stream, "exchange", twice)
        drafts = await draft(pool, [step_entry("r", PROMPT)])
        assert [speculator for speculator, _ in drafts.trees["r"]] == [0]
        assert pool.services[0].faults.malformed == 1


async def test_an_answer_to_another_step_loses_the_service_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with speculator_service({"a": guess(1)}) as (address, _), pool_of(address) as pool:
        (service,) = pool.services
        exchange, wrong = service.stream.exchange, [1]

        async def other_step(request: Any, patience_s: float | None = None) -> speculator_pb2.DraftReply:
            reply = await exchange(request, patience_s)
            reply.step_id += wrong.pop() if wrong else 0
            return reply

        monkeypatch.setattr(service.stream, "exchange", other_step)
        assert not (await draft(pool, [step_entry("r", PROMPT)])).trees
        await until(lambda: ready(pool))
        assert firsts(await draft(pool, [step_entry("r", PROMPT)])) == {0: 1}


async def test_a_message_of_a_service_is_one_short_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    talker = ScriptedDrafter(lambda job: SpecInferError("no\n2026-01-01 ERROR forged " * 100))
    async with speculator_service({"a": talker}) as (address, _), pool_of(address) as pool:
        await draft(pool, [step_entry("r", PROMPT)])
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("a draft of")]
    assert "\n" not in line
    assert len(line) < 300


@pytest.mark.parametrize("later", [True, False], ids=["chosen", "not chosen"])
async def test_a_deferred_request_keeps_its_drafts_and_sends_nothing(later: bool) -> None:
    """Its step is repeated with the same context; sending that again would be a RESYNC."""
    drafter, tokens = guess(1), PROMPT
    async with speculator_service({"a": drafter}) as (address, _), pool_of(address) as pool:
        for number in range(3):
            tokens = [*tokens, number]
            entry = step_entry("r", tokens)
            actual = [
                firsts(await pool.draft([entry], frozenset([0] if first or later else [])))
                for first in (1, 0, 0)
            ]
            assert actual == [{0: 1}] * 3
        assert len(drafter.jobs) == 3
        assert pool.services[0].statistics.resyncs == 0
        assert pool.services[0].answered == 3


async def test_the_context_of_a_failed_draft_is_not_sent_again() -> None:
    """A service has read the context even if its only draft failed."""
    drafter = malformed()
    async with speculator_service({"a": drafter}) as (address, _), pool_of(address) as pool:
        for _ in range(3):
            assert not (await draft(pool, [step_entry("r", PROMPT)])).trees
        assert len(drafter.jobs) == 1


async def test_requests_of_a_replica_that_dies_continue_at_the_other() -> None:
    drafters = [guess(1), guess(2)]
    async with AsyncExitStack() as stack:
        two, _ = await stack.enter_async_context(speculator_service({"a": drafters[1]}, instance_id="two"))
        async with speculator_service({"a": drafters[0]}, instance_id="one") as (one, _):
            pool = await stack.enter_async_context(pool_of(f"{one}|{two}"))
            for more in ([], [8]):  # a request stays where it is
                drafts = await draft(pool, [step_entry(name, [*PROMPT, *more]) for name in "rstu"])
                assert [firsts(drafts, name)[0] for name in "rstu"] == [1, 2, 1, 2], (
                    "the replicas share the requests"
                )
            assert [len(drafter.jobs) for drafter in drafters] == [4, 4]
            await pool.release(["u"])
            drafts = await draft(pool, [step_entry("v", PROMPT)])
            assert firsts(drafts, "v") == {0: 2}, "it had the fewest requests"
        entry = step_entry("r", [*PROMPT, 8, 9])
        moved: dict[int, int] = {}
        async with asyncio.timeout(60):
            while not moved:
                moved = firsts(await draft(pool, [entry]))
                await asyncio.sleep(0.01)
        assert moved == {0: 2}, "under the same number, as it has the same name"
        assert list(drafters[1].jobs[-1].context) == [*PROMPT, 8, 9], "it was sent whole"
        assert len(pool.names) == 1


async def test_a_replica_with_other_speculators_is_not_used() -> None:
    async with (
        speculator_service({"a": guess(1)}) as (one, _),
        speculator_service({"b": guess(2)}) as (two, _),
    ):
        with pytest.raises(IncompatibleError, match=rf"{two} of {re.escape(f'{one}|{two}')} has .*'b'"):
            async with pool_of(f"{one}|{two}"):
                raise AssertionError("it was taken in")


async def test_a_name_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specinfer.remote.pool._LOOK_AGAIN_S", 0.01)
    async with AsyncExitStack() as stack:
        one, _ = await stack.enter_async_context(speculator_service({"a": guess(1)}))
        addresses = [one]

        async def look(entries: list[str]) -> list[str]:
            assert entries == ["dns:///drafts:1"]
            return list(addresses)

        monkeypatch.setattr("specinfer.remote.replicas.resolve", look)
        pool = await stack.enter_async_context(pool_of("dns:///drafts:1"))
        assert firsts(await draft(pool, [step_entry("r", PROMPT)])) == {0: 1}
        two, _ = await stack.enter_async_context(speculator_service({"a": guess(2)}))
        addresses.append(two)
        await until(lambda: len(pool.services) == 2 and ready(pool))
        drafts = await draft(pool, [step_entry("r", PROMPT), step_entry("s", PROMPT)])
        assert [firsts(drafts, name) for name in "rs"] == [{0: 1}, {0: 2}]
        assert (pool.names, pool.places, pool.groups) == (["a"], ["dns:///drafts:1"], [frozenset({0})])
