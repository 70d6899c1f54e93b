"""Speculators that draw, in a whole system: what keeps their verification unbiased."""

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder, truncate
from specinfer.wire.client_ids import request_id_of
from tests.support.exactness.markov import REQUESTS, TOKENS, markov, p_value, sampled, serving
from tests.support.oracle import always, greedy
from tests.support.system import ScriptedDrafter, running_system, until

PROMPT = [5, 17, 3, 88, 41]
WITHOUT = ProposalKind.WITHOUT_REPLACEMENT
Q = np.array([40, 41, 42], np.int32), np.array([0.5, 0.3, 0.2], np.float32)


def one_draw(job: DraftJob) -> TokenTree:
    """Draw one child from Q with the job's draw seed."""
    builder = TreeBuilder(job.context[-1])
    token = int(np.random.default_rng([job.draw_seed, len(job.context)]).choice(Q[0], p=[0.5, 0.3, 0.2]))
    builder.propose_samples(0, WITHOUT, [token], Q)
    return builder.build()


def drawing(script: Callable[[DraftJob], TokenTree] = one_draw) -> ScriptedDrafter:
    """Return a drafter whose description has `draws`."""
    drafter = ScriptedDrafter(script)
    drafter.description = DrafterDescription(draws=True)
    return drafter


async def test_no_speculator_gets_the_noise_if_one_draws(redis_url: str) -> None:
    drafters = {"points": ScriptedDrafter(always), "draws": drawing()}
    async with running_system(redis_url, drafters) as system:
        await system.tokens(PROMPT, temperature=0.7, seed=5)
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16), "greedy requests are not affected"
    jobs = [job for drafter in drafters.values() for job in drafter.jobs if not job.sampling.greedy]
    assert {job.sees_noise for job in jobs} == {False}
    assert 5 not in {job.sampling.seed for job in jobs} | {job.draw_seed for job in jobs}
    assert len({job.draw_seed for job in jobs}) == 2, "each service draws by a seed of its own"


async def test_requests_with_the_same_seed_draw_independently(redis_url: str) -> None:
    drafter = drawing()
    async with running_system(redis_url, {"draws": drafter}) as system:
        await asyncio.gather(
            *(system.tokens(PROMPT, temperature=0.7, seed=5, request_id=name) for name in ("a", "b"))
        )
    seeds = {request_id_of(job.request_id): job.draw_seed for job in drafter.jobs}
    assert len(set(seeds.values())) == 2


async def test_a_new_drawing_service_does_not_draft_for_running_requests(redis_url: str) -> None:
    """Other speculators know their noise already; later requests are drafted for."""
    late, points = drawing(), ScriptedDrafter(always)
    reached, go_on = threading.Event(), threading.Event()

    def waits(job: DraftJob) -> TokenTree:
        if request_id_of(job.request_id) == "early":
            reached.set()
            go_on.wait(120)
        return always(job)

    points.script = waits
    async with running_system(redis_url, {"points": points, "draws": late}) as system:
        service = system.loop.pool.services[1]
        drawing_members, service.drawing = service.drawing, frozenset()
        early = asyncio.create_task(system.tokens(PROMPT, temperature=0.7, seed=5, request_id="early"))
        await asyncio.to_thread(reached.wait, 10)
        await until(lambda: not service.busy)  # its draft of this step was requested before it draws
        service.drawing = drawing_members
        asked_before = len(late.jobs)
        go_on.set()
        await early
        assert "early" not in {request_id_of(job.request_id) for job in late.jobs[asked_before:]}
        await system.tokens(PROMPT, temperature=0.7, seed=5, request_id="later")
    assert "later" in {request_id_of(job.request_id) for job in late.jobs}


async def test_a_step_with_draws_waits_for_late_services(redis_url: str) -> None:
    """Drafting time depends on the drawn tokens: dropping late drafts would bias the text."""

    def slow(job: DraftJob) -> TokenTree:
        threading.Event().wait(0.05)
        return one_draw(job)

    async with running_system(redis_url, {"slow": drawing(slow)}, deadline_s=0.001) as system:
        await system.tokens(PROMPT, temperature=0.7, seed=5, max_new_tokens=8)
        (service,) = system.loop.pool.services
        assert service.missed == 0
        assert service.answered >= 4


async def test_a_hung_drawing_service_counts_as_lost(redis_url: str) -> None:
    hang, drafter = threading.Event(), drawing()

    def script(job: DraftJob) -> TokenTree:
        hang.wait(120)
        return one_draw(job)

    drafter.script = script
    async with running_system(redis_url, {"hung": drafter}, hung_s=0.2) as system:
        tokens = await system.tokens(PROMPT, temperature=0.7, seed=5, max_new_tokens=8)
        assert len(tokens) == 8
        (service,) = system.loop.pool.services
        assert service.missed >= 1
        hang.set()


def chain(seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """Return a random Markov chain [4, 4]."""
    return np.random.default_rng(seed).dirichlet(np.ones(4), size=4).astype(np.float32)


def table_drafter(seed: int, kind: ProposalKind, lies: bool = False) -> ScriptedDrafter:
    """Return a drafter whose trees have two children and one grandchild from a random chain.

    Points are the chain's most probable tokens. With `lies`, its stated q is that of another chain.
    """
    q, stated = chain(seed), chain(seed + 10 if lies else seed)

    def script(job: DraftJob) -> TokenTree:
        rng = np.random.default_rng([job.draw_seed, len(job.context)])
        builder, node = TreeBuilder(job.context[-1]), 0
        for width in (2, 1)[: job.limits.depth]:
            last = builder.token_ids[node]
            if kind is ProposalKind.POINT:
                tokens = np.argsort(-q[last])[:width]
                node = builder.propose_points(node, tokens.tolist(), q[last][tokens].tolist())[0]
            else:
                tokens = rng.choice(4, width, replace=kind is not WITHOUT, p=q[last] / q[last].sum())
                draw = np.arange(4, dtype=np.int32), stated[last]
                node = builder.propose_samples(node, kind, tokens.tolist(), draw)[0]
            if len(builder) > job.limits.nodes:
                break
        return truncate(builder.build(), job.limits.nodes + 1)

    drafter = ScriptedDrafter(script)
    drafter.description = DrafterDescription(draws=kind is not ProposalKind.POINT)
    return drafter


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("budget", "lies"),
    [*(pytest.param(n, False, marks=pytest.mark.thorough) for n in (1, 2)), (4, False), (4, True)],
)
async def test_two_drawing_services_and_one_of_points_follow_the_target(
    redis_url: str, budget: int, lies: bool
) -> None:
    """The whole system is tested with its random numbers, which proofs by enumeration leave out.

    The target is a Markov chain of four tokens; chi-square of its transitions (12 degrees of freedom), over
    requests of which many have the same seed. False alarms: 1e-4; power: see `p_value`. The negative control is
    a service with a wrong q.
    """
    target = markov(1)
    kinds = {"a": WITHOUT, "b": ProposalKind.WITH_REPLACEMENT, "c": ProposalKind.POINT}
    drafters = {name: table_drafter(seed, kind, lies) for seed, (name, kind) in enumerate(kinds.items())}
    async with serving(redis_url, drafters, target, budget) as system:
        texts = await sampled(system, [i % 5 for i in range(REQUESTS)], TOKENS // 4 if lies else TOKENS)
        services = system.loop.pool.services
    assert all(service.answered and not service.faults.malformed for service in services)
    assert (p_value(target, texts) > 1e-4) != lies
