"""The table planner in simulated worlds: cold starts, disturbances, and changes of load.

Worlds depend only on their seeds, so speeds are the same on every machine.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.planning.machine import USUAL, Costs
from benchmarks.planning.world import Ran, World
from specinfer.planning.choice import Choice
from specinfer.planning.pass_curve import PassCurve, derive_budget
from specinfer.planning.step_report import DraftTime, StepReport
from specinfer.planning.table_planner import TablePlanner
from specinfer.scheduling.limits import NodeBudget
from tests.support.effort import effort
from tests.support.oracle import chain

FLAT = Costs(passes=((1, 20), (4, 20.5), (8, 22), (16, 26), (32, 40), (64, 80)))
"""Passes of a large model: eight tokens take hardly longer than one."""
STEEP = Costs(passes=((1, 5.7), (4, 8.5), (8, 12.6), (16, 25), (32, 46), (64, 92)))
"""Passes limited by arithmetic."""
SERVICE = frozenset({0, 1})
SEEDS = (0, 10, 20)[: effort(2, 3)]


def answered(choose: Any, costs: Costs, batch: int) -> float:
    """Return the tokens per second of a cold process for twenty prompts, averaged over the worlds."""
    return sum(World(seed, batch, choose, costs).answer(20).speed for seed in SEEDS) / len(SEEDS)


@pytest.mark.parametrize(
    ("costs", "batch", "constants"),
    [(FLAT, 1, (4, 8, 16)), (STEEP, 1, (1, 2, 4, 8)), (STEEP, 4, (0, 1)), (FLAT, 4, (1, 2, 4, 8))],
    ids=["flat", "steep", "steep-4", "flat-4"],
)
def test_a_cold_planner_is_near_the_best_constant(costs: Costs, batch: int, constants: Sequence[int]) -> None:
    """The best constant is between its neighbours, which proves that it is the best."""
    speeds = [answered(nodes, costs, batch) for nodes in constants]
    assert constants[0] == 0 or max(speeds) > speeds[0]
    assert max(speeds) > speeds[-1]
    assert answered(TablePlanner, costs, batch) > 0.93 * max(speeds)


@pytest.mark.parametrize("batch", [1, 4])
def test_free_nodes_are_used(batch: int) -> None:
    """A pass takes 12 ms for any number of tokens, as with offloaded weights: trees grow beyond 64 nodes."""
    world = World(0, batch, TablePlanner, Costs(passes=((1, 12), (2048, 12.1)), drafts=lambda *_: 0.002))
    world.run(300)
    world.by_nodes.clear()
    world.run(100)
    assert sum(ran.steps for nodes, ran in world.by_nodes.items() if nodes >= 64) > 80


@pytest.mark.parametrize(("batch", "nodes", "prompts"), [(1, 4, 20), (4, 0, 60)])
def test_a_machine_that_alternates_between_two_speeds_changes_no_choice(
    batch: int, nodes: int, prompts: int
) -> None:
    """Four nodes are the best for one request, plain decoding for four requests."""
    costs = Costs(speed_change=1 / 40)
    speeds = [World(10, batch, choose, costs).answer(prompts).speed for choose in (TablePlanner, nodes)]
    assert speeds[0] > 0.93 * speeds[1]


def test_after_a_disturbed_start_it_is_back_within_300_steps() -> None:
    world = World(3, 1, TablePlanner, FLAT)
    world.machine.slowness = 3.0
    world.run(30)
    world.machine.slowness = 1.0
    world.run(300)
    constants = [World(3, 1, nodes, FLAT) for nodes in (4, 8, 16)]
    for constant in constants:
        constant.run(330)
    assert world.run(400) > 0.93 * max(constant.run(400) for constant in constants)


def test_trees_whose_first_trials_were_disturbed_are_tried_again() -> None:
    """The first trees take ten times as long; with these measurements alone they would never pay."""
    world = World(0, 1, TablePlanner)
    pass_s, disturbed = world.machine.pass_s, iter(range(10))

    def slow_at_first(batch: int, tokens: int) -> float:
        seconds = pass_s(batch, tokens)
        return 10 * seconds if tokens > batch and next(disturbed, None) is not None else seconds

    world.machine.pass_s = slow_at_first  # type: ignore[method-assign]
    world.run(7000)
    assert next(disturbed, None) is None, "trees were tried"
    assert world.run(1500) > 0.95 * World(0, 1, 2).run(1500)


def test_drafts_that_were_slow_for_long_are_tried_again() -> None:
    """A neighbour makes drafts ten times as slow for 500 steps, then it leaves."""
    slow = [10.0]
    costs = Costs(drafts=lambda speculator, nodes: slow[0] * USUAL.drafts(speculator, nodes))
    world = World(0, 1, TablePlanner, costs)
    world.run(500)
    slow[0] = 1.0
    world.run(9000)
    world.by_nodes.clear()
    world.run(500)
    assert sum(ran.steps for nodes, ran in world.by_nodes.items() if nodes) > 400


def test_after_a_change_of_load_it_is_back_within_300_steps() -> None:
    """One request, then sixteen, then one: the statistics of each load are used again."""
    world, plain, four = (World(4, 1, choose, STEEP) for choose in (TablePlanner, 0, 4))
    for batch in (1, 16, 1):
        for each_world in (world, plain, four):
            each_world.batch = batch
            each_world.run(300)
        assert world.run(300) > 0.92 * max(plain.run(300), four.run(300))


def test_a_useless_speculator_costs_little() -> None:
    """Plain decoding is always considered; trials of drafts that are never accepted become rare."""
    world = World(5, 1, TablePlanner, STEEP, guesses=(0.02,))
    ran = Ran()
    for _ in range(600):
        world.step(ran)
    plain = sum(steps.steps for nodes, steps in world.by_nodes.items() if nodes == 0)
    assert plain > 0.85 * ran.steps


def planner_of(adaptive: bool = True) -> TablePlanner:
    curve = PassCurve([(1, 0.004), (64, 0.05)])
    planner = TablePlanner(curve, derive_budget(curve, 4, 63, 512), adaptive)
    planner.enrol([SERVICE])
    return planner


def test_there_are_no_drafts_without_speculators_or_requests_for_them() -> None:
    assert planner_of().choose(2, {}) == Choice(reason=planner_of().choose(2, {}).reason)
    alone = TablePlanner(PassCurve([(1, 0.004)]), derive_budget(PassCurve([(1, 0.004)]), 4, 63, 512))
    assert not alone.choose(1, {"a": 5}).speculators


def test_statistics_of_ended_requests_are_deleted() -> None:
    planner = planner_of()
    for number in range(500):
        planner.choose(1, {f"r{number}": 40})
    assert len(planner.gains.requests) == 1


def test_a_step_that_cannot_be_learned_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all later choices would fail, and reports would pile up."""
    planner = planner_of()
    planner.observe(StepReport(Choice(SERVICE, 4, 4), 1, 5, 0.01, [], 0.0, {}))
    with monkeypatch.context() as broken:
        broken.setattr(planner.costs, "observe", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            planner.choose(1, {"a": 5})
        planner.choose(1, {"a": 5})


@pytest.mark.parametrize("steps", [2, 4, 8])
def test_trials_are_bounded_while_the_load_changes_all_the_time(steps: int) -> None:
    """A new request every few steps ends each trial before its first comparison."""
    curve = PassCurve([(1, 0.020), (64, 0.022), (512, 0.040)])
    planner, plain = TablePlanner(curve, NodeBudget(4, 64)), 0
    planner.enrol([frozenset({0})])
    for step in range(1000):
        names = [f"r{step // steps}", *"abcde"[: 4 + step // steps % 2]]
        choice = planner.choose(len(names), dict.fromkeys(names, 50))
        plain += not choice.speculators
        tree, tokens = chain(7, range(choice.nodes)), len(names) * (1 + choice.nodes)
        drafts = [DraftTime(frozenset({0}), {0: 0.001}, 0.0)] if choice.nodes else []
        outcomes = {name: (tree, list(range(1, len(tree)))) for name in names}
        planner.observe(StepReport(choice, len(names), tokens, curve.at(tokens), drafts, 0.001, outcomes))
    assert plain < 60
