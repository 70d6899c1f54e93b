"""The report of a gateway under load, in Markdown."""

from typing import Any

from benchmarks.tables import head, line, origin


def markdown(report: dict[str, Any]) -> str:
    """All tables that there are figures for."""
    sections = {"steps": _by_batch, "crowd": _crowd, "store": _store, "fairness": _fairness, "soak": _soak}
    parts = [
        _opening(report),
        *(section(report[name]) for name, section in sections.items() if name in report),
    ]
    return "\n".join(line for part in parts for line in part)


def _opening(report: dict[str, Any]) -> list[str]:
    what = f"a verifier of {report['step_ms']:g} ms a step, {report['new_tokens']} new tokens a request"
    rest = "plain decoding, one gateway with its Redis. Medians, with quartiles in brackets."
    return ["# A gateway under load", "", f"{origin(report['about'])}; {what}, {rest}", ""]


def _by_batch(found: dict[str, dict[str, Any]]) -> list[str]:
    added = [_spread(each["added_ms"]) for each in found.values()]
    tails = [_figure(each["added_ms"].get("p99")) for each in found.values()]
    cpu = [f"{each['cpu_ms_per_token']:.3f}" for each in found.values()]
    return [
        *head(list(found), "requests at once"),
        line("added to a step, ms", added),
        line("99th percentile, ms", tails),
        line("gateway's processor time per token, ms", cpu),
        "",
    ]


def _crowd(found: dict[str, Any]) -> list[str]:
    ttft = found["ttft_s"]
    grown = ", ".join(f"{mib:.1f} MiB with {streams}" for streams, mib in found["grown_mib"].items())
    sentences = (
        f"{found['streams']} streams at once, of which {found['max_batch']} run; {found['failed']} failed.",
        f"Time to the first token {_spread(ttft)} s, 95th percentile {_figure(ttft.get('p95'))} s.",
        f"Added to a full step {_spread(found['added_ms'])} ms.",
        f"Memory grew by {grown} streams: {found['kib_per_stream']:.0f} KiB a stream.",
    )
    return [" ".join(sentences), ""]


def _store(found: dict[str, Any]) -> list[str]:
    sentences = (
        f"The store takes {100 * found['share']:.1f} % of a step at batch {found['batch']}",
        f"({_range(found['shares'])} in {len(found['shares'])} turns),",
        "against the same gateway that writes no tokens;",
        f"by the gateway's processor time {100 * found['cpu_share']:.1f} %",
        f"({_range(found['cpu_shares'])}), most of it beside the pass.",
    )
    return [" ".join(sentences), ""]


def _range(shares: list[float]) -> str:
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %"


def _fairness(found: dict[str, Any]) -> list[str]:
    callers = f"{found['keys']} API keys" if found["keys"] else "no API keys: all are one caller"
    rows = [
        line(
            f"{who}: {found[who]['requests']} requests",
            [
                _spread(found[who]["ttft_s"]),
                _figure(found[who]["ttft_s"].get("p95")),
                str(found[who]["failed"]),
            ],
        )
        for who in ("greedy", "modest")
    ]
    return [*head(["time to first token, s", "95th percentile", "failed"], callers), *rows, ""]


def _soak(found: dict[str, Any]) -> list[str]:
    mib = found["mib"]
    sentences = (
        f"{found['minutes']:g} minutes of {found['streams']} streams:",
        f"{found['requests']} requests, {found['failed']} failed,",
        f"memory from {min(mib):.0f} to {max(mib):.0f} MiB,",
        f"{found['mib_per_hour']:+.1f} MiB an hour in the second half.",
    )
    errors = [f"- {count} times {error}" for error, count in found["errors"].items()]
    return [" ".join(sentences), "", *errors, *([""] if errors else [])]


def _spread(found: dict[str, float]) -> str:
    if not found:
        return "-"
    return f"{_figure(found['median'])} [{_figure(found['p25'])}, {_figure(found['p75'])}]"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
