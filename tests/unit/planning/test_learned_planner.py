"""The learned planner: its features, its learning, recovery from wrong weights, and files of weights."""

import json
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from specinfer.errors import SettingError
from specinfer.planning.choice import Choice
from specinfer.planning.learned import (
    MAX_REPEAT,
    NAMES,
    LearnedGains,
    LinearModel,
    Repeats,
    TextMatches,
    load_weights,
    save_weights,
)
from specinfer.planning.learned_training import main
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.step_report import DraftTime, StepReport
from specinfer.planning.table_planner import TablePlanner
from specinfer.scheduling.limits import NodeBudget
from specinfer.tree import TokenTree, merge_trees
from tests.support.effort import effort
from tests.support.oracle import chain

ROOT = 7
ALONE = frozenset({0})
NAME = "copies"
DRAFT_S, NODE_S, PLAIN_S = 0.003, 0.0004, 0.005
"""Seconds of drafts, of a node, and of a plain pass: drafts pay only if they are right."""
CURVE = PassCurve([(1, PLAIN_S), (101, PLAIN_S + 100 * NODE_S)])


class Copying:
    """A simulated text that repeats earlier text in some stretches of steps.

    Then chains of eight nodes are right, otherwise no node is. With `shuffled`, the planner sees random matches.
    """

    def __init__(self, model: LinearModel | None, seed: int = 0, shuffled: bool = False) -> None:
        self.rng, self.shuffled, self.tokens, self.copies = random.Random(seed), shuffled, 100, False
        trained = {} if model is None else {NAME: model}
        gains = LearnedGains(trained, [NAME], self.seen)
        self.planner = TablePlanner(CURVE, NodeBudget(8, 8), gains=gains)
        self.planner.enrol([ALONE])
        free = DraftTime(ALONE, {0: 0.0}, 0.0, read=1000)  # reading missed tokens costs nothing
        for _ in range(4):  # the first three are cold
            self.planner.observe(StepReport(Choice(ALONE, 1), 1, 2, PLAIN_S, [free], 0.0, {}))

    def seen(self, contexts: Mapping[str, int]) -> list[int]:
        copies = self.rng.random() < 0.5 if self.shuffled else self.copies
        return [MAX_REPEAT if copies else 0 for _ in contexts]

    def run(self, steps: int) -> tuple[float, dict[bool, float]]:
        """Return tokens per second, and the share of steps with drafts, by whether the text repeated itself."""
        tokens, seconds = 0, 0.0
        chosen: dict[bool, list[bool]] = {True: [], False: []}
        before: StepReport | None = None
        for step in range(steps):
            if step % 4 == 0:
                self.copies = self.rng.random() < 0.5
            choice = self.planner.choose(1, {"r": self.tokens})
            if before is not None:  # results of a step are learnt during the next one
                self.planner.observe(before)
            chosen[self.copies].append(bool(choice.speculators))
            before, took = self.step(choice)
            tokens += 1 + len(before.outcomes["r"][1])
            seconds += took
        return tokens / seconds, {kind: sum(tree) / len(tree) for kind, tree in chosen.items()}

    def step(self, choice: Choice) -> tuple[StepReport, float]:
        nodes = choice.nodes if choice.speculators else 0
        tree = chain(ROOT, range(100, 100 + nodes)) if nodes else TokenTree.root_only(ROOT)
        accepted = list(range(1, len(tree))) if self.copies else []
        drafts = [DraftTime(ALONE, {0: DRAFT_S}, 0.0)] if choice.speculators else []
        pass_s = PLAIN_S + NODE_S * nodes
        report = StepReport(
            choice, 1, len(tree), pass_s, drafts, 0.0, {"r": (tree, accepted)}, contexts={"r": self.tokens}
        )
        self.tokens += 1 + len(accepted)
        return report, pass_s + DRAFT_S * bool(drafts)


def test_it_speculates_only_while_a_text_repeats_itself() -> None:
    """Training starts from zero during serving. In the control the matches that the planner sees are random."""
    world, control = Copying(None), Copying(None, shuffled=True)
    world.run(600)
    speed, chosen = world.run(1000)
    control.run(600)
    blind_speed, _ = control.run(1000)
    assert chosen[True] > 0.9
    assert chosen[False] < 0.15
    always = 0.5 * (9 + 1) / (PLAIN_S + DRAFT_S + 8 * NODE_S)
    assert blind_speed < 1.05 * always, "without useful matches it is no better than a constant choice"
    assert speed > 1.15 * blind_speed


