"""The measurement of HTTP against gRPC runs, and its report says what it measured."""

import pytest

from benchmarks import http_latency


async def test_both_kinds_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_latency, "TOKENS", 5)
    monkeypatch.setattr(http_latency, "STREAMS", (2,))
    (row,) = await http_latency.run(rounds=1)
    assert row["streams"] == 2
    assert row["grpc_ms"]["p50"] > 0
    assert row["added_range_ms"] == [row["added_ms"]] * 2
    about = {"command": "http_latency.py", "cpu": "x", "cores": 2, "time": "now", "commit": "abc"}
    text = http_latency.table({"about": about, "rounds": 1, "rows": [row]})
    assert f"| 2 | {row['grpc_ms']['p50']:.2f} / {row['grpc_ms']['p99']:.2f} |" in text
