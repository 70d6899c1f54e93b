"""The verifier measures the duration of its passes before serving."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.verification.pass_costs import measure_context, measure_passes, undisturbed
from tests.support.tiny_models import runner_of, tiny_generic, tiny_transformers

MODEL = tiny_transformers("llama")


def quick() -> Callable[[], float]:
    """Return a clock by which every pass takes a millisecond."""
    return itertools.count(0, 0.001).__next__


def test_every_size_is_measured_and_nothing_is_kept() -> None:
    runner = runner_of(MODEL, kv_tokens=2048)
    actual = dict(measure_passes(runner, clock=quick()))
    assert sorted(actual) == [1, 2, 4, 6, 7, 8, 10, 12, 13, 16, 18, 19, 24, 32, 48, 64]
    assert all(seconds > 0 for seconds in actual.values())
    runner.cache.check()
    assert runner.cache.free_tokens == runner.cache.capacity_tokens


def test_measured_rows_are_of_different_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal rows would choose the same experts of a mixture."""
    runner = runner_of(MODEL, kv_tokens=2048)
    forward, rows = runner.run, list[list[int]]()

    def spy(segments: Sequence[Segment]) -> list[torch.Tensor]:
        rows.extend(list(segment.nodes) for segment in segments)
        return forward(segments)

    monkeypatch.setattr(runner, "run", spy)
    measure_passes(runner, clock=quick())
    assert max(map(len, rows)) == 64
    assert all(len(set(nodes)) == len(nodes) for nodes in rows)


def test_a_small_cache_limits_the_sizes() -> None:
    runner = runner_of(MODEL, kv_tokens=64)
    assert max(tokens for tokens, _ in measure_passes(runner, clock=quick())) == 32
    runner.cache.check()


def test_a_model_of_few_positions_limits_them_too() -> None:
    runner = runner_of(tiny_transformers("llama", max_position_embeddings=24, vocab_size=5))
    assert max(tokens for tokens, _ in measure_passes(runner, clock=quick())) == 12
    runner.cache.check()


def test_after_the_time_limit_one_round_is_enough() -> None:
    readings = 0

    def clock() -> float:
        nonlocal readings
        readings += 1
        return readings / 8

    actual = measure_passes(runner_of(MODEL, kv_tokens=2048), budget_s=1.2, clock=clock)
    assert {seconds for _, seconds in actual} == {0.125}
    first, once, doubled = 2 * 2, 1 + 2 * 6 + 1, 2 * 2
    assert readings == first + 2 * once + doubled, (
        "few sizes of slow passes; twice one round and a reading of the time"
    )
    readings = 0
    measure_passes(runner_of(MODEL, kv_tokens=2048), budget_s=1e9, clock=clock)
    once = 1 + 2 * (8 * 5 + 2) + 7
    assert readings == first + 2 * once + doubled, "eight rounds at most, two of large passes"


TRUE = {1: 2.3, 4: 2.4, 8: 3.6, 16: 6.1, 32: 11.0}


def measured(*runs: dict[int, float]) -> tuple[dict[int, float], int]:
    """Return the result of `undisturbed` for these measurements, the last one repeated, and their number."""
    count = 0

    def measure() -> dict[int, float]:
        nonlocal count
        count += 1
        return runs[min(count, len(runs)) - 1]

    return undisturbed(measure), count


def slowed(factor: float, *sizes: int) -> dict[int, float]:
    return {size: cost * (factor if size in sizes else 1.0) for size, cost in TRUE.items()}


def test_a_quiet_start_is_measured_twice() -> None:
    assert measured(slowed(1.1, *TRUE), TRUE) == (TRUE, 2)


@pytest.mark.parametrize("sizes", [tuple(TRUE), (1,), (32,)])
def test_unstable_times_are_measured_until_they_repeat(sizes: tuple[int, ...]) -> None:
    assert measured(slowed(20.0, *sizes), TRUE) == (TRUE, 3)
    assert measured(TRUE, slowed(20.0, *sizes), TRUE) == (TRUE, 4)


