"""How policies walk through answers whose acceptance is known."""

import numpy as np
import pytest

from benchmarks import scheduler
from benchmarks.drafts.paths import followed
from benchmarks.drafts.prompts import Prompt
from benchmarks.scheduler import SIZES, Answer, Costs, follow, learn, markdown, oracle, policies
from specinfer.drafters import DrafterDescription
from specinfer.drafters.ssm import SsmDrafter
from specinfer.model.drafting.task import GrowthShape
from specinfer.tree import TokenTree, TreeBuilder
from tests.tiny_models import runner_of, tiny_transformers


def chain(root: int, tokens: list[int], chance: float = 0.9) -> TokenTree:
    builder, parent = TreeBuilder(root), 0
    for depth, token in enumerate(tokens):
        (parent,) = builder.propose_points(parent, [token], [chance ** (depth + 1)])
    return builder.build()


def answer(tokens: list[int], right: list[bool]) -> Answer:
    """At each position drafts of every size: all right, or wrong from the first on."""
    found = Answer(tokens=tokens)
    for p, good in enumerate(right):
        following = tokens[p:] if good else [90] * 32
        found.trees.append([chain(7, following[:size], 0.9 if good else 0.2) for size in SIZES])
    return found


COSTS = Costs(np.array([1.0, 1.1, 1.2, 1.4, 2.0, 4.0]), draft=0.5)
TOKENS = list(range(20, 36))


def test_a_walk_ends_at_the_first_token_that_is_not_there() -> None:
    tree = chain(1, [5, 6, 7])
    assert [followed(tree, following) for following in ([5, 6, 7, 8], [5, 6], [5, 9], [4])] == [3, 2, 1, 0]


def test_a_policy_pays_for_its_steps_and_gets_what_is_accepted() -> None:
    good = answer(TOKENS, [True] * len(TOKENS))
    assert follow([good], COSTS, lambda *_: 0) == pytest.approx(1.0)
    # eight nodes: nine tokens for 1.4 + 0.5, then the other seven for the same
    assert follow([good], COSTS, lambda *_: SIZES.index(8)) == pytest.approx(2 * 1.9 / 16)
    bad = answer(TOKENS, [False] * len(TOKENS))
    assert follow([bad], COSTS, lambda *_: SIZES.index(8)) == pytest.approx(1.9)


def test_nobody_beats_the_oracle_and_the_learned_one_tells_good_drafts_from_bad_ones() -> None:
    rng = np.random.default_rng(0)
    answers = [answer(TOKENS, (rng.random(len(TOKENS)) < share).tolist()) for share in (0.2, 0.5, 0.8, 0.4)]
    assert np.isfinite(learn(answers)).all()
    found = policies(answers, answers, COSTS)
    assert min(found.values()) == found["oracle"] == oracle(answers, COSTS)
    names = [name for name in found if name.startswith("fixed")]
    assert found["learned"] < found[names[0]]
    assert found["learned"] < found["plain"]


def test_trees_are_those_of_the_position_in_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that is the target itself is right everywhere, also for prompts that reuse an id."""
    monkeypatch.setattr(scheduler, "BATCH", 2)
    model = tiny_transformers("llama", seed=3)
    twin = SsmDrafter(runner_of(model), DrafterDescription("twin", 97), GrowthShape())
    prompts = [Prompt("a", (5, 17, 3)), Prompt("a", (41, 9)), Prompt("b", (60, 2, 71, 33)), Prompt("b", (8,))]
    found = scheduler.record(runner_of(model), [twin], prompts, 6)
    assert [len(each.tokens) for each in found] == [len(each.trees) for each in found]
    for each in found:
        full = each.accepted[:, SIZES.index(8)]
        left = len(each.tokens) - np.arange(len(each.tokens))
        assert (full[:-1] >= np.minimum(left[:-1], 1)).all(), "at least the first guess is right"


def test_the_report_names_every_policy() -> None:
    costs = {"passes_ms": [1.0] * 6, "draft_ms": 2.0, "ms_per_token": {"plain": 4.0, "oracle": 2.0}}
    about = {"command": "c", "commit": "d", "time": "t", "cores": 2, "cpu": "x"}
    report = {"about": about, "prompts": 3, "new_tokens": 4, "costs": {"blocks": costs}}
    assert "| oracle | 2.00 | 2.00x |" in markdown(report)
    assert scheduler.SIZES[0] == 0
