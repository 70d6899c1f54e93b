"""A fresh process begins with what the last one learned."""

from pathlib import Path

import pytest

from benchmarks.planning.world import World
from specinfer.planning.memory import PlannerMemory
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.table_planner import TablePlanner
from specinfer.scheduling.limits import NodeBudget
from specinfer.system.cache_directory import cache_directory

NAMES = ["ssm", "ngram"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path


def remembering(curve: PassCurve, budget: NodeBudget, names: list[str] = NAMES) -> TablePlanner:
    return TablePlanner(curve, budget, memory=PlannerMemory(["model", "machine"], names))


def test_a_fresh_process_begins_where_the_last_one_ended() -> None:
    """The first choices of a cold process are trials of plain decoding; the next process knows that trees are best."""
    first = World(0, 1, remembering)
    first.run(400)
    assert any(nodes == 0 for nodes in first.by_nodes)
    first.planner.close()
    second = World(1, 1, remembering)
    second.run(60)
    assert second.by_nodes[0].steps < 5
    third = World(1, 1, lambda curve, budget: remembering(curve, budget, ["ssm", "other"]))
    third.run(60)
    assert third.by_nodes[0].steps >= 5, "other speculators are unknown"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"timed": 1}',
        '{"timed": [[[5], 0, 4, 0, 0, 0]]}',
        '{"timed": [], "counts": [[[0], null, [[1]]]]}',
    ],
)
def test_a_damaged_file_counts_as_missing(content: str) -> None:
    world = World(0, 1, remembering)
    world.run(100)
    world.planner.close()
    (path,) = cache_directory().rglob("planner/*.json")
    path.write_text(content)
    World(0, 1, remembering).run(50)