def test_times_that_fall_with_more_tokens_are_measured_again() -> None:
    """In a reported case, passes of 1 to 16 tokens took longer than passes of 32 at the start."""
    fallen = slowed(20.0, 1, 4, 8, 16)
    assert measured(fallen, fallen, TRUE) == (TRUE, 4)


def test_a_machine_that_stays_disturbed_does_not_prevent_serving() -> None:
    fallen = slowed(20.0, 1)
    assert measured(fallen) == (fallen, 4)


def test_cheap_large_passes_are_measured_up_to_the_size_of_a_step() -> None:
    """By this clock every pass takes the same time, as on a GPU."""
    ticks = iter(range(10**6))
    runner = runner_of(MODEL, kv_tokens=2048)
    flat = measure_passes(runner, budget_s=0, clock=lambda: next(ticks) / 8, max_tokens=200)
    assert [tokens for tokens, _ in flat][-3:] == [64, 128, 200]
    runner.cache.check()
    assert runner.cache.free_tokens == runner.cache.capacity_tokens


def test_few_passes_of_a_second_are_run() -> None:
    """With offloaded weights, measuring all sizes would take minutes."""
    readings = 0

    def clock() -> float:
        nonlocal readings
        readings += 1
        return float(readings)

    seconds = measure_passes(runner_of(MODEL, kv_tokens=2048), clock=clock, max_tokens=300)
    assert seconds == [(1, 1.0), (16, 1.0), (64, 1.0), (128, 1.0), (256, 1.0)]
    assert readings == 2 * 2 + 2 * 5, "every pass once"


def test_a_pass_ends_when_its_logits_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device returns before it has computed the logits."""
    runner, fetched, cpu = runner_of(MODEL, kv_tokens=64), 0, torch.Tensor.cpu

    def late(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        nonlocal fetched
        fetched += 10**6
        return cpu(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "cpu", late)
    costs = measure_passes(runner, budget_s=0, clock=lambda: float(fetched))
    assert {seconds for _, seconds in costs} == {1e6}


def measured_context(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, per_token_s: float) -> float:
    """Measure with a clock that counts only rows and their context."""
    forward, now = runner.run, [0.0]

    def slow(segments: Sequence[Segment]) -> list[torch.Tensor]:
        for segment in segments:
            now[0] += len(segment.nodes) * (0.001 + per_token_s * segment.sequence.length)
        return forward(segments)

    monkeypatch.setattr(runner, "run", slow)
    return measure_context(runner, [(1, 0.001), (8, 0.008), (32, 0.032)], clock=lambda: now[0])


@pytest.mark.parametrize("executor", ["torch", "generic", "native"])
def test_the_cost_of_context_is_measured_and_nothing_is_kept(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if executor == "generic":
        model = tiny_generic("opt", max_position_embeddings=4096)
        runner = ModelRunner.wrap(model, model.config, RunnerOptions(dtype="float32", kv_tokens=2048))
    else:
        model = tiny_transformers("llama", max_position_embeddings=4096, head_dim=16)
        runner = runner_of(model, executor=executor, kv_tokens=2048)
    assert measured_context(runner, monkeypatch, 1e-6) == pytest.approx(1e-6)
    runner.cache.check()
    assert runner.cache.free_tokens == runner.cache.capacity_tokens
    assert not runner.cache.share(runner.open(), [0] * 64), "no prompt finds the empty context"


def test_a_context_that_does_not_fit_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    long = tiny_transformers("llama", max_position_embeddings=4096)
    short = tiny_transformers("llama", max_position_embeddings=512)
    for runner in (runner_of(long, kv_tokens=512), runner_of(short), runner_of(long, kv_window=64)):
        assert measured_context(runner, monkeypatch, 1e-6) == 0
