"""Node budgets follow from the measured cost of passes, on any machine."""

from itertools import pairwise

import pytest

from specinfer.planning.pass_curve import PassCurve, derive_budget

CPU = PassCurve(
    [
        (1, 0.0095),
        (4, 0.0100),
        (6, 0.0102),
        (7, 0.0112),
        (12, 0.0128),
        (13, 0.0145),
        (18, 0.0165),
        (24, 0.0205),
        (32, 0.026),
        (64, 0.052),
    ]
)
"""Measured with AVX-512 in halves (docs/performance.md)."""
FLAT = PassCurve([(1, 0.012), (2048, 0.0121)])
LINEAR = PassCurve([(n, 0.01 * n) for n in (1, 2, 64)])


def test_a_cpu_gets_small_trees() -> None:
    budget = derive_budget(CPU, 16, 127, 2048)
    assert 8 <= budget.per_request <= 17
    assert 16 <= budget.per_step <= 64


def test_a_gpu_whose_nodes_are_free_gets_large_trees_at_batch_32() -> None:
    budget = derive_budget(FLAT, 32, 127, 2048)
    assert budget.per_request == 127
    assert budget.of_step(32, 32) // 32 >= 60


def test_trees_stay_tiny_if_every_token_costs_as_much_as_the_first() -> None:
    assert derive_budget(LINEAR, 16, 127, 2048).per_request <= 2


@pytest.mark.parametrize("curve", [CPU, FLAT, LINEAR])
def test_a_step_never_has_more_tokens_than_the_verifier_accepts(curve: PassCurve) -> None:
    budget = derive_budget(curve, 64, 127, 96)
    for batch in (1, 8, 64, 96, 200):
        assert budget.of_step(batch, batch) <= max(0, 96 - batch)
    limits = [budget.of_step(64, requests) for requests in range(65)]
    assert all(a <= b for a, b in pairwise(limits))


def test_the_operator_may_set_the_budget() -> None:
    budget = derive_budget(FLAT, 32, 127, 2048, per_request=5, per_step=9)
    assert (budget.per_request, budget.per_step) == (5, 9)
    assert derive_budget(FLAT, 32, 10, 2048, per_request=50).per_request == 10, "but not beyond the verifier"