@pytest.mark.parametrize("seed", range(effort(1, 3)))
def test_wrong_weights_are_corrected(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The weights are wrong: they expect right drafts if nothing repeats. Without refinement they do not change."""
    wrong = np.zeros(len(NAMES))
    wrong[NAMES.index("one")], wrong[NAMES.index(f"match {MAX_REPEAT}")] = 2.0, -2.0
    world, right = Copying(LinearModel(wrong), seed), Copying(None, seed)
    for planner in (world, right):
        planner.run(1000)
    speed, chosen = world.run(1000)
    assert chosen[True] > 0.9 > 0.2 > chosen[False]
    assert speed > 0.95 * right.run(1000)[0]
    monkeypatch.setattr(LinearModel, "refine", lambda *_: None)
    _, misled = Copying(LinearModel(wrong), seed).run(1000)
    assert misled[False] > misled[True]


def test_a_step_of_refinement_is_bounded() -> None:
    model = LinearModel.usual()
    rng = np.random.default_rng(0)
    for step in range(50):
        rows = 1e6 * rng.standard_normal((40, len(NAMES)))
        before = model.weights.copy()
        model.refine(rows, rng.uniform(0, 1e9, 40), 100 * step)
        assert np.linalg.norm(model.weights - before) < 1.0


def test_untrained_weights_expect_the_tokens_of_the_table_planner() -> None:
    """Only for trees of eight nodes, which were observed; for other sizes the model assumes log2(1 + n)."""
    budget = NodeBudget(8, 64)
    table = TablePlanner(CURVE, budget)
    gains = LearnedGains({}, ["a", "b"], lambda contexts: [0] * len(contexts))
    learned = TablePlanner(CURVE, budget, gains=gains)
    both, rng = frozenset({0, 1}), random.Random(0)
    tree = merge_trees([(0, chain(ROOT, [1, 2, 3])), (1, chain(ROOT, [1, 5]))])
    for planner in (table, learned):
        planner.enrol([both])
    for _ in range(400):
        outcomes = {name: (tree, [1, 2][: rng.randint(0, 2)]) for name in ("r", "s")}
        for planner in (table, learned):  # weights are not refined without contexts
            planner.choose(2, {"r": 10, "s": 9})
            planner.observe(StepReport(Choice(both, 8), 2, 9, 0.0, [], 0.0, outcomes))
    for planner in (table, learned):
        planner.choose(2, {"q": 1, "r": 10, "s": 9})
    for chosen in table.gains.sets:
        ours, theirs = (planner.gains.expected(chosen, 1, 6)[0][-1] for planner in (learned, table))
        assert ours == pytest.approx(theirs, rel=0.02)


def test_features_are_of_committed_tokens() -> None:
    repeats = Repeats()
    tokens = [1, 2, 3, 4, 9, 1, 2, 3]
    assert [repeats.match(tokens, n) for n in range(1, 9)] == [0, 0, 0, 0, 0, 0, 2, 3]
    tokens += [4, 9, 1, 2, 3, 4, 9]
    assert repeats.match(tokens, len(tokens)) == MAX_REPEAT
    assert repeats.match([*tokens, 5], len(tokens) + 1) == 0
    assert Repeats().match([7] * 3, 3) == 2


@pytest.mark.parametrize("seed", range(5))
def test_incremental_matches_equal_those_of_the_whole_text(seed: int) -> None:
    rng = random.Random(seed)
    tokens = [rng.randrange(4) for _ in range(200)]
    repeats, length = Repeats(), 1
    while length <= len(tokens):
        assert repeats.match(tokens, length) == Repeats().match(tokens, length)
        length += rng.randint(1, 4)


def test_requests_match_their_own_texts_and_are_forgotten() -> None:
    texts = {"a": [1, 2, 3, 1, 2], "b": [1, 2, 3, 4, 5]}
    matches = TextMatches(texts.__getitem__)
    assert matches({"a": 5, "b": 5}) == [2, 0]
    texts["a"] = [1, 2, 9, 9, 8]
    assert matches({"b": 5}) == [0]
    assert matches({"a": 5}) == [0], "a new request of that name is another text"


def test_weights_are_loaded_as_they_were_saved(tmp_path: Path) -> None:
    model = LinearModel(np.random.default_rng(0).random(len(NAMES)))
    save_weights(tmp_path / "w.json", {"a+b": model}, {"steps": 1})
    planner = load_weights("planner", tmp_path / "w.json")
    assert planner.keys() == {"a+b"}
    np.testing.assert_allclose(planner["a+b"].weights, model.weights)


def broken(**changes: object) -> str:
    content = {"format": 2, "features": list(NAMES), "trained": {}, "sets": {"a": [0.0] * len(NAMES)}}
    return json.dumps(content | changes)


BAD: dict[str, str] = {
    "no JSON": "{",
    "a list": "[]",
    "another format": broken(format=1),
    "other features": broken(features=["one"]),
    "no sets": broken(sets=None),
    "sets of numbers": broken(sets={"a": 3}),
    "few weights": broken(sets={"a": [1.0, 2.0]}),
    "no number": broken(sets={"a": [float("nan")] * len(NAMES)}),
}


def test_the_file_without_faults_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text(broken())
    assert load_weights("planner", path).keys() == {"a"}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_errors_in_a_file_name_setting_and_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "weights.json"
    path.write_text(text)
    with pytest.raises(SettingError, match=r"planner = .*weights\.json.*:"):
        load_weights("planner", path)
    with pytest.raises(SettingError, match=r"planner = .*none\.json.*:"):
        load_weights("planner", tmp_path / "none.json")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 must be a step as the gateway's --record-steps writes it: Expecting property name"),
        ('{"speculators": ["a"]}', "--record-steps writes it: lacks 'asked'"),
        ('{"speculators": ["a"], "asked": [1], "nodes": 1, "requests": {}}', "asked has 1: must be numbers"),
        ('{"speculators": ["a"], "asked": [0], "nodes": 1, "requests": {}}', "requests is empty"),
    ],
)
def test_errors_name_the_fault_of_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    steps = tmp_path / "steps.jsonl"
    request = {"context": 9, "match": 0, "parents": [-1], "scores": [1.0], "proposals": [], "accepted": []}
    good = {"speculators": ["a"], "asked": [0], "nodes": 1, "requests": {"r": request}}
    steps.write_text(f"{json.dumps(good)}\n{line}\n")
    monkeypatch.setattr("sys.argv", ["train", "--recording", str(steps), "--out", str(tmp_path / "w.json")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "specinfer train scheduler: error: --recording = " in error
    assert says in error
    steps.write_text(f"{json.dumps(good)}\n")
    with pytest.raises(SystemExit):
        main()
    assert "1 steps are too few" in capsys.readouterr().err
