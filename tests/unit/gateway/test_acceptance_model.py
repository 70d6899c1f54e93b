"""What is expected to be accepted, from known outcomes."""

from math import log2

import pytest

from gateway.planning.acceptance import AcceptanceModel
from specinfer.tree import TokenTree, merge_trees
from tests.oracle import chain

ROOT = 7
FIRST, SECOND, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


def model_of(speculators: int, *names: str) -> AcceptanceModel:
    model = AcceptanceModel()
    model.enrol(frozenset(range(speculators)))
    model.follow(dict.fromkeys(names, 0))
    return model


def outcome(tree: TokenTree, wrong: int = 9) -> tuple[TokenTree, list[int]]:
    return tree, [node for node in range(1, len(tree)) if tree.token_ids[node] != wrong]


def merged(*drafts: list[int]) -> TokenTree:
    return merge_trees([(s, chain(ROOT, tokens)) for s, tokens in enumerate(drafts)])


def test_the_share_of_a_set_is_what_it_would_have_brought_of_what_the_pool_did() -> None:
    """Speculator 0 brought the first two accepted tokens, 1 all four: 0 alone would have stopped at two."""
    model = model_of(2, "r")
    for _ in range(16):
        model.observe(BOTH, 7, {"r": outcome(merged([1, 2, 9], [1, 2, 3, 4]))})
    assert model.share(FIRST) == 0.5
    assert model.share(SECOND) == model.share(BOTH) == 1.0
    assert model.per_doubling(FIRST) == pytest.approx(0.5 * model.per_doubling(BOTH))


def test_a_set_that_lacks_the_first_token_of_a_path_would_have_brought_nothing() -> None:
    model = model_of(2, "r")
    tree = merge_trees([(0, chain(ROOT, [1])), (1, chain(ROOT, [5, 6]))])
    for _ in range(16):
        model.observe(BOTH, 7, {"r": (tree, [1])})
    assert (model.share(FIRST), model.share(SECOND)) == (1.0, 0.0)
    assert model.share(frozenset()) == 0.0


def test_a_text_is_judged_by_its_own_trees_and_eight_usual_ones() -> None:
    """Trees of seven nodes are three doublings; six accepted tokens are two per doubling."""
    model = model_of(1, "good", "new")
    usual = model.per_doubling(FIRST) / 2
    for _ in range(30):
        model.observe(FIRST, 7, {"good": (chain(ROOT, range(7)), range(1, 7))})
    model.follow({"good": 0})
    assert model.per_doubling(FIRST) == pytest.approx(2.0, abs=0.35)
    model.follow({"good": 0, "other": 0})
    other = model.per_doubling(FIRST)
    model.follow({"other": 0})
    assert usual < model.per_doubling(FIRST) < other


def test_what_is_forgotten_starts_as_usual() -> None:
    model = model_of(1, "a")
    for _ in range(20):
        model.observe(FIRST, 7, {"a": (chain(ROOT, range(7)), [])})
    hopeless = model.per_doubling(FIRST)
    model.follow({"b": 0})
    fresh = model.per_doubling(FIRST)
    assert hopeless < fresh, "a text of its own may be better than the last one was"


def test_old_trees_fade_when_a_text_changes() -> None:
    model = model_of(1, "r")
    for accepted in ([], [1, 2, 3]):
        for _ in range(300):
            model.observe(FIRST, 7, {"r": (chain(ROOT, range(7)), accepted)})
    assert model.per_doubling(FIRST) == pytest.approx(1.0, rel=0.02)


def test_sizes_of_trees_do_not_matter_if_each_doubling_brings_as_much() -> None:
    small, large = model_of(1, "r"), model_of(1, "r")
    for _ in range(200):
        small.observe(FIRST, 3, {"r": (chain(ROOT, range(3)), [1])})
        large.observe(FIRST, 15, {"r": (chain(ROOT, range(15)), [1, 2])})
    assert small.per_doubling(FIRST) == pytest.approx(1 / log2(4), rel=0.02)
    assert large.per_doubling(FIRST) == pytest.approx(2 / log2(16), rel=0.02)


def test_a_small_set_asked_alone_says_little_about_the_pool() -> None:
    """It brings a tenth; nothing accepted of it is a tenth of the evidence that it would be of the pool."""
    model, other = model_of(2, "r"), model_of(2, "r")
    for each in (model, other):
        for step in range(64):
            path = [1, 2, 3] if step % 10 else [1]
            tree = merge_trees([(0, chain(ROOT, [1] if step % 10 == 0 else [9])), (1, chain(ROOT, path))])
            accepted = [node for node in range(1, len(tree)) if tree.token_ids[node] != 9]
            each.observe(BOTH, 7, {"r": (tree, accepted)})
    assert model.share(FIRST) < 0.1
    before = model.per_doubling(BOTH)
    for _ in range(10):
        model.observe(FIRST, 7, {"r": (chain(ROOT, [9]), [])})
        other.observe(BOTH, 7, {"r": (chain(ROOT, [9]), [])})
    assert model.per_doubling(BOTH) > 0.9 * before
    assert other.per_doubling(BOTH) < model.per_doubling(BOTH)


def test_chains_of_one_speculator_tell_of_texts_but_not_of_shares() -> None:
    model = model_of(2, "r")
    before = model.per_doubling(BOTH)
    for _ in range(40):
        model.observe(BOTH, 7, {"r": (chain(ROOT, range(3)), [1, 2, 3])}, merged=False)
    assert model.share(SECOND) == 1.0, "not measured"
    assert model.per_doubling(BOTH) > before


def test_sets_grow_with_the_pool_not_with_its_power_set() -> None:
    model = AcceptanceModel()
    model.enrol(frozenset(range(18)))
    assert len(model.sets) == 18 + 17
    assert model.sets[-1] == frozenset(range(18))
    assert {len(asked) for asked in model.sets} == set(range(1, 19))


def test_the_pool_is_built_up_by_whoever_adds_most() -> None:
    """Speculator 2 brings most alone; 0 repeats what 2 says, 1 knows another text: 1 comes second."""
    model = model_of(3, "r")
    for step in range(64):
        drafts = ([1, 2, 9], [9], [1, 2, 3]) if step % 4 else ([9], [1, 2, 3], [9])
        model.observe(frozenset({0, 1, 2}), 7, {"r": outcome(merged(*drafts))})
    assert frozenset({1, 2}) in model.sets
    assert frozenset({0, 2}) not in model.sets


def test_nodes_that_promise_too_little_to_be_kept_are_evidence_of_a_hopeless_text() -> None:
    model = model_of(1, "r")
    before = model.per_doubling(FIRST)
    for _ in range(40):
        model.observe(FIRST, 8, {"r": (TokenTree.root_only(ROOT), [])})
    assert model.per_doubling(FIRST) < 0.3 * before


def test_shares_are_known_from_the_first_trees() -> None:
    """A cheap speculator that brings nothing must not seem as good as the pool until many were accepted."""
    model = model_of(2, "r")
    assert model.share(FIRST) == 1.0, "nothing is known"
    tree = merge_trees([(0, chain(ROOT, [5])), (1, chain(ROOT, [1, 2]))])
    for _ in range(2):
        model.observe(BOTH, 7, {"r": (tree, [node for node in (1, 2, 3) if tree.token_ids[node] != 5])})
    assert (model.share(FIRST), model.share(SECOND)) == (0.0, 1.0)
