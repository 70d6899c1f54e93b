"""Models with recurrent layers: the state of a node depends only on its path."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from specinfer.errors import ExhaustedError
from specinfer.model.batch import Segment
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.recurrent_states import RecurrentStates
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from tests.support import tiny_models
from tests.support.effort import effort
from tests.support.models.families import random_model
from tests.support.tiny_models import reference_logits

FAMILIES = (
    *("qwen3_5_text", "qwen3_next", "lfm2", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h"),
    "olmo_hybrid",
)
COMPILED = (
    *("qwen3_5_text", "qwen3_next, dense", "lfm2", "granitemoehybrid, dense", "granitemoehybrid"),
    *("falcon_h1", "falcon_h1, normed", "mamba2"),
)
"""Families that the compiled kernels support."""
DELTA_RULE = ("qwen3_5_text", "qwen3_next, dense")
"""Families compared in float64: float32 passes of `transformers` differ from it by up to 2e-3, ours by up to 8e-4."""
TOLERANCES = {**dict.fromkeys(DELTA_RULE, 2e-3), "qwen3_next": 5e-3}
"""Tolerances above 2e-4 (`qwen3_next`: in float64 its router may choose other experts). Wrong states are off by 0.2."""
CLEAR_CHOICE = 1e-4
"""Lead of an expert that rounding cannot change; a lead of 2e-7 gave logits off by 1.7."""
RUNS = [
    *((family, "generic") for family in FAMILIES),
    *(pytest.param(family, "native", marks=pytest.mark.native) for family in COMPILED),
]
OPTIONS = RunnerOptions(dtype="float32", kv_tokens=512)
TOKENS = st.integers(3, 96)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {family: random_model(family) for family in {*FAMILIES, *COMPILED}}


def runner_of(model: Any, executor: str = "generic") -> ModelRunner:
    if executor == "native":
        return tiny_models.runner_of(model, executor=executor, kv_tokens=512)
    return ModelRunner.wrap(copy.deepcopy(model), model.config, OPTIONS)


class RouterMargin(TorchFunctionMode):
    """Notes the least lead of an expert that a router chose over one that it did not."""

    least = float("inf")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.topk, torch.Tensor.topk):
            count, ranked = result[0].shape[-1], args[0].sort(-1, descending=True).values
            if count < ranked.shape[-1]:
                lead = ranked[..., count - 1] - ranked[..., count]
                self.least = min(self.least, float(lead.min()))
        return result


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[list[int], list[int], list[int]]]:
    """Draw context tokens, nodes and their parents of one to four steps."""
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        delta = draw(st.lists(TOKENS, min_size=1, max_size=20))
        nodes = draw(st.lists(TOKENS, max_size=6))
        rows.append((delta, nodes, [draw(st.integers(-1, place - 1)) for place in range(len(nodes))]))
    return rows


@pytest.mark.parametrize(("family", "executor"), RUNS)
@settings(max_examples=effort(3, 20), deadline=None)
@given(data=st.data())
def test_trees_equal_plain_passes(
    family: str, executor: str, models: dict[str, Any], data: st.DataObject
) -> None:
    """Two requests in one batch; after each step one of the tree's paths is committed.

    Where a router's choice is within rounding, another order of sums may choose another expert: not compared.
    """
    model = models[family]
    runner = runner_of(model, executor)
    precise = copy.deepcopy(model).double() if family in DELTA_RULE else model
    tolerance = TOLERANCES.get(family, 2e-4)
    plans = [data.draw(steps()), data.draw(steps())]
    sequences = [runner.open() for _ in plans]
    for turn in range(max(map(len, plans))):
        taking = [place for place, plan in enumerate(plans) if turn < len(plan)]
        before = {place: list(sequences[place].tokens) for place in taking}
        segments = [Segment(sequences[place], *plans[place][turn], want_last=True) for place in taking]
        for place, logits in zip(taking, runner.forward(segments), strict=True):
            delta, nodes, parents = plans[place][turn]
            context = [*before[place], *delta]
            paths: list[list[int]] = []
            for node, parent in enumerate(parents):
                paths.append([*(paths[parent] if parent >= 0 else []), node])
            for row, path in zip(logits, [[], *paths], strict=True):
                with RouterMargin() as margin:
                    wanted = reference_logits(precise, [*context, *(nodes[node] for node in path)])[-1]
                assume(margin.least > CLEAR_CHOICE)
                torch.testing.assert_close(row, wanted.float(), rtol=tolerance, atol=tolerance)
            runner.cache.commit(sequences[place], data.draw(st.sampled_from([[], *paths])))
        runner.cache.check()
    states = states_of(runner)
    assert states.needed == len(plans), "one after each context"
    for sequence in sequences:
        runner.cache.release(sequence)
    assert states.needed == 0


def states_of(runner: ModelRunner) -> RecurrentStates[Any]:
    states = runner.cache.states
    assert states is not None
    return states


@pytest.mark.parametrize(("family", "executor"), RUNS)
def test_a_cached_prompt_is_continued(family: str, executor: str, models: dict[str, Any]) -> None:
    """The prompt's last whole block is shared, together with the state after it."""
    model = models[family]
    runner = runner_of(model, executor)
    prompt = [3 + 7 * place % 90 for place in range(2 * BLOCK_TOKENS + 5)]
    first, again = runner.open(), runner.open()
    runner.forward([Segment(first, prompt, want_last=True)])
    runner.cache.release(first)
    assert runner.cache.share(again, prompt) == 2 * BLOCK_TOKENS
    (logits,) = runner.forward([Segment(again, prompt[2 * BLOCK_TOKENS :], want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(model, prompt)[-1], rtol=2e-4, atol=2e-4)
    shorter = runner.open()
    assert runner.cache.share(shorter, prompt[: BLOCK_TOKENS + 3]) == 0, "no state after the first block"
    states_of(runner).shrink(0)
    runner.cache.release(again)
    states_of(runner).shrink(0)
    assert runner.cache.share(runner.open(), prompt) == 0, "its state was dropped"


class Storage:
    def move(self, source: Any, target: Any) -> None:
        """Do nothing."""

    def rotate(self, slots: Any, delta: int) -> None:
        """Do nothing."""


def test_states_are_bounded_by_memory_except_for_a_single_request() -> None:
    states: RecurrentStates[str] = RecurrentStates()
    cache = PagedKVCache(16, Storage(), states=states)
    states.limit = 8
    first, second = cache.open(), cache.open()
    for sequence in (first, second):
        cache.reserve(sequence, 1)
        states[sequence.slots(0, 1)[0]] = "state"
        cache.append(sequence, [5])
    cache.reserve(first, 1, 3)
    with pytest.raises(ExhaustedError, match="a request needs 3 more, 1 are free"):
        cache.reserve(second, 1, 1)
    cache.reserve(first, 1, 2)
    cache.release(second)
    cache.reserve(first, 1, 50)


def test_a_state_at_the_end_of_two_contexts_stays_until_both_have_grown() -> None:
    states: RecurrentStates[str] = RecurrentStates()
    one, two, end = KVSequence(), KVSequence(), BLOCK_TOKENS - 1
    states[end] = "shared"
    states.extend(one, None, [], end)
    states.extend(two, None, [], end)
    states.extend(one, end, [], 20)
    states.shrink(0)
    assert end in states
    states.extend(two, end, [], 21)
    assert (end in states, states.needed) == (True, 0)
    states.shrink(0)
    assert end not in states


def cache_of(blocks: int, limit: int) -> tuple[PagedKVCache, RecurrentStates[str]]:
    states: RecurrentStates[str] = RecurrentStates()
    states.limit = limit
    return PagedKVCache(blocks, Storage(), states=states), states


def write(states: RecurrentStates[str], sequence: KVSequence, start: int, stop: int) -> None:
    """Write a state after each of these positions."""
    for slot in sequence.slots(start, stop):
        states[slot] = "state"


def test_requests_that_are_refused_or_released_reserve_nothing() -> None:
    cache, states = cache_of(blocks=2, limit=8)
    first, second = cache.open(), cache.open()
    cache.reserve(first, 20)
    write(states, first, 19, 20)
    cache.append(first, [5] * 20)
    for _ in range(9):  # as a request that is repeated
        with pytest.raises(ExhaustedError, match="KV cache full"):
            cache.reserve(cache.open(), 1, 4)
        with pytest.raises(ExhaustedError, match="KV cache full"):
            cache.reserve(second, 1, 4)
        cache.release(second)
        second = cache.open()
    cache.reserve(first, 1, 5)
    cache.trim(first)
    cache.release(first)
    cache.reserve(second, 1, 5)


def test_a_node_that_was_rejected_at_the_end_of_a_block_leaves_no_state() -> None:
    """Otherwise a longer delta, which writes no state there, would store the block with the node's state."""
    cache, states = cache_of(blocks=4, limit=64)
    sequence = cache.open()
    cache.reserve(sequence, 14, 2)
    write(states, sequence, 13, 16)
    cache.append(sequence, [5] * 14)
    cache.add_nodes(sequence, [6, 7], [-1, -1])
    cache.commit(sequence, ())
    assert sequence.slots(15, 16)[0] not in states
    cache.reserve(sequence, 0, 2)
    write(states, sequence, 14, 16)
    cache.add_nodes(sequence, [6, 7], [-1, -1])
    cache.release(sequence)
    assert not len(states)


def test_a_tree_that_grows_in_several_passes_keeps_its_reserved_room() -> None:
    """A tree may exceed the memory limit if its request is the only one."""
    for limit, nodes, requests in ((6, 3, 1), (8, 2, 2), (2, 20, 1)):
        cache, states = cache_of(blocks=8, limit=limit)
        growing = [cache.open() for _ in range(requests)]
        for sequence in growing:
            cache.reserve(sequence, 1, nodes)
        for sequence in growing:
            cache.reserve(sequence, 1)
            write(states, sequence, 0, 1)
            cache.append(sequence, [5])
        for node in range(nodes):
            for sequence in growing:
                cache.reserve(sequence, 0, 1)
                write(states, sequence, node + 1, node + 2)
                cache.add_nodes(sequence, [6], [-1])
        for sequence in growing:
            cache.commit(sequence, ())
        assert states.needed == requests


def test_a_pass_that_fails_leaves_no_states(models: dict[str, Any]) -> None:
    runner = runner_of(models["mamba2"])
    sequence = runner.open()
    runner.forward([Segment(sequence, [5, 6, 7], want_last=True)])
    failing = runner._executor._recurrent.modules[-1]  # type: ignore[attr-defined]

    def fail(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("no memory")

    failing.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        runner.forward([Segment(sequence, [8, 9], [10], [-1], want_last=True)])
    assert states_of(runner).needed == 1
