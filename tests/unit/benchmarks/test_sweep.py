"""The reports beside peers: what guidellm and metrics say, and medians over turns."""

import pytest

from benchmarks.runtime.turns import over_turns, settings_list
from benchmarks.sweep.__main__ import cell
from benchmarks.sweep.reading import read_counters, read_guidellm, speculation
from specinfer.errors import InvalidInputError

OURS = """# TYPE specinfer_generation_tokens counter
specinfer_generation_tokens_total {tokens}
# TYPE specinfer_verifier_nodes counter
specinfer_verifier_nodes_total 40
# TYPE specinfer_verifier_accepted counter
specinfer_verifier_accepted_total 30
# TYPE specinfer_other counter
specinfer_other_total 7
"""
VLLM = """# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0"} 60.0
vllm:generation_tokens_total{engine="1"} 30.0
"""


def guidellm(successful: int = 4, total: int = 4) -> dict[str, object]:
    """As much of guidellm's JSON as a report reads."""

    def figure(median: float) -> dict[str, object]:
        return {
            "successful": {"median": median, "total_sum": 4 * median, "percentiles": {"p95": 2 * median}},
            "total": {"median": 99, "total_sum": 99, "percentiles": {"p95": 99}},
        }

    metrics = {"request_totals": {"successful": successful, "total": total}}
    names = ("output_token_count", "request_latency", "time_to_first_token_ms", "inter_token_latency_ms")
    figures = {name: figure(value) for name, value in zip(names, (16, 3, 50, 8), strict=True)}
    scheduler = {"measure_start_time": 100.0, "measure_end_time": 108.0}
    return {"benchmarks": [{"metrics": metrics | figures, "scheduler_metrics": scheduler}]}


def test_guidellm_gives_throughput_and_latencies_of_what_succeeded() -> None:
    assert read_guidellm(guidellm()) == {
        "requests": 4,
        "tokens_per_second": 8,
        "latency_s": 3,
        "latency_p95_s": 6,
        "ttft_ms": 50,
        "itl_ms": 8,
    }


@pytest.mark.parametrize("found", [guidellm(successful=3), {"benchmarks": []}, {"benchmarks": [{}]}, {}])
def test_a_run_that_failed_gives_no_figures(found: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        read_guidellm(found)


def test_acceptance_is_that_between_two_readings_of_either_server() -> None:
    before, after = {"tokens": 10.0}, read_counters(OURS.format(tokens=100))
    assert after == {"tokens": 100, "drafted": 40, "accepted": 30}
    assert speculation(before, after) == {"tokens_per_step": 1.5, "acceptance_rate": 0.75}
    assert speculation(after, after) == {}
    assert read_counters(VLLM) == {"tokens": 90}, "all labels together"
    assert speculation({}, read_counters(VLLM)) == {}, "no drafts"


def test_cells_are_medians_and_throughput_has_its_range() -> None:
    turns = [{"tokens_per_second": 10.0, "itl_ms": 1.0}, {"tokens_per_second": 30.0, "itl_ms": 2.0}]
    assert cell("tokens_per_second", turns) == "20 (10 to 30)"
    assert cell("itl_ms", turns) == "1.5"
    assert cell("acceptance_rate", turns) == ""


def test_systems_are_medians_over_turns_and_missing_if_they_failed_once() -> None:
    first = {"a": {"1": 10.0, "ttft_ms": 3.0, "settings": "int4"}, "b": {"1": 5.0}}
    second = {"a": {"1": 20.0, "ttft_ms": 5.0, "settings": "int4"}, "b": {"missing": "ended"}}
    report = over_turns([first, second], ["1", "4"])
    assert report["systems"] == {
        "a": {"1": 15.0, "ttft_ms": 4.0, "settings": "int4"},
        "b": {"missing": "ended"},
    }
    assert report["spread"] == {"a": {"1": [10.0, 20.0]}}
    assert settings_list(report["systems"]) == ["- a: int4"]
