"""Qwen2.5-Coder 1.5B with its 0.5B draft, if both were pulled: every way of decoding gives the same text."""

import runpy
import sys
from pathlib import Path

import pytest

from specinfer.cli.demo import PAIR
from specinfer.hub.resolve import is_pulled
from specinfer.llm import LLM, SamplingParams
from tests.support.models.gguf_models import write_model_file

ROOT = Path(__file__).parents[2]
PROMPTS = [
    "Write a Python function that returns the n-th Fibonacci number.",
    "Why is the sky blue? Answer in two sentences.",
    "Translate into German: I would like two tickets to Munich.",
    "List three prime numbers above 100 as JSON.",
    "Write a SQL query for the three most expensive products.",
]
"""Five prompts for a batch of four: one has to wait."""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.native
@pytest.mark.skipif(not all(map(is_pulled, PAIR)), reason="`make demo` pulls the pair")
def test_the_real_pair_says_the_same_in_every_mode() -> None:
    model, draft = PAIR
    messages = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    texts: dict[tuple[str, int], list[str]] = {}
    for batch in (1, 4):
        with LLM(model, draft=draft, max_num_seqs=batch) as llm:
            for mode in ("off", "sequence", "tree"):
                params = SamplingParams(temperature=0, max_tokens=48, speculation=mode)
                answers = llm.chat(messages, params, use_tqdm=False)
                texts[mode, batch] = [answer.outputs[0].text for answer in answers]
                drafted = sum(a.metrics.speculative_decoding.accepted for a in answers if a.metrics)
                assert (drafted > 0) == (mode != "off") or batch > 1, "the planner may go without drafts"
    expected = texts["off", 1]
    assert all(tokens == expected for tokens in texts.values()), texts


@pytest.mark.slow
def test_the_walk_from_a_file_to_an_answer_with_a_draft(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    file = write_model_file(tmp_path / "Tiny.F32.gguf", template=template)
    monkeypatch.setattr(sys, "argv", ["", str(file), "ngram", "abc abc abc"])
    runpy.run_path(str(ROOT / "examples/gguf_with_draft.py"))
    assert capsys.readouterr().out.splitlines()[-1].startswith("128 tokens in ")
