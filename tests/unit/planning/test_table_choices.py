"""The table planner with simulated speculators of known gain and cost: it finds the best choice with few probes."""

import random
from dataclasses import replace
from math import log2

import pytest

from specinfer.planning.choice import PLAIN, Choice
from specinfer.planning.pass_curve import PassCurve, derive_budget
from specinfer.planning.step_report import DraftTime, StepReport
from specinfer.planning.table_planner import TablePlanner
from specinfer.scheduling.limits import NodeBudget
from specinfer.tree import TokenTree, TreeBuilder, cut_trees, merge_trees
from tests.support.oracle import chain

ROOT = 7
ALONE = frozenset({0})


def planner_of(
    speculators: int, max_nodes: int = 16, step_nodes: int = 64, adaptive: bool = True, node_ms: float = 0.1
) -> TablePlanner:
    """Return a planner with services of one speculator each, and known seconds per node."""
    planner = TablePlanner(curve(node_ms), NodeBudget(max_nodes, step_nodes), adaptive)
    planner.enrol([frozenset({s}) for s in range(speculators)])
    return planner


def curve(node_ms: float) -> PassCurve:
    return PassCurve([(1, 0.005), (1001, 0.005 + node_ms)])


def simulate(
    planner: TablePlanner,
    steps: int,
    batch: int,
    accepts: dict[int, int],
    draft_ms: dict[int, float],
    node_ms: float,
    one_service: bool = False,
    crowded: bool = False,
) -> tuple[list[Choice], float]:
    """Simulate steps in which the first `accepts[s]` tokens of speculator s are always right.

    Drafts are made in parallel, or one after another in `one_service`; `crowded`: in parallel on one core.
    Returns the choices and tokens per millisecond.
    """
    choices, tokens, total_ms = [], 0, 0.0
    names = [f"r{i}" for i in range(batch)]
    for _ in range(steps):
        choice = planner.choose(batch, dict.fromkeys(names, 0))
        choices.append(choice)
        drafts = [_draft(choice, accepts) for _ in range(batch)]
        outcomes = [
            (tree, _accepted(tree))
            for tree in cut_trees(drafts, [choice.nodes + 1] * batch, keeps=choice.keeps)
        ]
        in_pass = sum(len(tree) for tree, _ in outcomes)
        verify_ms = 5.0 + node_ms * (in_pass - batch)
        took = (
            [_time(draft_ms, choice)] if one_service else [_time({s: t}, choice) for s, t in draft_ms.items()]
        )
        took = [time for time in took if time.own_s]
        if crowded:
            took = [
                time._replace(own_s={s: seconds * len(took) for s, seconds in time.own_s.items()})
                for time in took
            ]
        total_ms += 1.0 + 1000 * max((sum(time.own_s.values()) for time in took), default=0.0) + verify_ms
        tokens += sum(1 + len(accepted) for _, accepted in outcomes)
        planner.observe(
            StepReport(
                choice, batch, in_pass, verify_ms / 1000, took, 0.001, dict(zip(names, outcomes, strict=True))
            )
        )
    return choices, tokens / total_ms


def _seconds(choice: Choice, seconds: float) -> list[DraftTime]:
    """Return the draft time of a pool of one speculator."""
    return [DraftTime(ALONE, {0: seconds}, 0)] if choice.speculators else []


def _draft(choice: Choice, accepts: dict[int, int]) -> TokenTree:
    """Return a tree with a right chain of every chosen speculator, and wrong siblings up to its budget."""
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
    """Return the draft times of the service of these speculators."""
    return DraftTime(
        frozenset(draft_ms), {s: draft_ms[s] / 1000 for s in draft_ms if s in choice.speculators}, 0
    )


def _accepted(tree: TokenTree) -> list[int]:
    return [node for node in range(1, len(tree)) if tree.token_ids[node] < 50]


