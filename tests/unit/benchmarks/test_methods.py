"""Drafting methods side by side: drafters that read hidden states get them; what is counted is right."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import methods
from benchmarks.drafts.decoding import Decoding, DecodingPlan, Result
from benchmarks.drafts.methods_report import methods_markdown
from benchmarks.drafts.prompts import EvaluationPrompt
from benchmarks.methods import by_depth, compare, summary
from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.model.batch import Segment
from specinfer.planning.reliability import Reliability
from specinfer.tree import TokenTree
from tests.support.tiny_models import runner_of, tiny_transformers

MODEL = tiny_transformers("llama", seed=3)
PROMPTS = [
    EvaluationPrompt("a", (5, 17, 3)),
    EvaluationPrompt("b", (41, 9)),
    EvaluationPrompt("b", (60, 2, 71, 33)),
]


class Reader:
    """Proposes nothing and keeps what it is given."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.description = DrafterDescription("reader", feature_layers=layers)
        self.states: dict[str, list[np.ndarray]] = defaultdict(list)
        self.contexts: dict[str, list[int]] = {}
        self.ended: list[tuple[list[int], list[np.ndarray]]] = []

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree]:
        for job in jobs:
            self.contexts[job.request_id] = list(job.context)
            if job.features is not None:
                known = sum(len(part) for part in self.states[job.request_id])
                assert job.features.start == known, "without a gap, and nothing twice"
                self.states[job.request_id].append(job.features.states)
        return [TokenTree.root_only(job.context[-1]) for job in jobs]

    def release(self, request_id: str) -> None:
        self.ended.append((self.contexts.pop(request_id), self.states.pop(request_id, [])))


def test_every_reader_gets_the_hidden_states_of_its_layers() -> None:
    readers = [Reader((1,)), Reader((0, 2)), Reader(())]
    Decoding(runner_of(MODEL), readers, DecodingPlan(4, 3, 0.0, 6, batch=3)).run(PROMPTS)  # type: ignore[arg-type]
    assert not any(states for _, states in readers[2].ended)
    for reader, layers in ((readers[0], (1,)), (readers[1], (0, 2))):
        for context, states in reader.ended:
            runner = runner_of(MODEL)
            told = Segment(runner.open(), context[:-1], want_last=True)
            expected = runner.forward_with_features([told], layers)[1][0]
            found = torch.from_numpy(np.concatenate(states)).view(torch.bfloat16)
            assert found.shape == expected.shape
            assert torch.allclose(found.float(), expected.float(), atol=0.02)


def test_methods_of_a_kind_are_told_apart_by_their_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "make_drafter", lambda name, options: f"{name} of {options.model}")
    found = methods.load_methods(["medusa=a/one", "ngram", "medusa=b/two"])
    assert found == {"medusa": "medusa of a/one", "ngram": "ngram of ", "medusa two": "medusa of b/two"}


def test_acceptance_by_depth_is_of_the_steps_that_got_there() -> None:
    result = Result(accepted=Counter({0: 4, 1: 2, 2: 1, 3: 1}))
    assert by_depth(result) == [0.5, 0.5, 0.5, 0.0]


def test_scores_of_methods_alone_are_reported_beside_what_was_accepted() -> None:
    said, corrected = Reliability(), Reliability()
    for number in range(200):
        said.note(0.85, number % 4 == 0)
        corrected.note(0.25, number % 4 == 0)
    result = Result(per_prompt=[("a", 2, 4), ("b", 2, 6)], accepted=Counter({1: 4}))
    result.reliability = [(said, corrected)]
    alone = {"kind": "greedy", "pool": ["one"], "nodes": 16} | summary(result)
    result.reliability *= 2
    merged = {"kind": "greedy", "pool": ["one", "two"], "nodes": 16} | summary(result)
    about = {"command": "c", "commit": "d", "time": "t", "cores": 2, "cpu": "x"}
    text = methods_markdown({"about": about, "prompts": 2, "new_tokens": 4, "runs": [alone, merged]})
    _, table = text.split("Scores and acceptance")
    assert "| one | 0.600 | 0.000 | 0.500 |" in table
    assert "two" not in table


def test_the_report_has_every_pool_and_budget() -> None:
    methods: Any = {"reader": Reader((1,)), "nobody": Reader(())}
    pools = [["reader"], ["reader", "nobody"]]
    runs = compare(runner_of(MODEL), methods, pools, [2, 4], PROMPTS, 4, lambda _: None)
    assert [(run["kind"], len(run["pool"]), run["nodes"]) for run in runs] == [
        (kind, pool, nodes) for kind in ("greedy", "temperature 0.8") for pool in (1, 2) for nodes in (2, 4)
    ]
    about = {"command": "c", "commit": "d", "time": "t", "cores": 2, "cpu": "x"}
    text = methods_markdown({"about": about, "prompts": 3, "new_tokens": 4, "runs": runs})
    assert "| reader + nobody | 1.00 ± 0.00 | 1.00 ± 0.00 |" in text


def test_chains_and_milliseconds_are_reported_where_they_are_measured() -> None:
    methods: Any = {"reader": Reader((1,))}
    runs = compare(
        runner_of(MODEL), methods, [["reader"]], [2], PROMPTS, 4, lambda _: None, batch=1, chains=True
    )
    assert [run["chain"] for run in runs] == [False, True] * 2
    assert all(run["draft_ms"] > 0 and run["verify_ms"] > 0 for run in runs)
    runs[0] |= {"tokens_per_step": 2.0, "draft_ms": 1.5, "verify_ms": 2.5}
    about = {"command": "c", "commit": "d", "time": "t", "cores": 2, "cpu": "x"}
    report = {"about": about, "prompts": 3, "new_tokens": 4, "runs": runs, "batch": 1}
    text = methods_markdown(report)
    assert "| reader | 1.50 + 2.50: 0.500 |" in text
    assert "| reader, chain |" in text
    assert "Milliseconds" not in methods_markdown({**report, "batch": 8})
