"""Comparison of drafting methods: hidden states for drafters that read them, and the counts of the report."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.decoding import Decoding, DecodingPlan, Result, replay
from benchmarks.methods import compare, markdown
from benchmarks.prompts import EvaluationPrompt
from benchmarks.sources.__main__ import prompts_by_kind, report
from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.model.batch import Segment
from specinfer.tree import TokenTree, TreeBuilder
from tests.support.oracle import default_target, greedy
from tests.support.tiny_models import runner_of, tiny_transformers

MODEL = tiny_transformers("llama", seed=3)
PROMPTS = [
    EvaluationPrompt("a", (5, 17, 3)),
    EvaluationPrompt("b", (41, 9)),
    EvaluationPrompt("b", (60, 2, 71, 33)),
]


class Reader:
    """A drafter that proposes nothing and stores the contexts and hidden states that it receives."""

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
            segment = Segment(runner.open(), context[:-1], want_last=True)
            expected = runner.forward_with_features([segment], layers)[1][0]
            read_states = torch.from_numpy(np.concatenate(states)).view(torch.bfloat16)
            assert read_states.shape == expected.shape
            assert torch.allclose(read_states.float(), expected.float(), atol=0.02)


class Guesser:
    """Looks up the last token in a table of (guess, guess after that, alternative to the first guess)."""

    def __init__(self, after: dict[int, tuple[int, int, int]]) -> None:
        self.description, self._after = DrafterDescription("guesser"), after

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree]:
        trees = []
        for job in jobs:
            assert job.sampling.greedy
            builder = TreeBuilder(job.context[-1])
            first, second, other = self._after.get(job.context[-1], (0, 0, 1))
            (node, _) = builder.propose_points(0, [first, other], [0.5, 0.2])
            builder.propose_points(node, [second], [0.5])
            trees.append(builder.build())
        return trees

    def release(self, request_id: str) -> None:
        pass


def test_first_guesses_are_counted() -> None:
    prompt = [5, 17, 3]
    expected = greedy(prompt, 3)
    guesser: Any = Guesser({3: (expected[0], expected[1], 96), expected[2]: (95, 95, 96)})
    result = Decoding(runner_of(default_target()), [guesser], DecodingPlan(4, 3, 0.0, 4)).run(
        [EvaluationPrompt("a", tuple(prompt))]
    )
    assert result.per_prompt == [("a", 2, 4)], "three tokens, and the one after a wrong guess"
    assert result.right_first_guesses("a") == 0.5


def test_a_replayed_drafter_gets_what_it_gets_in_decoding() -> None:
    guesser: Any = Guesser({3: (1, 2, 96), 9: (5, 6, 7), 33: (4, 4, 4)})
    tokens = [t for p in PROMPTS for t in greedy(p.tokens, 6)]
    guesser._after |= {t: (n, m, 96) for t, n, m in zip(tokens, tokens[1:], tokens[2:], strict=False)}
    plan = DecodingPlan(4, 3, 0.0, 9, batch=3)
    decoded = Decoding(runner_of(default_target()), [guesser], plan).run(PROMPTS)
    replayed = replay([guesser], PROMPTS, decoded.answers, plan)
    assert replayed.tokens_per_step() > 1
    assert replayed.per_prompt == decoded.per_prompt
    assert replayed.answers == decoded.answers
    assert replayed.first_guesses == decoded.first_guesses


def test_prompts_are_of_the_kind_of_their_category_or_source(tmp_path: Path) -> None:
    rows = [("spec-bench", "writing"), ("spec-bench", "rag"), ("self-instruct-user", None), ("x", "code")]
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "\n".join(json.dumps({"source": s, "category": c, "turns": [f"{s} {c}"]}) for s, c in rows)
    )
    tokenizer: Any = SimpleNamespace(encode_chat=lambda messages: [len(messages[0]["content"])])
    prompts = prompts_by_kind([path, path], tokenizer, 1)
    assert [prompt.source for prompt in prompts] == ["chat", "code", "instructions"]
    assert [prompt.tokens for prompt in prompts] == [(len("spec-bench writing"),), (6,), (23,)]


def test_the_report_by_kind_has_acceptance_and_first_guesses() -> None:
    result = Result(per_prompt=[("chat", 2, 5), ("code", 1, 4)])
    result.first_guesses.update({("chat", True): 1, ("chat", False): 1, ("code", True): 1})
    text = report("m", "about", {"ngram": result})
    assert "| ngram | 2.50, 50 % | 4.00, 100 % | 3.00 |" in text


def test_the_report_has_every_pool_and_budget() -> None:
    methods: Any = {"reader": Reader((1,)), "nobody": Reader(())}
    pools = [["reader"], ["reader", "nobody"]]
    runs = compare(runner_of(MODEL), methods, pools, [2, 4], PROMPTS, 4, lambda _: None)
    assert [(run.kind, run.name, run.nodes) for run in runs] == [
        (kind, pool, nodes)
        for kind in ("greedy", "temperature 0.8")
        for pool in ("reader", "reader + nobody")
        for nodes in (2, 4)
    ]
    about = {"command": "c", "commit": "d", "time": "t", "cores": 2, "cpu": "x"}
    text = markdown({"about": about, "prompts": 3, "new_tokens": 4}, runs)
    assert "| reader + nobody | 1.00 ± 0.00 | 1.00 ± 0.00 |" in text
