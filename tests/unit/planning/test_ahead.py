"""Drafting ahead is switched on where tokens come faster so, and off where it takes the pass its cores."""

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from specinfer.planning.ahead import NOW, ONLY, AheadModel, AheadStep


@dataclass
class World:
    """Steps whose drafts take `draft_s` and the rest `rest_s`; passes beside drafts are `slowed`."""

    draft_s: float
    rest_s: float
    slowed: float = 1.0
    after_tree: float = 0.25
    """Probability that the draft behind a step with a draft was made ahead."""
    after_root: float = 0.7
    """The same behind a step without."""
    tokens: float = 2.3

    def run(self, model: AheadModel, steps: int, seed: int = 1) -> tuple[float, list[str | None]]:
        """Time of a token over that without drafts ahead, and the way of every step."""
        rng, seconds, tokens = random.Random(seed), 0.0, 0.0
        whole, had = self.draft_s + self.rest_s, True
        ways: list[str | None] = [None]
        for _ in range(steps):
            promises = model.promises([0], 1, self.draft_s, self.rest_s, self.tokens)
            ways.append(model.way(1, promises))
            used, ordered = ways[-2], ways[-1] is not None
            hit = used is not None and rng.random() < (self.after_tree if had else self.after_root)
            had = hit or used != ONLY
            waits_s = max(0.0, self.draft_s - self.rest_s) if used else self.draft_s
            waits_s += self.draft_s * (used == NOW and not hit)
            step_s = (waits_s + self.rest_s * (self.slowed if ordered else 1.0)) * rng.uniform(0.9, 1.1)
            seconds, tokens = seconds + step_s, tokens + (self.tokens if had else 1.0)
            step = AheadStep(ordered, {0: 1} if hit else {}, {0: 1} if used and not hit else {})
            model.observe(1, step, step_s, whole, self.tokens)
        return seconds / tokens / (whole / self.tokens), ways


def test_it_is_off_where_the_pass_lacks_the_cores() -> None:
    """Over any thousand steps, trials included, tokens take at most 2 % longer."""
    world, model = World(draft_s=3.0, rest_s=6.0, slowed=1.8), AheadModel("auto")
    found = [world.run(model, 1000, seed)[0] for seed in range(6)]
    assert max(found[1:]) < 1.02
    assert found[0] < 1.04, "the first trials are among them"


@pytest.mark.parametrize(
    ("way", "world"),
    [(NOW, World(8.0, 10.0, after_tree=0.7, after_root=0.3, tokens=4.0)), (ONLY, World(10.0, 10.0))],
)
def test_it_is_on_in_the_better_way_where_it_pays(way: str, world: World) -> None:
    model = AheadModel("auto")
    world.run(model, 1000)
    found, ways = world.run(model, 2000)
    always, _ = world.run(AheadModel(way), 2000)
    assert found < always * 1.03
    assert always < 0.8
    assert ways.count(way) > 0.9 * len(ways)


def test_a_network_that_becomes_slow_is_noticed() -> None:
    """A way that did not pay may pay later: drafts that take long make another trial due."""
    model = AheadModel("auto")
    World(draft_s=1.0, rest_s=10.0, slowed=1.2).run(model, 3000)
    _, ways = World(draft_s=9.0, rest_s=10.0).run(model, 600)
    assert ways[-1] == ONLY


def test_what_pays_no_more_is_left() -> None:
    model = AheadModel("auto")
    _, before = World(10.0, 10.0).run(model, 1000)
    found, after = World(10.0, 10.0, slowed=2.5).run(model, 2000)
    assert before.count(ONLY) > 500
    assert after.count(None) > 0.9 * len(after)
    assert found < 1.05


def test_nobody_is_asked_where_little_is_promised() -> None:
    _, ways = World(draft_s=0.05, rest_s=10.0).run(AheadModel("auto"), 500)
    assert set(ways) == {None}


def test_operators_choose_one_way() -> None:
    assert [AheadModel(mode).way(1, {}) for mode in ("always", "only", "never")] == [NOW, ONLY, None]


def test_steps_without_are_measured_now_and_then() -> None:
    _, ways = World(10.0, 10.0).run(AheadModel("auto"), 2000)
    pauses = [(before, after) for before, after in pairwise(ways) if before == ONLY and after is None]
    assert 4 <= len(pauses) <= 10
