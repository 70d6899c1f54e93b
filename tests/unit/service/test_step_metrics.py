"""Counters and histograms of steps give the same scrapes as those of prometheus_client."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from specinfer.service.metrics import StepCounter, StepHistogram
from tests.support.network.scrape import Scrape

BOUNDS = (0.5, 1, 30)
VALUES = [0.1, 0.5, 0.50001, 1, 29, 30, 31, 1000]


@pytest.mark.parametrize("labelled", [False, True])
def test_a_scrape_is_that_of_the_usual_histogram(labelled: bool) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    label = "phase" if labelled else ""
    step = StepHistogram("specinfer_x_seconds", "What.", BOUNDS, ours, label, ["a", "b"] if labelled else ())
    usual = Histogram(
        "specinfer_x_seconds", "What.", [label] if label else [], buckets=BOUNDS, registry=theirs
    )
    for value in VALUES:
        step.observe(value, "a" if labelled else "")
        (usual.labels("a") if labelled else usual).observe(value)
    if labelled:
        usual.labels("b")
    assert Scrape.of(ours)._samples == Scrape.of(theirs)._samples
    assert Scrape.of(ours).text == Scrape.of(theirs).text


def test_a_value_may_count_several_times() -> None:
    registry = CollectorRegistry()
    histogram = StepHistogram("specinfer_x", "What.", BOUNDS, registry)
    histogram.observe(0.75, times=3)
    metrics = Scrape.of(registry)
    assert (metrics.value("x_count"), metrics.value("x_sum")) == (3, 2.25)
    assert (metrics.value("x_bucket", le="0.5"), metrics.value("x_bucket", le="1.0")) == (0, 3)


def test_an_undeclared_label_appears_when_observed() -> None:
    registry = CollectorRegistry()
    histogram = StepHistogram("specinfer_x", "What.", BOUNDS, registry, "who")
    assert Scrape.of(registry).value("x_count", who="a") is None
    histogram.observe(2, "a")
    assert Scrape.of(registry).value("x_count", who="a") == 1


@pytest.mark.parametrize("labels", [(), ("service", "speculator")])
def test_a_scrape_is_that_of_the_usual_counter(labels: tuple[str, ...]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    step = StepCounter("specinfer_x", "What.", labels, ours)
    usual = Counter("specinfer_x", "What.", labels, registry=theirs)
    for amount in (1, 2.5, 0):
        step.add(amount, *labels)
        (usual.labels(*labels) if labels else usual).inc(amount)
    assert Scrape.of(ours).text == Scrape.of(theirs).text


def test_a_registry_refuses_a_second_metric_of_a_name() -> None:
    registry = CollectorRegistry()
    StepCounter("specinfer_x", "What.", (), registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Counter("specinfer_x", "What.", registry=registry)
    StepHistogram("specinfer_y", "What.", BOUNDS, registry)
    with pytest.raises(ValueError, match="Duplicated"):
        StepHistogram("specinfer_y", "What.", BOUNDS, registry)
