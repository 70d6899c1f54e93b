"""`Generation.Watch` of a whole gateway: the content of its replies, and who gets them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from specinfer.drafters import DraftJob
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.v1 import generation_pb2, tree_pb2
from specinfer.wire.codec import encode_constraint
from tests.integration.access.test_callers import PROMPT, guarded, refused, tokens
from tests.support.oracle import always, first, greedy
from tests.support.system import FIRST_CHARACTER, ScriptedDrafter, System, running_system, text_of, until

COUNT, LONG = 12, 300
"""Number of tokens of the watched request, and of a longer one in the same batch."""


def two_children(job: DraftJob) -> TokenTree:
    """Draft the target's next token and a wrong one, with different probabilities."""
    builder, (right,) = TreeBuilder(job.context[-1]), greedy(job.context, 1)
    builder.propose_points(0, [right, (right + 1) % 97], [0.75, 0.25])
    return builder.build()


async def watch(system: System, request_id: str, **options: Any) -> Any:
    """Open a call that gets all steps from now on."""
    call = system.stub.Watch(generation_pb2.WatchRequest(request_id=request_id), **options)
    assert await call.read() == generation_pb2.WatchReply()
    return call


async def rest_of(call: Any) -> list[Any]:
    """Return all further replies of a call."""
    replies = []
    while (reply := await call.read()) is not grpc.aio.EOF:
        replies.append(reply)
    return replies


async def test_the_steps_of_a_request_are_its_answer(redis_url: str) -> None:
    """Every token comes once, in order, with its text, its tree and its speculators."""
    drafters = {"a": ScriptedDrafter(first(2)), "b": ScriptedDrafter(two_children)}
    async with running_system(redis_url, drafters) as system:
        call, release = await watch(system, "seen"), system.hold()
        tasks = [
            asyncio.create_task(system.tokens([7, 8, 9], max_new_tokens=LONG, request_id="other")),
            asyncio.create_task(system.tokens(PROMPT, max_new_tokens=COUNT, request_id="seen")),
        ]
        await until(lambda: len(system.loop.scheduler.states) == 2)
        release.set()
        await asyncio.gather(*tasks)
        replies = await rest_of(call)
    expected = greedy(PROMPT, COUNT)
    steps = [reply.step for reply in replies]
    assert [token.token_id for step in steps for token in step.tokens] == expected
    assert "".join(token.text for step in steps for token in step.tokens) == text_of(expected)
    assert [step.position for step in steps] == [expected_position(steps, i) for i in range(len(steps))]
    assert {reply.request_id for reply in replies} == {"seen"}
    assert [reply.finish_reason for reply in replies][-2:] == [0, generation_pb2.FINISH_REASON_LENGTH]
    assert sum(reply.dropped for reply in replies) == 0
    assert max(step.batch for step in steps) == 2
    step = next(step for step in steps if len(step.accepted) == 2)
    check_tree(step, [PROMPT[-1], *expected])
    assert step.planner.reason == "not adaptive"
    assert [phase.name for phase in step.phases] == ["draft", "merge", "verify", "commit"]
    assert 0 < sum(phase.seconds for phase in step.phases) <= step.seconds * 1.001


def expected_position(steps: list[Any], number: int) -> int:
    return sum(len(step.tokens) for step in steps[:number])


def check_tree(step: Any, committed: list[int]) -> None:
    """Check a step that accepted two nodes of "a", and rejected one only "b" drafted."""
    nodes, root = step.nodes, committed[step.position]
    assert (nodes[0].token_id, nodes[0].parent, nodes[0].chance) == (root, -1, 1.0)
    path = [nodes[index] for index in step.accepted]
    assert [node.token_id for node in path] == committed[step.position + 1 : step.position + 3]
    assert [node.parent for node in path] == [0, step.accepted[0]]
    assert list(step.planner.speculators) == ["a", "b"]
    chances = {p.speculator: round(p.chance, 4) for p in path[0].proposals}
    assert chances == {0: 0.9, 1: 0.75}, "the probabilities that each speculator sent"
    assert {p.kind for node in nodes for p in node.proposals} == {tree_pb2.PROPOSAL_KIND_POINT}
    wrong = next(node for node in nodes[1:] if node.parent == 0 and node.token_id != path[0].token_id)
    assert [(p.speculator, p.chance) for p in wrong.proposals] == [(1, 0.25)]
    assert wrong.text == chr(32 + wrong.token_id - FIRST_CHARACTER)
    assert step.bonus.token_id == committed[step.position + 3]


