"""Stored hidden states of cache entries: through compaction, sharing, windows, and late requests for them."""

import numpy as np
import pytest
import torch

from specinfer.errors import SettingError
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.runner import ModelRunner
from specinfer.verification.features import features_of
from tests.support.tiny_models import runner_of, tiny_generic, tiny_transformers

LAYERS = (1, 3)
HIDDEN = 32
ALL = 2**20


def runner(**options: object) -> ModelRunner:
    return runner_of(tiny_transformers("llama"), **options)


def expected(tokens: list[int], since: int = 0) -> torch.Tensor:
    """Return hidden states [tokens - since, layers, hidden] of a fresh pass over all tokens."""
    fresh = runner()
    _, (states,) = fresh.forward_with_features([Segment(fresh.open(), tokens)], LAYERS)
    return states[since:]


def read(
    it: ModelRunner,
    sequence: KVSequence,
    accepted: tuple[int, ...] = (),
    since: int = 0,
    max_bytes: int = ALL,
) -> tuple[int, torch.Tensor]:
    span = features_of(it.features, it.cache, sequence, accepted, since, max_bytes)
    states = np.frombuffer(span.data, np.int16).copy().reshape(-1, len(LAYERS), HIDDEN)
    return span.start, torch.from_numpy(states).view(torch.bfloat16)


def assert_same(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual.float(), wanted.float(), atol=0.05, rtol=0.02)


@pytest.mark.parametrize("executor", ["torch", pytest.param("native", marks=pytest.mark.native)])
def test_accepted_nodes_keep_their_states(executor: str) -> None:
    model = tiny_transformers("llama", head_dim=16)
    it = runner_of(model, executor=executor)
    it.keep_features(LAYERS)
    sequence, prompt = it.open(), [5, 9, 11]
    it.forward([Segment(sequence, prompt, [7, 20, 8, 30], [-1, -1, 1, 2])])
    accepted = (1, 2)  # tokens 20 and 8, which do not directly follow the prompt
    fresh = runner_of(model, executor=executor)
    _, (wanted,) = fresh.forward_with_features([Segment(fresh.open(), [*prompt, 20, 8])], LAYERS)
    start, before = read(it, sequence, accepted)
    it.cache.commit(sequence, accepted)
    _, after = read(it, sequence)
    assert start == 0
    assert torch.equal(before, after)
    assert_same(before, wanted)
    _, last = read(it, sequence, since=4)
    assert torch.equal(last, after[4:])


def test_a_shared_prompt_has_the_states_of_the_first_request() -> None:
    it = runner()
    it.keep_features(LAYERS)
    prompt = list(range(3, 3 + 40))
    it.forward([Segment(it.open(), prompt)])
    second = it.open()
    known = it.cache.share(second, prompt[:-1])
    assert known == 32
    it.forward([Segment(second, prompt[known:])])
    start, states = read(it, second)
    assert start == 0
    assert_same(states, expected(prompt))


def test_tokens_computed_before_states_were_requested_have_none() -> None:
    it = runner()
    sequence, prompt = it.open(), list(range(3, 12))
    it.forward([Segment(sequence, prompt)])
    it.keep_features(LAYERS)
    it.forward([Segment(sequence, [50, 51])])
    start, states = read(it, sequence)
    assert start == len(prompt)
    assert_same(states, expected([*prompt, 50, 51], len(prompt)))


def test_a_slot_that_is_written_without_states_has_none() -> None:
    """A block that is used again must not keep hidden states of another request."""
    it = runner(kv_tokens=32)
    it.keep_features(LAYERS)
    first = it.open()
    it.forward([Segment(first, list(range(3, 30)))])
    it.cache.release(first)
    second = it.open()
    it.cache.reserve(second, 20)
    it.features.forget(second.slots(0, 20))  # as a pass without features does
    it.cache.append(second, list(range(40, 60)))
    start, states = read(it, second)
    assert (start, len(states)) == (20, 0)


def test_a_change_of_layers_drops_stored_states() -> None:
    it = runner()
    it.keep_features((2, 3))
    sequence = it.open()
    it.forward([Segment(sequence, [3, 4, 5])])
    it.keep_features(LAYERS)
    assert len(read(it, sequence)[1]) == 0


def test_states_of_a_window_begin_after_its_gap() -> None:
    it = runner(kv_window=32)
    it.keep_features(LAYERS)
    sequence, tokens = it.open(), list(range(3, 3 + 80))
    for at in range(0, 80, 16):
        it.forward([Segment(sequence, tokens[at : at + 16])])
        it.cache.slide(sequence, 16)
    start, states = read(it, sequence)
    assert sequence.evicted > 0
    assert start == sequence.evicted + 16
    assert start + len(states) == 80
    assert len(read(it, sequence, since=75)[1]) == 5


def test_states_beyond_the_size_of_a_message_are_left_out() -> None:
    it = runner()
    it.keep_features(LAYERS)
    sequence = it.open()
    it.forward([Segment(sequence, list(range(3, 23)))])
    _, whole = read(it, sequence)
    start, part = read(it, sequence, since=4, max_bytes=3 * it.features.token_bytes + 1)
    assert start == 4
    assert torch.equal(part, whole[4:7])


def test_layers_that_do_not_exist_are_refused() -> None:
    it = runner()
    for layers in ([4], [2, 1], [1, 1]):
        with pytest.raises(SettingError, match=f"features = \\{layers}".replace("]", "\\]")):
            it.keep_features(layers)
    from specinfer.model.options import RunnerOptions

    model = tiny_generic("gpt2")
    generic = ModelRunner.wrap(model, model.config, RunnerOptions(dtype="float32", kv_tokens=64))
    assert generic.feature_layers == 0
    with pytest.raises(
        SettingError,
        match="generic executor",
    ):
        generic.keep_features([1])
