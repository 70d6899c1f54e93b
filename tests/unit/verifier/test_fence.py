"""Fences of leases: lower numbers are refused, and a higher one starts with an empty cache."""

from specinfer.request.sampling import GREEDY
from specinfer.request.statuses import EntryStatus
from specinfer.tree import TokenTree
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob
from tests.support.tiny_models import runner_of, tiny_transformers
from verifier_svc.servicer import Fence, Standing


def test_the_highest_number_is_served() -> None:
    fence = Fence()
    assert [fence.admit(number) for number in (3, 3, 2, 0, 4, 3, 4)] == [
        *(Standing.NEW, Standing.CURRENT, Standing.STALE, Standing.STALE),
        *(Standing.NEW, Standing.STALE, Standing.CURRENT),
    ]


def test_requests_without_a_lease_are_served_until_one_has_a_lease() -> None:
    fence = Fence()
    assert [fence.admit(0), fence.admit(0), fence.admit(1), fence.admit(0)] == [
        *(Standing.CURRENT, Standing.CURRENT, Standing.NEW, Standing.STALE)
    ]


def test_requests_released_by_a_later_lease_keep_their_prefix_blocks() -> None:
    engine = VerifierEngine(runner_of(tiny_transformers("llama")))
    prompt = [(7 * i) % 97 for i in range(40)]
    job = VerifyJob("r", 0, prompt, TokenTree.root_only(prompt[-1]), GREEDY)
    (before,) = engine.verify([job])
    assert engine.release_all() == 1
    assert engine.cached_requests == 0
    (gap,) = engine.verify([VerifyJob("r", 40, [5], TokenTree.root_only(5), GREEDY)])
    assert gap.status is EntryStatus.RESYNC
    shared = engine.runner.cache.pool.shared_tokens
    (again,) = engine.verify([job])
    assert (again.accepted, again.bonus) == (before.accepted, before.bonus)
    assert engine.runner.cache.pool.shared_tokens > shared, "most of the prompt was found"
