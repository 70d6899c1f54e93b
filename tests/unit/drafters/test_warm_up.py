"""A speculator service drafts once before it serves."""

import logging

import pytest

from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.drafters.engine import SpeculatorEngine, warm_up
from specinfer.errors import InvalidInputError
from specinfer.tree import TokenTree
from tests.support.oracle import chain
from tests.support.system import ScriptedDrafter


def test_trees_of_several_sizes_are_drafted_ahead_and_forgotten() -> None:
    drafter = ScriptedDrafter(lambda job: chain(job.context[-1], [1]))
    drafter.description = DrafterDescription(vocab_size=5)
    engine = SpeculatorEngine([drafter])
    warm_up(engine)
    assert {job.limits.nodes for job in drafter.jobs} == {4, 12}
    assert {job.sampling.greedy for job in drafter.jobs} == {True, False}
    assert max(max(job.context) for job in drafter.jobs) < 5
    assert engine.cached_requests == 0


def test_a_drafter_that_fails_in_the_warm_up_does_not_prevent_serving(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(job: DraftJob) -> TokenTree:
        raise InvalidInputError("context", len(job.context), "is not to its taste")

    engine = SpeculatorEngine([ScriptedDrafter(broken)])
    with caplog.at_level(logging.WARNING):
        warm_up(engine)
    assert engine.cached_requests == 0
