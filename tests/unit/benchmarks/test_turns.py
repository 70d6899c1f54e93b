"""Medians of systems over turns."""

from benchmarks.runtime.turns import over_turns, settings_list


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
