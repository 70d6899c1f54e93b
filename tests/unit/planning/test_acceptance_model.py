"""Expected acceptance, from known outcomes."""

import pytest

from specinfer.planning.acceptance import AcceptanceModel
from specinfer.tree import TokenTree, merge_trees
from tests.support.oracle import chain

ROOT = 7
FIRST, SECOND, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


SEVEN = (1, 2, 4, 7)
"""Sizes of trees up to seven nodes."""


def model_of(speculators: int, *names: str) -> AcceptanceModel:
    """One that has seen enough trees of the pool to choose parts of it."""
    model = AcceptanceModel()
    model._whole = 16
    model.enrol(frozenset(range(speculators)))
    model.follow(dict.fromkeys(names, 0))
    return model


def expected(model: AcceptanceModel, asked: frozenset[int], nodes: int = 7) -> float:
    """Accepted tokens of a step of all followed requests."""
    sizes = [size for size in SEVEN if size < nodes]
    return model.expect(1, [*sizes, nodes]).tokens[asked][-1]


def usual(model: AcceptanceModel, nodes: int = 7) -> float:
    return model.usual(1).expect([size for size in SEVEN if size < nodes] + [nodes])[-1].accepted


def outcome(tree: TokenTree, wrong: int = 9) -> tuple[TokenTree, list[int]]:
    return tree, [node for node in range(1, len(tree)) if tree.token_ids[node] != wrong]


def merged(*drafts: list[int]) -> TokenTree:
    return merge_trees([(s, chain(ROOT, tokens)) for s, tokens in enumerate(drafts)])


def test_the_share_of_a_set_is_what_it_would_have_brought_of_what_the_pool_did() -> None:
    """Speculator 0 brought the first two accepted tokens, 1 all four: 0 alone would have stopped at two."""
    model = model_of(2, "r")
    for _ in range(16):
        model.observe(1, BOTH, 7, {"r": outcome(merged([1, 2, 9], [1, 2, 3, 4]))})
    assert model.share(FIRST) == 0.5
    assert model.share(SECOND) == model.share(BOTH) == 1.0
    assert expected(model, FIRST) == pytest.approx(0.5 * expected(model, BOTH))


def test_a_set_that_lacks_the_first_token_of_a_path_would_have_brought_nothing() -> None:
    model = model_of(2, "r")
    tree = merge_trees([(0, chain(ROOT, [1])), (1, chain(ROOT, [5, 6]))])
    for _ in range(16):
        model.observe(1, BOTH, 7, {"r": (tree, [1])})
    assert (model.share(FIRST), model.share(SECOND)) == (1.0, 0.0)
    assert model.share(frozenset()) == 0.0


def test_a_text_is_judged_by_its_own_trees_and_eight_usual_ones() -> None:
    model = model_of(1, "good", "new")
    for _ in range(30):
        model.observe(1, FIRST, 7, {"good": (chain(ROOT, range(7)), range(1, 7))})
    model.follow({"good": 0})
    assert expected(model, FIRST) == pytest.approx(6.0, abs=1.0)
    model.follow({"good": 0, "other": 0})
    both = expected(model, FIRST)
    model.follow({"other": 0})
    assert usual(model) < expected(model, FIRST) < 0.6 * both


def test_while_few_texts_were_seen_a_new_one_is_hoped_to_be_better() -> None:
    """Seen trees of one hopeless text say little of the next; those of many do."""
    model, hopes = model_of(1), []
    for number in range(60):
        model.follow({f"r{number}": 0})
        hopes.append(model.ratio(f"r{number}"))
        for _ in range(5):
            model.observe(1, FIRST, 7, {f"r{number}": (chain(ROOT, range(7)), [])})
    assert hopes[0] == pytest.approx(1.5)
    assert hopes == sorted(hopes, reverse=True)
    assert hopes[-1] < 1.1


def test_what_is_forgotten_starts_as_usual() -> None:
    model = model_of(1, "a")
    for _ in range(20):
        model.observe(1, FIRST, 7, {"a": (chain(ROOT, range(7)), [])})
    hopeless = expected(model, FIRST)
    model.follow({"b": 0})
    fresh = expected(model, FIRST)
    assert hopeless < fresh, "a text of its own may be better than the last one was"


def test_old_trees_fade_when_a_text_changes() -> None:
    model = model_of(1, "r")
    for accepted in ([], [1, 2, 3]):
        for _ in range(400):
            model.observe(1, FIRST, 7, {"r": (chain(ROOT, range(7)), accepted)})
    assert expected(model, FIRST) == pytest.approx(3.0, rel=0.15)