def usual(choices: list[Choice]) -> Choice:
    """Return the most frequent choice in the second half of the steps."""
    late = choices[len(choices) // 2 :]
    sets = [choice.speculators for choice in late]
    frequent = max(set(sets), key=sets.count)
    return [choice for choice in late if choice.speculators == frequent][-1]


def test_good_and_cheap_speculators_are_used_with_few_useless_nodes() -> None:
    planner = planner_of(1)
    choices, _ = simulate(planner, 300, 1, {0: 4}, {0: 1.0}, node_ms=0.3)
    choice = usual(choices)
    assert choice.speculators == ALONE
    assert choice.nodes >= 4
    (tree,) = cut_trees([_draft(choice, {0: 4})], [17], keeps=choice.keeps)
    assert len(tree) == 5, "the four that are accepted, none of the wrong ones"


def test_only_the_speculator_that_pays_is_asked() -> None:
    choices, _ = simulate(planner_of(2), 400, 1, {0: 3, 1: 3}, {0: 0.5, 1: 12.0}, node_ms=0.05)
    assert usual(choices).speculators == ALONE
    choices, _ = simulate(planner_of(2), 400, 1, {0: 1, 1: 8}, {0: 0.5, 1: 2.0}, node_ms=0.05)
    assert 1 in usual(choices).speculators


def test_of_services_that_share_cores_only_those_that_pay_are_asked() -> None:
    """If all four draft, each takes 8 ms, and the pool is slower than plain decoding."""
    accepts, costs = {0: 0, 1: 2, 2: 0, 3: 0}, dict.fromkeys(range(4), 2.0)
    choices, speed = simulate(planner_of(4), 400, 1, accepts, costs, 0.1, crowded=True)
    assert usual(choices).speculators == {1}
    best = 3 / (1.0 + 2.0 + 5.0 + 2 * 0.1)
    assert speed > 0.85 * best


def test_speculators_of_one_service_cost_the_sum_of_their_drafts() -> None:
    """In parallel the first one's tokens would be free, but they draft one after another: only the better one pays."""
    planner = planner_of(0)
    planner.enrol([frozenset({0, 1})])
    draft_ms = {0: 4.5, 1: 5.0}
    choices, _ = simulate(planner, 600, 1, {0: 3, 1: 4}, draft_ms, node_ms=0.05, one_service=True)
    assert usual(choices).speculators == frozenset({1})


def test_a_pool_that_grows_keeps_its_statistics() -> None:
    planner = planner_of(1)
    simulate(planner, 300, 1, {0: 3}, {0: 0.5}, node_ms=0.05)
    planner.enrol([frozenset({0}), frozenset({1})])
    choices, _ = simulate(planner, 600, 1, {0: 3, 1: 8}, {0: 0.5, 1: 1.0}, node_ms=0.05)
    assert 1 in usual(choices).speculators
    assert sum(not choice.speculators for choice in choices) < 30, "only probes; it does not start again"


def test_a_large_batch_stops_speculating_when_nodes_cost_too_much() -> None:
    costs = PassCurve([(1, 0.005), (16, 0.005), (32, 0.013)])
    planner = TablePlanner(costs, NodeBudget(8, 512))
    planner.enrol([ALONE])
    assert usual(simulate(planner, 200, 1, {0: 1}, {0: 0.5}, node_ms=0.5)[0]).nodes > 0
    assert not usual(simulate(planner, 200, 16, {0: 1}, {0: 0.5}, node_ms=0.5)[0]).speculators


@pytest.mark.parametrize("batch", [1, 4, 64])
@pytest.mark.parametrize("per_doubling", [0.0, 0.5, 1.0])
def test_it_is_never_slower_than_plain_decoding_by_more_than_its_probes(
    batch: int, per_doubling: float
) -> None:
    """Passes have the stairs of a CPU, texts any acceptance; if speculation pays, it is used."""
    planner = TablePlanner(STAIRS, derive_budget(STAIRS, 64, 127, 2048))
    planner.enrol([ALONE])
    rng = random.Random(batch)
    names = [f"r{i}" for i in range(batch)]
    total_tokens, took = 0.0, 0.0
    for _ in range(1000):
        choice = planner.choose(batch, dict.fromkeys(names, 0))
        outcomes = {name: drafted(share, per_doubling, rng) for name, share in shares(choice, names)}
        in_pass = sum(len(tree) for tree, _ in outcomes.values())
        pass_s = STAIRS.at(in_pass) * rng.lognormvariate(0, 0.05)
        draft_s = 0.0022 * batch**0.35 if choice.speculators else 0.0
        total_tokens += sum(1 + len(accepted) for _, accepted in outcomes.values())
        took += pass_s + draft_s + 0.0015
        planner.observe(
            StepReport(choice, batch, in_pass, pass_s, _seconds(choice, draft_s), 0.0015, outcomes)
        )
    plain = batch / (STAIRS.at(batch) + 0.0015)
    assert total_tokens / took > 0.98 * plain
    if per_doubling == 1.0 and batch <= 8:
        assert total_tokens / took > 1.2 * plain, "the best that these stairs allow at batch 8 is 1.27"


STAIRS = PassCurve(
    [
        (1, 0.0095),
        (6, 0.0102),
        (7, 0.0112),
        (12, 0.0128),
        (13, 0.0145),
        (18, 0.0165),
        (32, 0.026),
        (64, 0.052),
    ]
)


def shares(choice: Choice, names: list[str]) -> list[tuple[str, int]]:
    """Return the nodes of each request: an even share of the step's nodes."""
    share, more = divmod(choice.step_nodes, len(names))
    return [(name, share + (i < more)) for i, name in enumerate(names)]


def drafted(nodes: int, per_doubling: float, rng: random.Random) -> tuple[TokenTree, list[int]]:
    """Return a chain, and accepted nodes: on average `per_doubling` for every doubling of its length."""
    expected = per_doubling * log2(1 + nodes)
    right = min(nodes, int(expected) + (rng.random() < expected % 1))
    return chain(ROOT, range(100, 100 + nodes)), list(range(1, right + 1))


def test_it_notices_when_text_becomes_predictable() -> None:
    planner = planner_of(1)
    simulate(planner, 300, 1, {0: 0}, {0: 2.0}, node_ms=0.1)
    choices, _ = simulate(planner, 1500, 1, {0: 8}, {0: 2.0}, node_ms=0.1)
    assert usual(choices).speculators == ALONE


def test_without_adaptation_all_speculators_are_asked_always() -> None:
    planner = planner_of(2, adaptive=False)
    both = frozenset({0, 1})
    assert (planner.choose(1, {"r": 0}).speculators, planner.choose(1, {"r": 0}).nodes) == (both, 16)
    choice = planner.choose(32, {f"r{i}": 0 for i in range(32)})
    assert (choice.speculators, choice.nodes) == (both, 2), "its share of the step"
    assert choice.reason == "not adaptive"
    choice = planner.choose(8, {f"r{i}": 0 for i in range(8)})
    assert choice.keeps(63, 0.0)
    assert not choice.keeps(64, 1.0)
    assert choice.node_threshold == 0
    planner.observe(StepReport(choice, 8, 2, 9.0, [DraftTime(both, {0: 9.0, 1: 9.0}, 0.0)], 0.0, {}))
    assert planner.choose(8, {f"r{i}": 0 for i in range(8)}) == choice
    assert planner_of(0, adaptive=False).choose(3, {"r": 0}).reason == "no speculators"


def test_requests_without_speculation_teach_and_cost_nothing() -> None:
    planner = planner_of(1)
    for _ in range(500):
        choice = planner.choose(2, {})
        assert (choice.nodes, choice.reason) == (0, "no request wants drafts")
        assert not choice.keeps(0, 1.0)
    choices, _ = simulate(planner, 100, 1, {0: 4}, {0: 1.0}, node_ms=0.3)
    assert usual(choices).speculators == ALONE


def test_statistics_of_a_request_apply_to_every_batch_size() -> None:
    """Drafts that are never accepted are not tried again when the batch grows."""
    planner = planner_of(1)
    simulate(planner, 200, 1, {0: 0}, {0: 6.0}, node_ms=0.3)
    choices, _ = simulate(planner, 20, 16, {0: 0}, {0: 40.0}, node_ms=0.3)
    assert not any(choice.speculators for choice in choices)


def test_one_outlier_does_not_change_the_choice() -> None:
    planner = planner_of(1)
    simulate(planner, 100, 1, {0: 4}, {0: 1.0}, node_ms=0.1)

    def gain() -> float:
        choice = planner.choose(1, {"r0": 0})
        return choice.speed / choice.plain_speed

    before = gain()
    outcomes = {"r0": (chain(ROOT, range(4)), [1, 2, 3, 4])}
    planner.observe(
        StepReport(
            planner.choose(1, {"r0": 0}), 1, 5, 10.0, [DraftTime(ALONE, {0: 0.001}, 0)], 0.001, outcomes
        )
    )
    assert gain() > 0.8 * before


def test_a_new_request_gets_its_chance_after_a_hopeless_one() -> None:
    """Requests alternate between hopeless and good; the statistics of one do not determine the next."""
    planner = planner_of(1)
    speculated: dict[bool, list[bool]] = {True: [], False: []}
    for number in range(40):
        good = number % 2 == 0
        for _ in range(60):
            choice = planner.choose(1, {f"r{number}": 0})
            speculated[good].append(bool(choice.speculators))
            tree = _draft(choice, {0: 4 if good else 0})
            (tree,) = cut_trees([tree], [choice.nodes + 1], keeps=choice.keeps)
            seconds = 0.005 + 0.0001 * (len(tree) - 1)
            drafts = _seconds(choice, 0.004)
            outcomes = {f"r{number}": (tree, _accepted(tree))}
            planner.observe(StepReport(choice, 1, len(tree), seconds, drafts, 0.001, outcomes))
    late = {good: flags[len(flags) // 2 :] for good, flags in speculated.items()}
    assert sum(late[True]) / len(late[True]) > 0.9
    assert sum(late[False]) / len(late[False]) < 0.6


def test_a_step_with_late_drafts_does_not_change_the_speed_of_plain_decoding() -> None:
    planner = planner_of(1)
    for _ in range(30):
        planner.observe(StepReport(PLAIN, 1, 1, 0.008, [], 0.001, {}))
    before = planner.choose(1, {"r": 0}).plain_speed
    for _ in range(20):
        planner.observe(StepReport(replace(PLAIN, speculators=ALONE), 1, 1, 0.008, [], 0.5, {}))
    assert planner.choose(1, {"r": 0}).plain_speed == pytest.approx(before, rel=0.01)


def test_bad_luck_does_not_end_speculation_that_pays() -> None:
    """Half of all guesses are right, so a step of 12 ms gives 2 tokens on average, and a plain one of 8 ms one.

    Sequences of bad luck are frequent and prove little.
    """
    planner, rng = planner_of(1), random.Random(0)
    speculated = []
    for number in range(60):
        left = 64
        while left > 0:
            choice = planner.choose(1, {f"r{number}": 0})
            right = 0
            while right < choice.step_nodes and rng.random() < 0.5:
                right += 1
            outcomes = {f"r{number}": (chain(ROOT, range(choice.step_nodes)), range(1, right + 1))}
            drafts = _seconds(choice, 0.003)
            tokens, seconds = (1 + choice.step_nodes, 0.009) if choice.speculators else (1, 0.008)
            planner.observe(StepReport(choice, 1, tokens, seconds, drafts, 0.0, outcomes))
            left -= 1 + right
            speculated.append(bool(choice.speculators))
    assert sum(speculated) / len(speculated) > 0.85


def test_every_choice_has_a_reason() -> None:
    planner = planner_of(1)
    choices, _ = simulate(planner, 1000, 1, {0: 4}, {0: 1.0}, node_ms=0.1)
    reasons = [choice.reason for choice in choices]
    assert set(reasons) == {"fastest", "probe all", "probe plain"}
    assert reasons[0] == "probe plain"
    assert reasons.count("probe plain") < 40
    best = choices[-1]
    assert best.speed > best.plain_speed > 0
