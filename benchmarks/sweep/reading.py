"""Figures of one level of load from guidellm's JSON and from the servers' metrics."""

from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from specinfer.errors import InvalidInputError

COUNTERS = {
    "tokens": ("specinfer_generation_tokens_total", "vllm:generation_tokens_total"),
    "accepted": ("specinfer_verifier_accepted_total", "vllm:spec_decode_num_accepted_tokens_total"),
    "drafted": ("specinfer_verifier_nodes_total", "vllm:spec_decode_num_draft_tokens_total"),
}
"""Name in a report -> its name in our metrics and in vLLM's."""
MILLISECONDS = {"ttft_ms": "time_to_first_token_ms", "itl_ms": "inter_token_latency_ms"}


def read_guidellm(found: Mapping[str, Any]) -> dict[str, float]:
    """Return latencies and throughput of the one benchmark of a run of guidellm.

    Raises:
        InvalidInputError: if requests failed, or the file is none of guidellm 0.8.
    """
    try:
        (benchmark,) = found["benchmarks"]
        metrics, scheduler = benchmark["metrics"], benchmark["scheduler_metrics"]
        totals = metrics["request_totals"]
        seconds = scheduler["measure_end_time"] - scheduler["measure_start_time"]
        figures = {
            "requests": totals["successful"],
            "tokens_per_second": metrics["output_token_count"]["successful"]["total_sum"] / seconds,
            "latency_s": metrics["request_latency"]["successful"]["median"],
            "latency_p95_s": metrics["request_latency"]["successful"]["percentiles"]["p95"],
        }
        figures |= {own: metrics[name]["successful"]["median"] for own, name in MILLISECONDS.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError("guidellm", str(error), "not a report of guidellm 0.8") from error
    if totals["successful"] != totals["total"]:
        raise InvalidInputError("request_totals", totals, "requests failed")
    return figures


def read_counters(text: str) -> dict[str, float]:
    """Return the counters that a server's metrics have, summed over their labels."""
    names = {name: own for own, both in COUNTERS.items() for name in both}
    counted: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in names:
                own = names[sample.name]
                counted[own] = counted.get(own, 0.0) + sample.value
    return counted


def speculation(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return tokens a step of a request and acceptance rate between two readings; empty without drafts."""
    tokens, accepted, drafted = (after.get(own, 0.0) - before.get(own, 0.0) for own in COUNTERS)
    if not drafted:
        return {}
    return {"tokens_per_step": tokens / (tokens - accepted), "acceptance_rate": accepted / drafted}
