"""Drafters, rule and trees of an `LLM` that change while the model stays loaded."""

from typing import Any

import pytest

from specinfer.drafters import DraftJob
from specinfer.errors import SettingError, UnavailableError
from specinfer.llm import SamplingParams
from specinfer.planning.choice import PLAIN
from specinfer.tree import TokenTree
from specinfer.tree.builder import point_tree
from specinfer.verification.acceptance import Acceptance, find_rule
from specinfer.verification.acceptance.naive import verify_naive
from tests.support.local import GREEDY, tiny_llm
from tests.support.system import ScriptedDrafter


def guessed(job: DraftJob) -> TokenTree:
    """Return a tree with one node below the root."""
    return point_tree([int(job.context[-1]), 5], [-1, 0], [1.0, 0.5], [1])


def test_drafters_and_rule_are_changed_in_an_open_llm_between_calls() -> None:
    calls: list[int] = []

    def own_rule(tree: TokenTree, target: Any, randomness: Any) -> Acceptance:
        calls.append(len(tree))
        return verify_naive(tree, target, randomness)

    llm = tiny_llm({"first": ScriptedDrafter(guessed)})
    sampled = SamplingParams(temperature=1.0, seed=7, max_tokens=12, ignore_eos=True)
    with llm:
        expected = llm.generate("abc", sampled)[0].outputs[0].token_ids
        engine = llm._driver.engine
        engine.groups_of = lambda draft, speculators: [{"other": ScriptedDrafter(guessed)}]
        llm.use(speculators=["other"], acceptance=own_rule)
        assert llm.speculators == ["other"]
        assert llm.generate("abc", sampled)[0].outputs[0].token_ids == expected
        assert max(calls) > 1, "the rule has judged trees of the new drafter"
        assert llm.metrics["speculator_draft_tokens[other]"] > 0
        assert llm.metrics["generation_tokens"] == 24
        with pytest.raises(SettingError, match="acceptance = 'best'"):
            llm.use(acceptance="best", speculators=["other"])
        stream = llm.stream("abc", sampled)
        with pytest.raises(UnavailableError, match="requests run"):
            llm.use(acceptance="naive")
        stream.close()
        count = len(calls)
        llm.use(acceptance="traversal")
        assert llm.speculators == ["other"]
        llm.generate("abc", sampled)
        assert len(calls) == count


def test_a_rule_may_be_a_function_or_its_name() -> None:
    assert find_rule(verify_naive) is verify_naive
    assert find_rule("specinfer.verification.acceptance.naive:verify_naive") is verify_naive
    with pytest.raises(SettingError, match=r"acceptance = 'no\.module:f'"):
        find_rule("no.module:f")
    assert tiny_llm(acceptance=verify_naive).generate("abc", GREEDY)[0].finished


@pytest.mark.parametrize(("others", "trees"), [([], True), ([SamplingParams(max_tokens=4)], False)])
def test_trees_are_always_made_if_the_whole_batch_asks(others: list[SamplingParams], trees: bool) -> None:
    """The planner never chooses trees."""
    llm = tiny_llm({"first": ScriptedDrafter(guessed)}, adaptive=True)
    llm._driver.engine.machine.planner.choose = lambda batch, contexts: PLAIN  # type: ignore[method-assign]
    always = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, speculation="always")
    llm.generate(["abc"] * (1 + len(others)), [always, *others])
    assert (llm.metrics["spec_decode_num_draft_tokens"] > 0) is trees
