"""The planner against simulated speculators with known gain and cost: it finds the best choice, and its
looks at worse ones cost little."""

import random

import pytest

from gateway.planning.latency import DraftTime
from gateway.planning.pass_times import PassCurve
from gateway.planning.planner import PLAIN, Choice, Planner, StepReport
from specinfer.tree import TokenTree, TreeBuilder, cut_trees, merge_trees
from tests.oracle import chain

ROOT = 7
ALONE = frozenset({0})


def planner_of(
    speculators: int, most_nodes: int, step_nodes: int, adaptive: bool = True, node_ms: float = 0.1
) -> Planner:
    """With as many services of one speculator each, and a verifier that says what a node takes."""
    planner = Planner(curve(node_ms), most_nodes, step_nodes, adaptive)
    planner.enrol([frozenset({s}) for s in range(speculators)])
    return planner


def curve(node_ms: float) -> PassCurve:
    return PassCurve([(1, 0.005), (1001, 0.005 + node_ms)])


def simulate(
    planner: Planner,
    steps: int,
    batch: int,
    accepts: dict[int, int],
    draft_ms: dict[int, float],
    node_ms: float,
    one_service: bool = False,
) -> tuple[list[Choice], float]:
    """Runs steps in which speculator s always has `accepts[s]` tokens right, in the first of its nodes.

    Drafts are made side by side, or one after another in `one_service`. Returns the choices and tokens
    per millisecond.
    """
    choices, tokens, total_ms = [], 0, 0.0
    names = [f"r{i}" for i in range(batch)]
    for _ in range(steps):
        choice = planner.choose(batch, names)
        choices.append(choice)
        worth = planner.worth(batch, choice)
        drafts = [_draft(choice, accepts) for _ in range(batch)]
        outcomes = [
            (tree, _accepted(tree)) for tree in cut_trees(drafts, [choice.nodes + 1] * batch, worth=worth)
        ]
        in_pass = sum(len(tree) for tree, _ in outcomes)
        verify_ms = 5.0 + node_ms * (in_pass - batch)
        took = (
            [_time(draft_ms, choice)] if one_service else [_time({s: t}, choice) for s, t in draft_ms.items()]
        )
        took = [time for time in took if time.own_s]
        total_ms += 1.0 + 1000 * max((sum(time.own_s.values()) for time in took), default=0.0) + verify_ms
        tokens += sum(1 + len(accepted) for _, accepted in outcomes)
        planner.observe(
            StepReport(
                choice, batch, in_pass, verify_ms / 1000, took, 0.001, dict(zip(names, outcomes, strict=True))
            )
        )
    return choices, tokens / total_ms


def _seconds(choice: Choice, seconds: float) -> list[DraftTime]:
    """A pool of one speculator."""
    return [DraftTime(ALONE, {0: seconds}, 0)] if choice.speculators else []


def _draft(choice: Choice, accepts: dict[int, int]) -> TokenTree:
    """Every chosen speculator drafts a right chain and fills its budget with wrong siblings."""
    trees = []
    for s in sorted(choice.speculators):
        builder, node = TreeBuilder(ROOT), 0
        for depth in range(min(accepts[s], choice.nodes)):
            (node,) = builder.propose_points(node, [10 + depth], [0.9])
        wrong = range(50 + 20 * s, 50 + 20 * s + choice.nodes - len(builder) + 1)
        builder.propose_points(0, list(wrong), [0.01] * len(wrong))
        trees.append((s, builder.build()))
    return merge_trees(trees) if trees else TokenTree.root_only(ROOT)


def _time(draft_ms: dict[int, float], choice: Choice) -> DraftTime:
    """Of the service of these speculators."""
    return DraftTime(
        frozenset(draft_ms), {s: draft_ms[s] / 1000 for s in draft_ms if s in choice.speculators}, 0
    )


def _accepted(tree: TokenTree) -> list[int]:
    return [node for node in range(1, len(tree)) if tree.token_ids[node] < 50]


