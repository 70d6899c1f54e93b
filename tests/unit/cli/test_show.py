"""Texts and tables that commands print."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from specinfer.cli import show
from specinfer.cli.bench import BenchRun, Turn, summarise
from specinfer.cli.show import answer_line, planner_words, print_runs, status_table
from specinfer.client import Answer, FinishReason, SpeculationStats, SpeculatorStats, Summary
from specinfer.v1 import generation_pb2


def test_an_answer_names_the_winners_of_its_steps() -> None:
    speculators = (SpeculatorStats("ngram", wins=3), SpeculatorStats("ssm", wins=6))
    stats = SpeculationStats(steps=10, drafted=30, accepted=15, speculators=speculators)
    answer = Answer(summary=Summary(FinishReason.LENGTH, new_tokens=25, stats=stats))
    assert answer_line(answer) == "25 tokens in 10 steps, 2.50 tokens/step, ngram won 3, ssm won 6, length"


def runs() -> list[BenchRun]:
    answer = Answer(token_ids=[1] * 10)
    plain = [Turn([answer], 1.0), Turn([answer], 1.25)]
    fast = [Turn([answer], 0.5), Turn([answer], 0.6)]
    return [
        summarise("incremental", 16, plain, plain),
        replace(summarise("tree", 16, fast, plain), speculators={"ssm": {"wins": 3}}),
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_comparison_is_readable_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No text is cut off; a table that does not fit becomes lines."""
    file = io.StringIO()
    monkeypatch.setattr(show, "output", Console(file=file, width=width))
    print_runs(runs())
    text = file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for value in ("incremental", "tree", "8.9 ±1.0", "18.2 ±1.7", "2.05x ±0.04", "ssm won 3"):
        assert value in words, text
    table = "mode batch tok/s speedup tok/step accepted ttft tpot" in words
    assert table == (width >= 80)


def test_the_planners_choice_is_shown_with_its_reason() -> None:
    plain = generation_pb2.PlannerState(reason="plain is faster", plain_tokens_per_second=90)
    assert planner_words(plain) == "plain decoding: plain is faster"
    trees = generation_pb2.PlannerState(
        speculators=["ngram", "ssm"],
        tree_nodes=3,
        step_nodes=6,
        expected_tokens=3.34,
        expected_seconds=0.03,
        plain_tokens_per_second=90,
        reason="fastest",
        batch=2,
    )
    assert planner_words(trees) == "ngram + ssm, 3 nodes: 1.67 tokens at 1.35 of a plain step (fastest)"
    fixed = generation_pb2.PlannerState(speculators=["ssm"], step_nodes=8, reason="not adaptive")
    assert planner_words(fixed) == "ssm, 8 nodes: not adaptive"


def test_status_shows_the_gateway_of_each_verifier() -> None:
    status = generation_pb2.StatusReply(gateway_id="g1", gateways=2, draining=True, verifier_ready=True)
    status.verifiers.add(address="v:1", ready=True, gateway_id="g1", running=3, waiting=1)
    status.verifiers.add(address="v:2", ready=True, gateway_id="g2")
    status.verifiers.add(address="v:3")
    file = io.StringIO()
    Console(file=file, width=200).print(status_table("here", status))
    lines = [line.split("│") for line in file.getvalue().splitlines() if line.count("│") == 3]
    rows = {line[1].strip(): line[2].strip() for line in lines}
    assert rows["gateway"] == "g1, 2 alive, draining: takes no new requests"
    assert (rows["redis"], rows["verifier"]) == ("not answering", "ready")
    assert rows["verifier v:1"] == "ready, driven by this gateway: 3 running, 1 waiting"
    assert rows["verifier v:2"] == "ready, driven by gateway g2"
    assert rows["verifier v:3"] == "not answering, driven by no gateway"
