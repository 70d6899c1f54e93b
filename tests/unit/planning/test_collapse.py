"""Detection of speculators whose drafts are no longer accepted."""

import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gateway.observability.acceptance_watch import WINDOW, AcceptanceTrend, AcceptanceWatch
from gateway.observability.metrics.speculation import SpeculationMetrics
from gateway.session.totals import Named
from specinfer.scheduling.statistics import SpeculationCounts, SpeculatorCounts


def run(trend: AcceptanceTrend, drafts: int, rate: float, seed: int = 0) -> list[bool]:
    """Note `drafts` drafts, each with an accepted token with probability `rate`; return the new judgements."""
    draw = random.Random(seed)
    return [trend.collapsed for _ in range(drafts) if trend.note(1, int(draw.random() < rate))]


def test_a_thousand_drafts_without_an_accepted_token_are_a_collapse() -> None:
    trend = AcceptanceTrend()
    assert run(trend, WINDOW - 1, 0.0) == []
    assert run(trend, 1, 0.0) == [True]
    assert run(trend, 10 * WINDOW, 0.0) == [], "reported once"
    assert run(trend, 3 * WINDOW, 0.3) == [False]


@pytest.mark.parametrize("before", [0.005, 0.02, 0.5])
def test_a_speculator_that_is_no_longer_accepted_has_collapsed(before: float) -> None:
    trend = AcceptanceTrend()
    assert run(trend, 5 * WINDOW, before) == []
    assert run(trend, WINDOW, 0.0) == [True]
    assert run(trend, 3 * WINDOW, before) == [False]


def test_less_than_a_tenth_of_the_former_acceptance_is_a_collapse() -> None:
    trend = AcceptanceTrend()
    run(trend, 5 * WINDOW, 0.8)
    assert run(trend, 3 * WINDOW, 0.04) == [True]
    assert run(trend, 3 * WINDOW, 0.8) == [False]
    assert run(trend, 20 * WINDOW, 0.3) == [], "other texts"


@given(st.floats(0.2, 1.0), st.floats(0.3, 1.0), st.integers(0, 1000))
def test_a_change_due_to_other_texts_is_no_collapse(rate: float, factor: float, seed: int) -> None:
    trend = AcceptanceTrend()
    assert run(trend, 2 * WINDOW, rate, seed) == []
    assert run(trend, 2 * WINDOW, rate * factor, seed) == []


def test_drafts_may_come_in_steps_of_any_size() -> None:
    trend = AcceptanceTrend()
    assert not trend.note(5000, 2500)
    assert trend.note(1500, 0)
    assert trend.collapsed


def test_a_collapse_sets_a_metric_and_logs_a_line_for_its_speculator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    metrics = SpeculationMetrics(registry)
    watch, names = AcceptanceWatch(metrics), [Named("s:1", "ssm"), Named("s:2", "ngram")]
    metrics.announce(names)

    def shown() -> list[float | None]:
        name = "specinfer_speculator_collapsed"
        return [registry.get_sample_value(name, named._asdict()) for named in names]

    def steps(count: int, *accepted: int) -> None:
        for _ in range(count):
            did = {
                n: SpeculatorCounts(drafts=4, accepted=accepted_nodes)
                for n, accepted_nodes in enumerate(accepted)
            }
            watch.count(SpeculationCounts(speculators=did), names)

    steps(300, 2, 2)
    assert (shown(), caplog.records) == ([0, 0], [])
    with caplog.at_level(logging.WARNING):
        steps(300, 0, 2)
        assert shown() == [1, 0]
        metrics.announce(names)  # a service that was unavailable is back
        assert shown() == [1, 0]
        steps(300, 2, 2)
    assert shown() == [0, 0]
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("acceptance of speculator ssm at s:1 collapsed: 0.000 tokens per draft")
    assert "has recovered" in second