def usual(choices: list[Choice]) -> Choice:
    """What is chosen most often once it has learnt."""
    late = choices[len(choices) // 2 :]
    return max(set(late), key=late.count)


def test_good_and_cheap_speculators_are_used_with_no_more_nodes_than_pay() -> None:
    planner = planner_of(1, 16, 64)
    choices, _ = simulate(planner, 300, 1, {0: 4}, {0: 1.0}, node_ms=0.3)
    choice = usual(choices)
    assert choice.speculators == frozenset({0})
    (tree,) = cut_trees([_draft(choice, {0: 4})], [17], worth=planner.worth(1, choice))
    assert len(tree) == 5, "the four that are accepted, none of the wrong ones"


def test_hopeless_drafts_end_in_plain_decoding_at_little_cost() -> None:
    choices, speed = simulate(planner_of(1, 16, 64), 2000, 1, {0: 0}, {0: 6.0}, node_ms=0.3)
    assert usual(choices) == PLAIN
    assert speed > 0.97 / 6.0, "plain decoding takes 6 ms a token"


def test_only_the_speculator_that_pays_is_asked() -> None:
    planner = planner_of(2, 16, 64)
    choices, _ = simulate(planner, 400, 1, {0: 3, 1: 3}, {0: 0.5, 1: 12.0}, node_ms=0.05)
    assert usual(choices).speculators == frozenset({0})
    choices, _ = simulate(planner_of(2, 16, 64), 400, 1, {0: 1, 1: 8}, {0: 0.5, 1: 2.0}, node_ms=0.05)
    assert 1 in usual(choices).speculators


def test_speculators_of_one_service_cost_the_sum_of_their_drafts() -> None:
    """Side by side the first one's tokens would be free, but they take turns: only the better is asked."""
    planner = Planner(curve(0.05), 16, 64)
    planner.enrol([frozenset({0, 1})])
    draft_ms = {0: 4.5, 1: 5.0}
    choices, _ = simulate(planner, 600, 1, {0: 3, 1: 4}, draft_ms, node_ms=0.05, one_service=True)
    assert usual(choices).speculators == frozenset({1})


def test_a_pool_that_grows_keeps_what_it_knows() -> None:
    planner = planner_of(1, 16, 64)
    simulate(planner, 300, 1, {0: 3}, {0: 0.5}, node_ms=0.05)
    planner.enrol([frozenset({0}), frozenset({1})])
    choices, _ = simulate(planner, 600, 1, {0: 3, 1: 8}, {0: 0.5, 1: 1.0}, node_ms=0.05)
    assert 1 in usual(choices).speculators
    assert choices.count(PLAIN) < 30, "looks; it does not start anew"


def test_a_batch_without_a_node_for_every_request_decodes_plainly() -> None:
    """Twenty nodes a step, less one for every further request: eleven requests share ten. Nobody is asked,
    not even for a look; with fewer requests, or more nodes a step, everything goes on."""
    for batch, step_nodes, trees in ((10, 20, True), (11, 20, False), (16, 20, False), (16, 40, True)):
        planner = planner_of(1, 16, step_nodes, node_ms=0.01)
        choices, _ = simulate(planner, 200, batch, {0: 1}, {0: 0.1}, node_ms=0.01)
        assert any(choice.speculators for choice in choices) is trees
    always = planner_of(1, 16, 20, adaptive=False)
    assert always.choose(16, ["r"] * 16).nodes == 1


def test_a_large_batch_stops_speculating_when_nodes_cost_too_much() -> None:
    planner = Planner(PassCurve([(1, 0.005), (16, 0.005), (32, 0.013)]), 8, 512)
    planner.enrol([ALONE])
    assert usual(simulate(planner, 200, 1, {0: 1}, {0: 0.5}, node_ms=0.5)[0]).nodes > 0
    assert usual(simulate(planner, 200, 16, {0: 1}, {0: 0.5}, node_ms=0.5)[0]) == PLAIN


def test_it_notices_when_text_becomes_predictable() -> None:
    planner = planner_of(1, 16, 64)
    simulate(planner, 300, 1, {0: 0}, {0: 2.0}, node_ms=0.1)
    choices, _ = simulate(planner, 1500, 1, {0: 8}, {0: 2.0}, node_ms=0.1)
    assert usual(choices).speculators == frozenset({0})


def test_without_adaptation_everybody_is_asked_always() -> None:
    planner = planner_of(2, 16, 64, adaptive=False)
    assert planner.choose(1, ["r"]) == Choice(frozenset({0, 1}), 16)
    assert planner.choose(32, ["r"]) == Choice(frozenset({0, 1}), 1), "its share of the step"
    worth = planner.worth(8, Choice(frozenset({0, 1}), 16))
    assert worth(63, 0.0)
    assert not worth(64, 1.0)
    assert planner_of(0, 16, 64, adaptive=False).choose(3, ["r"]) == PLAIN


@pytest.mark.parametrize(("most_nodes", "free"), [(11, True), (20, False)])
def test_nodes_that_no_tree_may_have_make_none_dearer(most_nodes: int, free: bool) -> None:
    """Twelve tokens take as long as one, more much longer: eleven nodes are free if there may be no more."""
    planner = Planner(PassCurve([(1, 0.005), (12, 0.005), (13, 0.009), (21, 0.03)]), most_nodes, 20)
    planner.enrol([frozenset({0})])
    worth = planner.worth(1, Choice(frozenset({0}), most_nodes))
    assert worth(10, 0.01)
    assert (worth.least_reach == 0) is free


def test_requests_without_speculation_teach_and_cost_nothing() -> None:
    planner = planner_of(1, 16, 64)
    for _ in range(500):
        assert planner.choose(2, []) == PLAIN
    choices, _ = simulate(planner, 100, 1, {0: 4}, {0: 1.0}, node_ms=0.3)
    assert usual(choices).speculators == frozenset({0})


def test_a_new_batch_size_is_judged_by_the_nearest_one() -> None:
    """Hopeless drafts need not be tried again at every batch size."""
    planner = planner_of(1, 16, 64)
    simulate(planner, 200, 1, {0: 0}, {0: 6.0}, node_ms=0.3)
    choices, _ = simulate(planner, 20, 16, {0: 0}, {0: 40.0}, node_ms=0.3)
    assert all(choice.nodes == 0 for choice in choices)
    fresh, _ = simulate(planner_of(1, 16, 64), 20, 16, {0: 0}, {0: 40.0}, node_ms=0.3)
    assert sum(choice.nodes > 0 for choice in fresh) == 1


def test_one_outlier_does_not_change_its_mind() -> None:
    planner, asking = planner_of(1, 16, 64), Choice(frozenset({0}), 4)
    simulate(planner, 100, 1, {0: 4}, {0: 1.0}, node_ms=0.1)

    def gain() -> float:
        return planner.expected_speed(1, asking) / planner.expected_speed(1, PLAIN)

    before = gain()
    planner.costs.observe(1, 5, 10.0, [DraftTime(ALONE, {0: 0.001}, 0)], 0.001)
    assert gain() > 0.8 * before


def test_a_node_is_worth_what_it_adds_to_the_pass() -> None:
    """200 tokens a second, 0.5 ms a node: a node must be accepted in one step of ten at least."""
    planner = planner_of(1, 16, 32, node_ms=0.5)
    worth = planner.worth(1, PLAIN)
    assert worth(5, 0.13)
    assert not worth(5, 0.07)
    assert not worth(32, 1.0), "never more than a step may hold"
    assert worth.least_reach == pytest.approx(0.1, rel=0.05)
    assert planner_of(1, 16, 32, adaptive=False).worth(1, PLAIN).least_reach == 0, "then all are verified"


def test_a_new_request_gets_its_chance_after_a_hopeless_one() -> None:
    """Request after request is hopeless or good; what one was like is not held against the next."""
    planner = planner_of(1, 16, 64)
    spent: dict[bool, list[bool]] = {True: [], False: []}
    for number in range(40):
        good = number % 2 == 0
        for _ in range(60):
            choice = planner.choose(1, [f"r{number}"])
            spent[good].append(bool(choice.speculators))
            tree = _draft(choice, {0: 4 if good else 0})
            (tree,) = cut_trees([tree], [choice.nodes + 1], worth=planner.worth(1, choice))
            seconds = 0.005 + 0.0001 * (len(tree) - 1)
            drafts = _seconds(choice, 0.004)
            outcomes = {f"r{number}": (tree, _accepted(tree))}
            planner.observe(StepReport(choice, 1, len(tree), seconds, drafts, 0.001, outcomes))
    late = {good: found[len(found) // 2 :] for good, found in spent.items()}
    assert sum(late[True]) / len(late[True]) > 0.9
    assert sum(late[False]) / len(late[False]) < 0.5


def test_a_step_whose_drafts_were_late_says_nothing_of_plain_decoding() -> None:
    planner = planner_of(1, 16, 64)
    planner.observe(StepReport(PLAIN, 1, 1, 0.008, [], 0.001, {}))
    before = planner.expected_speed(1, PLAIN)
    for _ in range(20):
        planner.observe(StepReport(Choice(ALONE, 16), 1, 1, 0.008, [], 0.5, {}))
    assert planner.expected_speed(1, PLAIN) == pytest.approx(before)


def test_bad_luck_does_not_end_what_pays() -> None:
    """Half of all first guesses are right, and so on: a step of 12 ms brings 2 tokens on average, a plain
    one takes 8 ms. Runs of bad luck are common and prove little."""
    planner, rng = planner_of(1, 16, 64), random.Random(0)
    speculated = []
    for number in range(60):
        left = 64
        while left > 0:
            choice = planner.choose(1, [f"r{number}"])
            right = 0
            while choice.speculators and right < 7 and rng.random() < 0.5:
                right += 1
            outcomes = {f"r{number}": (chain(ROOT, range(7)), range(1, right + 1))}
            drafts = _seconds(choice, 0.003)
            tokens, seconds = (8, 0.009) if choice.speculators else (1, 0.008)
            planner.observe(StepReport(choice, 1, tokens, seconds, drafts, 0.0, outcomes))
            left -= 1 + right
            speculated.append(bool(choice.speculators))
    assert sum(speculated) / len(speculated) > 0.85


def test_a_stair_in_the_cost_of_a_pass_is_climbed_if_the_level_behind_it_pays() -> None:
    """Four more nodes cost 1 ms, sixteen more nothing beyond that: each of twenty is worth 0.05 ms."""
    costs = PassCurve([(1, 0.008), (4, 0.008), (6, 0.009), (21, 0.009), (40, 0.020)])
    planner = Planner(costs, 20, 24)
    planner.enrol([ALONE])
    worth = planner.worth(1, PLAIN)
    assert worth(3, 0.021), "0.125 over what chances that fall by 0.85 add up to"
    assert worth(8, 0.001)
    assert not worth(3, 0.003)
    assert not worth(22, 0.02)


def test_nodes_are_priced_by_what_passes_take_not_by_what_was_said() -> None:
    """The verifier measured 1 ms a node, in a bad moment or before the machine changed; they take 0.05."""
    planner = planner_of(1, 12, 20, node_ms=1.0)
    assert not planner.worth(1, PLAIN)(4, 0.05)
    rng = random.Random(0)
    for step in range(200):
        nodes = rng.randint(1, 12) if step % 20 > 1 else 0
        ms = 5.0 + 0.05 * nodes
        planner.costs.observe_pass(1, 1 + nodes, rng.lognormvariate(0, 0.05) * ms / 1000)
    assert planner.worth(1, PLAIN)(4, 0.05)
    assert not planner.worth(1, PLAIN)(4, 0.001)