async def test_plain_decoding_is_a_root_and_a_bonus(redis_url: str) -> None:
    async with running_system(redis_url, {"a": ScriptedDrafter(always)}) as system:
        call = await watch(system, "plain")
        fields = {"speculation": generation_pb2.SPECULATION_OFF, "logprobs": True, "request_id": "plain"}
        plain_reply = await system.generate(PROMPT, max_new_tokens=3, **fields)
        steps = [reply.step for reply in await rest_of(call)]
    assert [(len(step.nodes), len(step.accepted), len(step.tokens)) for step in steps] == [(1, 0, 1)] * 3
    assert [token.token_id for step in steps for token in step.tokens] == greedy(PROMPT, 3)
    encode_logprobs = [value for reply in plain_reply for value in reply.logprobs]
    assert [token.logprob for step in steps for token in step.tokens] == encode_logprobs


async def test_forced_tokens_have_no_speculator(redis_url: str) -> None:
    keys = {"type": "object", "properties": {"a_long_name": {"type": "boolean"}}, "required": ["a_long_name"]}
    schema = json.dumps({**keys, "additionalProperties": False})
    requested = {"constraint": encode_constraint(Constraint(ConstraintKind.JSON_SCHEMA, schema))}
    async with running_system(redis_url, eos=0) as system:
        call = await watch(system, "forced")
        await system.generate(PROMPT, request_id="forced", max_new_tokens=40, **requested)
        steps = [reply.step for reply in await rest_of(call)]
    accepted = [step.nodes[index] for step in steps for index in step.accepted]
    assert '"a_long_name"' in "".join(token.text for step in steps for token in step.tokens)
    assert len(accepted) > 5
    assert {(node.forced, len(node.proposals)) for node in accepted} == {(True, 0)}
    assert not any(step.nodes[0].forced for step in steps)


async def test_a_late_watcher_gets_the_remaining_steps(redis_url: str) -> None:
    """Positions and texts begin where the request is; cancelling it ends the stream."""
    async with running_system(redis_url, {"a": ScriptedDrafter(first(1))}) as system:
        answer = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=400, request_id="late"))
        await until(lambda: system.gateway.observer.totals.tokens > 3)
        call = await watch(system, "late")
        reply = await call.read()
        await system.stub.Cancel(generation_pb2.CancelRequest(request_id="late"))
        *_, last = await rest_of(call)
        generated = await answer
    start = reply.step.position
    assert start > 0
    assert [token.token_id for token in reply.step.tokens] == generated[
        start : start + len(reply.step.tokens)
    ]
    assert "".join(token.text for token in reply.step.tokens) == text_of(
        generated[start : start + len(reply.step.tokens)]
    )
    assert last.finish_reason == generation_pb2.FINISH_REASON_CANCELLED


async def test_callers_watch_only_their_own_requests(redis_url: str, tmp_path: Path) -> None:
    async with guarded(redis_url, tmp_path, drain_seconds=5.0) as (system, alice, bob):
        stub = system.stub
        assert await refused(stub.Watch(generation_pb2.WatchRequest())) is grpc.StatusCode.UNAUTHENTICATED
        hers, his = await watch(system, "", metadata=alice), await watch(system, "", metadata=bob)
        stranger = await watch(system, "one", metadata=bob)
        await tokens(system, alice, request_id="one", max_new_tokens=4)
        await tokens(system, bob, request_id="two", max_new_tokens=4)
        await tokens(system, alice, request_id="three", max_new_tokens=4)
        seen = [await hers.read() for _ in range(8)]
        assert [reply.request_id for reply in seen] == ["one"] * 4 + ["three"] * 4
        assert (await his.read()).request_id == "two"
        await system.gateway.drain()  # which sends the remaining steps first
        assert await refused(stranger) is grpc.StatusCode.UNAVAILABLE


async def test_bad_ids_and_too_many_watches_are_refused(redis_url: str) -> None:
    async with running_system(redis_url) as system:
        for request_id in ("", "x" * 257, "a\nb"):
            call = system.stub.Watch(generation_pb2.WatchRequest(request_id=request_id))
            assert await refused(call) is grpc.StatusCode.INVALID_ARGUMENT
        open_calls = [await watch(system, f"r{number}") for number in range(64)]
        call = system.stub.Watch(generation_pb2.WatchRequest(request_id="one too many"))
        assert await refused(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        open_calls[0].cancel()
        await until(lambda: len(system.gateway.watches) == 63)
        await watch(system, "has room now")


async def test_no_step_is_sent_before_it_is_stored(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_system(redis_url, {"a": ScriptedDrafter(first(1))}) as system:
        call, store, redis_is_back = await watch(system, "held"), system.store, asyncio.Event()
        append = store.append

        async def delayed(*arguments: Any) -> Any:
            await redis_is_back.wait()
            return await append(*arguments)

        monkeypatch.setattr(store, "append", delayed)
        answer = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=COUNT, request_id="held"))
        reading = asyncio.create_task(call.read())
        await until(lambda: system.loop.steps >= COUNT // 2)
        assert not reading.done()
        redis_is_back.set()
        reply = await reading
        assert [token.token_id for token in reply.step.tokens] == (await answer)[: len(reply.step.tokens)]
