"""Independent speculators draft ahead of the verdict: texts are the same, only trees are there earlier."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from specinfer.drafters import Drafter, DrafterDescription, DraftJob
from specinfer.drafters.ngram import NgramDrafter
from specinfer.errors import SpecInferError
from specinfer.tree import TokenTree
from specinfer.v1 import generation_pb2
from specinfer.verification.engine import EngineLimits
from speculator_svc.clients import request_id_of
from tests.integration.test_context_end import ssm
from tests.integration.test_draws import WITHOUT, drawing, table_drafter
from tests.support.markov import REQUESTS, markov, p_value, sampled, serving
from tests.support.oracle import always, first, greedy, never
from tests.support.system import ScriptedDrafter, System, running_system, until
from tests.support.tiny_models import tiny_transformers

PROMPT = [5, 17, 3, 88, 41]
OFF, SEQUENCE, TREE = 3, 2, 1


class Ahead(ScriptedDrafter):
    """A scripted drafter that can draft ahead; `ahead` are the contexts that it looked at."""

    ahead: list[DraftJob]

    def draft_ahead(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        self.ahead = [*getattr(self, "ahead", ()), *jobs]
        return [TokenTree.root_only(j.context[-1]) if j.limits.empty else self.script(j) for j in jobs]

    @property
    def now(self) -> list[DraftJob]:
        """Drafts that a step waited for."""
        return [job for job in self.jobs if not job.limits.empty]


def ahead_of(drafter: ScriptedDrafter) -> Ahead:
    """The same drafter, which can draft ahead."""
    found = Ahead(drafter.script)
    found.description = drafter.description
    return found


async def test_trees_are_there_when_the_step_begins(redis_url: str) -> None:
    """Where guesses are right nothing is drafted while the verifier waits, and all is accepted."""
    drafter = Ahead(first(3))
    async with running_system(redis_url, {"own": drafter}, tree_nodes=3, draft_ahead="always") as system:
        replies = await system.generate(PROMPT, max_new_tokens=41)
        (service,) = system.loop.pool.services
        status = await system.stub.Status(generation_pb2.StatusRequest())
        metric = system.registries["gateway"].get_sample_value
        labels = {"service": service.address, "speculator": "own"}
        counted = [
            metric("specinfer_ahead_drafts_total", labels | {"outcome": outcome})
            for outcome in ("hit", "miss", "wasted")
        ]
        waited = metric("specinfer_bubble_seconds_total", {"waiting": "verifier"})
    (row,) = status.speculators
    assert counted == [row.ahead_hits, row.ahead_misses, row.ahead_wasted]
    assert (row.ahead_hits, row.ahead_misses) == (9, 0)
    assert row.ahead_wasted == 0, "one outcome is foreseen, and it comes"
    assert waited
    assert [t for reply in replies for t in reply.token_ids] == greedy(PROMPT, 41)
    assert replies[-1].summary.stats.steps == 11, "one token, then four a step"
    assert len(drafter.now) == 1, "that of the step which reads the prompt"
    assert service.counters.answered == 10


async def test_wrong_guesses_are_drafted_now(redis_url: str) -> None:
    drafter = Ahead(never)
    async with running_system(redis_url, {"own": drafter}, draft_ahead="always") as system:
        assert await system.tokens(PROMPT, max_new_tokens=12) == greedy(PROMPT, 12)
        (row,) = (await system.stub.Status(generation_pb2.StatusRequest())).speculators
    assert (row.ahead_hits, row.ahead_misses) == (0, 10)
    assert row.ahead_wasted >= 10
    assert len(drafter.now) >= 9
    assert drafter.ahead


async def test_a_speculator_that_cannot_is_not_asked(redis_url: str) -> None:
    """One of an older release says nothing of it; a service is asked only if all its speculators can."""
    old, new = ScriptedDrafter(first(2)), Ahead(first(2))
    for one_service in (False, True):
        async with running_system(
            redis_url, {"old": old, "new": new}, draft_ahead="always", one_service=one_service
        ) as system:
            assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
            assert all(not s.faults.malformed and not s.faults.drafts for s in system.loop.pool.services)
        looked, new.ahead = len(new.ahead), []
        assert bool(looked) != one_service


async def test_requests_come_and_go_in_one_batch(redis_url: str) -> None:
    drafters: dict[str, Drafter] = {"first": Ahead(first(2)), "ngram": NgramDrafter(1, 4, 3)}
    prompts = [[3 + n, *(3 + (7 * n + i) % 90 for i in range(5 * n))] for n in range(12)]
    modes = [OFF, SEQUENCE, TREE] * 4
    async with running_system(redis_url, drafters, draft_ahead="always", max_batch=4) as system:
        found = await asyncio.gather(
            *(
                system.tokens(prompt, max_new_tokens=5 + n, speculation=modes[n])
                for n, prompt in enumerate(prompts)
            )
        )
        held = [service.held for service in system.loop.pool.services]
    assert found == [greedy(prompt, 5 + n) for n, prompt in enumerate(prompts)]
    assert held == [{}, {}], "what came after the end of a request is forgotten"


@pytest.mark.parametrize("every", [2, 3])
async def test_whoever_forgets_is_told_again(redis_url: str, every: int) -> None:
    """The verifier forgets all requests of some steps, and the speculator those of others."""
    drafter = Ahead(first(2))
    async with running_system(redis_url, {"own": drafter}, draft_ahead="always") as system:
        system.forget_every(every)
        (service,) = system.loop.pool.services
        seen = 0

        def forget(job: DraftJob) -> TokenTree:
            nonlocal seen
            seen += 1
            if seen % (5 * every) == 0:
                service.held[request_id_of(job.request_id)] = 1  # the gateway is wrong about what it holds
            return first(2)(job)

        drafter.script = forget
        assert await system.tokens(PROMPT, max_new_tokens=30) == greedy(PROMPT, 30)
        assert service.statistics.resyncs or seen > 5


async def test_a_speculator_that_is_gone_for_a_while_costs_drafts_only(redis_url: str) -> None:
    drafter = Ahead(first(2))
    async with running_system(redis_url, {"own": drafter}, draft_ahead="always") as system:
        (service,) = system.loop.pool.services
        asked = 0

        def cut(job: DraftJob) -> TokenTree:
            nonlocal asked
            asked += 1
            if asked in (6, 30) and service.stream is not None:
                system.gateway.running.get_loop().call_soon_threadsafe(service.stream.reset)
            return first(2)(job)

        drafter.script = cut
        found = await asyncio.gather(*(system.tokens([n, *PROMPT], max_new_tokens=40) for n in range(3, 6)))
    assert found == [greedy([n, *PROMPT], 40) for n in range(3, 6)]
    assert asked > 30


async def test_cancelled_requests_leave_nothing_behind(redis_url: str) -> None:
    async with running_system(redis_url, {"own": Ahead(first(2))}, draft_ahead="always") as system:
        calls = []
        for number in range(4):
            call = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=200, request_id=f"r{number}"))
            calls.append(call)
        await until(lambda: system.loop.steps >= 5)
        for number in range(3):
            await system.stub.Cancel(generation_pb2.CancelRequest(request_id=f"r{number}"))
        texts = await asyncio.gather(*calls)
        pool = system.loop.pool
        await until(lambda: pool.services[0].held == {})
        assert all(not made for made in pool.ahead._made.values())
    assert texts[3] == greedy(PROMPT, 200)


@pytest.mark.parametrize("context", [19, 64])
async def test_the_end_of_the_context_is_like_plain_decoding(redis_url: str, context: int) -> None:
    drafters: dict[str, Drafter] = {"short": ssm("llama", context - 7), "ngram": NgramDrafter(1)}
    async with running_system(
        redis_url,
        drafters,
        draft_ahead="always",
        model=tiny_transformers("llama", max_position_embeddings=context),
        engine_limits=EngineLimits(max_context_len=context),
        prefill_chunk=7,
    ) as system:
        for length in (1, context // 2, context - 2):
            prompt = [3 + (11 * i) % 90 for i in range(length)]
            plain = await system.tokens(prompt, max_new_tokens=context - length, speculation=OFF)
            assert await system.tokens(prompt, max_new_tokens=context - length) == plain


async def text(system: System, name: str, **fields: object) -> list[int]:
    return await system.tokens(PROMPT, temperature=0.9, seed=5, request_id=name, max_new_tokens=40, **fields)


@pytest.mark.parametrize("drawn", [False, True])
async def test_a_seed_gives_the_same_text_with_and_without(redis_url: str, drawn: bool) -> None:
    """With points it is that of plain decoding; with draws that of the same draws, made now."""
    texts = []
    for mode in ("always", "never"):
        own = ahead_of(drawing()) if drawn else Ahead(first(2))
        drafters: dict[str, Drafter] = {"own": own, "ssm": ssm("llama", 512)}
        async with running_system(redis_url, drafters, draft_ahead=mode) as system:
            texts.append([await text(system, name) for name in ("a", "b", "c")])
        assert bool(getattr(own, "ahead", ())) == (mode == "always")
    assert texts[0] == texts[1]


@pytest.mark.statistical
@pytest.mark.parametrize("lies", [False, True])
async def test_draws_made_ahead_follow_the_target(redis_url: str, lies: bool) -> None:
    """Chi-square of the transitions of a Markov chain, as in `test_draws`; one that lies about q is seen."""
    target = markov(1)
    drafter = ahead_of(table_drafter(0, WITHOUT, lies))
    async with serving(redis_url, {"a": drafter}, target, 2, draft_ahead="always") as system:
        texts = await sampled(system, [i % 5 for i in range(REQUESTS)])
    assert drafter.ahead
    assert (p_value(target, texts) > 1e-4) != lies


async def test_terms_that_changed_meanwhile_are_a_miss(redis_url: str) -> None:
    """A tree that was made for other limits is not used, though it is for the right context."""
    drafter = Ahead(always)
    drafter.description = DrafterDescription()
    async with running_system(redis_url, {"own": drafter}, draft_ahead="always", tree_nodes=4) as system:
        machine = system.loop.machine
        plan = machine.plan

        def smaller(*arguments: object) -> object:
            step = plan(*arguments)  # type: ignore[arg-type]
            entries = [
                replace(e, limits=replace(e.limits, nodes=min(2, e.limits.nodes))) for e in step.entries
            ]
            return step._replace(entries=entries)

        machine.plan = smaller  # type: ignore[method-assign,assignment]
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
    assert {job.limits.nodes for job in drafter.now} == {2}
    assert len(drafter.now) >= 5


async def test_without_a_draft_made_ahead_a_request_may_go_without(redis_url: str) -> None:
    """Wrong guesses of points are not drafted for again; those of draws are, as to leave them out selects by token."""
    points, draws = Ahead(never), ahead_of(drawing())
    async with running_system(redis_url, {"own": points}, draft_ahead="only") as system:
        assert await system.tokens(PROMPT, max_new_tokens=12) == greedy(PROMPT, 12)
    assert len(points.now) == 1, "that of the step which reads the prompt"
    async with running_system(redis_url, {"own": draws}, draft_ahead="only") as system:
        drawn = await text(system, "a")
    assert len(draws.now) > 3
    async with running_system(redis_url, {"own": ahead_of(drawing())}, draft_ahead="never") as system:
        assert await text(system, "a") == drawn