def test_a_tree_tells_what_every_smaller_one_would_have_brought() -> None:
    """The chain's first two nodes are accepted: two nodes bring as much as seven, one node half of it. Of
    larger trees a doubling is thought to bring what the ones before did."""
    model = model_of(1, "r")
    for _ in range(300):
        model.observe(1, FIRST, 7, {"r": (chain(ROOT, range(7)), [1, 2])})
    brought = model.usual(1).expect([1, 2, 4, 7, 14])
    accepted = [each.accepted / brought[3].accepted for each in brought]
    assert accepted[:3] == pytest.approx([0.5, 1.0, 1.0], rel=0.15)
    assert accepted[4] == pytest.approx(1.3, rel=0.05)
    assert [each.kept for each in brought] == pytest.approx([1, 2, 4, 7, 14])


def test_what_is_cut_of_trees_is_known_by_batch_size() -> None:
    """At batch 16 nodes cost more, so that fewer are kept."""
    model = model_of(1, "r")
    for _ in range(300):
        model.observe(1, FIRST, 7, {"r": (chain(ROOT, range(7)), [1])})
        model.observe(16, FIRST, 7, {"r": (chain(ROOT, range(2)), [1])})
    assert model.expect(1, SEVEN).kept == pytest.approx([1, 2, 4, 7], rel=0.05)
    assert model.expect(16, SEVEN).kept == pytest.approx([1, 2, 2, 2], rel=0.15)
    assert model.expect(12, SEVEN).kept == model.expect(16, SEVEN).kept, "one power of two"


def test_a_new_batch_size_begins_with_what_the_nearest_one_knows() -> None:
    model = model_of(1, "r")
    for _ in range(300):
        model.observe(1, FIRST, 7, {"r": (chain(ROOT, range(7)), [])})
    assert model.usual(4).expect(SEVEN)[-1].accepted < 0.9


def test_a_small_set_asked_alone_says_little_about_the_pool() -> None:
    """It brings a tenth; nothing accepted of it is a tenth of the evidence that it would be of the pool."""
    model, other = model_of(2, "r"), model_of(2, "r")
    for each in (model, other):
        for step in range(64):
            path = [1, 2, 3] if step % 10 else [1]
            tree = merge_trees([(0, chain(ROOT, [1] if step % 10 == 0 else [9])), (1, chain(ROOT, path))])
            accepted = [node for node in range(1, len(tree)) if tree.token_ids[node] != 9]
            each.observe(1, BOTH, 7, {"r": (tree, accepted)})
    assert model.share(FIRST) < 0.1
    before = expected(model, BOTH)
    for _ in range(10):
        model.observe(1, FIRST, 7, {"r": (chain(ROOT, [9]), [])})
        other.observe(1, BOTH, 7, {"r": (chain(ROOT, [9]), [])})
    assert expected(model, BOTH) > 0.9 * before
    assert expected(other, BOTH) < expected(model, BOTH)


def test_chains_of_one_speculator_tell_of_texts_but_not_of_shares() -> None:
    model = model_of(2, "r")
    before = expected(model, BOTH)
    for _ in range(40):
        model.observe(1, BOTH, 7, {"r": (chain(ROOT, range(3)), [1, 2, 3])}, merged=False)
    assert model.share(SECOND) == 1.0, "not measured"
    assert expected(model, BOTH) > before


def test_sets_grow_with_the_pool_not_with_its_power_set() -> None:
    model = AcceptanceModel()
    model.enrol(frozenset(range(18)))
    assert model.sets == [model.everybody], "until it has shown some trees"
    model._whole = 16
    assert len(model.sets) == 18 + 17
    assert model.sets[-1] == frozenset(range(18))
    assert {len(asked) for asked in model.sets} == set(range(1, 19))


def test_the_pool_is_built_up_by_whoever_adds_most() -> None:
    """Speculator 2 brings most alone; 0 repeats what 2 says, 1 knows another text: 1 comes second."""
    model = model_of(3, "r")
    for step in range(64):
        drafts = ([1, 2, 9], [9], [1, 2, 3]) if step % 4 else ([9], [1, 2, 3], [9])
        model.observe(1, frozenset({0, 1, 2}), 7, {"r": outcome(merged(*drafts))})
    assert frozenset({1, 2}) in model.sets
    assert frozenset({0, 2}) not in model.sets


def test_nodes_that_promise_too_little_to_be_kept_are_evidence_of_a_hopeless_text() -> None:
    model = model_of(1, "r")
    before = expected(model, FIRST)
    for _ in range(40):
        model.observe(1, FIRST, 8, {"r": (TokenTree.root_only(ROOT), [])})
    assert expected(model, FIRST) < 0.3 * before


def test_shares_are_known_from_the_first_trees() -> None:
    """A cheap speculator that brings nothing must not seem as good as the pool until many were accepted."""
    model = model_of(2, "r")
    assert model.share(FIRST) == 1.0, "nothing is known"
    tree = merge_trees([(0, chain(ROOT, [5])), (1, chain(ROOT, [1, 2]))])
    for _ in range(2):
        model.observe(1, BOTH, 7, {"r": (tree, [node for node in (1, 2, 3) if tree.token_ids[node] != 5])})
    assert (model.share(FIRST), model.share(SECOND)) == (0.0, 1.0)
