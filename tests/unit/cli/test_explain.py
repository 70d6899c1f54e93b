"""`specinfer up --explain` states the reasons of its choices."""

from pathlib import Path

from specinfer.cli.check import explanation, passes_words, pool_words
from specinfer.cli.local.options import LocalOptions
from specinfer.hub import DEFAULT_MODEL
from specinfer.v1 import verifier_pb2
from tests.chaos.model_directory import write_model


def description(**costs_ms: float) -> verifier_pb2.DescribeVerifierReply:
    costs = [
        verifier_pb2.PassCost(tokens=int(n[1:]), microseconds=round(1000 * ms)) for n, ms in costs_ms.items()
    ]
    return verifier_pb2.DescribeVerifierReply(weights="as in the file: 9 Q4_K", pass_costs=costs)


def test_passes_are_shown_for_powers_of_two_and_against_one_token() -> None:
    words = passes_words(description(n8=9.8, n1=3.5, n4=5.6, n6=7.0))
    assert words == "1 tokens 3.5 ms (1.0x), 4 tokens 5.6 ms (1.6x), 8 tokens 9.8 ms (2.8x)"
    assert passes_words(description()) == "not measured"


def test_who_drafts(tmp_path: Path) -> None:
    tiny = write_model(tmp_path / "tiny")
    assert pool_words(LocalOptions()).endswith(f"ssm-smollm2-135m fits {DEFAULT_MODEL}")
    assert pool_words(LocalOptions(model=str(tiny))) == (
        "ngram in the verifier's process and suffix in services of their own: no draft for "
        f"{tiny} on this machine; choose one with --draft"
    )
    options = LocalOptions(speculators={"a": {"drafter": "ngram+ssm"}, "b": {"drafter": "retrieval"}})
    assert pool_words(options) == "ngram, ssm, retrieval in services of their own, as asked"
    resident = LocalOptions(speculators={}, draft="ngram")
    assert pool_words(resident) == "ngram in the verifier's process, as asked"
    assert pool_words(LocalOptions(speculators={}, draft="none")) == "none, as asked"


def test_every_choice_is_explained() -> None:
    reasons = dict(explanation(LocalOptions(), description(n1=1.0)))
    assert reasons["weights"] == "as in the file: 9 Q4_K"
    assert [*reasons] == ["weights", "passes", "speculators", "each step"]
