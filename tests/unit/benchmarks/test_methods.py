"""Drafting methods side by side: drafters that read hidden states get them; what is counted is right."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.decoding import Decoding, DecodingPlan, Result
from benchmarks.methods import by_depth, compare, methods_markdown
from benchmarks.prompts import EvaluationPrompt
from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.model.batch import Segment
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


def test_acceptance_by_depth_is_of_the_steps_that_got_there() -> None:
    result = Result(accepted=Counter({0: 4, 1: 2, 2: 1, 3: 1}))
    assert by_depth(result) == [0.5, 0.5, 0.5, 0.0]


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
