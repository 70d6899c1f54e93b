"""The compiled kernels: equal to the oracle on ragged random trees, and the same bit for bit whatever
else is in the pass."""

import numpy as np
import pytest
import torch

from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from tests.support.tiny_models import SPECIAL, runner_of, tiny_transformers

pytestmark = pytest.mark.native

SHAPE = {
    "head_dim": 32,
    "hidden_size": 96,
    "intermediate_size": 152,
    "num_attention_heads": 6,
    "sliding_window": 20,
}
DTYPES = ["float32", "bfloat16"]


def make(executor: str, dtype: str = "float32", family: str = "llama", vocabulary: int = 97) -> ModelRunner:
    model = tiny_transformers(family, **SHAPE, vocab_size=vocabulary)
    return runner_of(model, executor=executor, dtype=dtype, kv_tokens=8192)


def random_segments(runner: ModelRunner, seed: int, requests: int) -> list[Segment]:
    """Ragged contexts already read, then ragged deltas and random trees."""
    rng = np.random.default_rng(seed)
    sequences = [runner.open() for _ in range(requests)]
    lengths = rng.integers(1, 120, requests)
    runner.forward(
        [Segment(s, rng.integers(0, 97, n).tolist()) for s, n in zip(sequences, lengths, strict=True)]
    )
    segments = []
    for sequence in sequences:
        nodes = int(rng.integers(0, 40))
        parents = [int(rng.integers(-1, i)) for i in range(nodes)]
        delta = rng.integers(0, 97, int(rng.integers(1, 20))).tolist()
        segments.append(
            Segment(sequence, delta, rng.integers(0, 97, nodes).tolist(), parents, want_last=True)
        )
    return segments


@pytest.mark.parametrize("window", [1, 3, 16, 37])
@pytest.mark.parametrize("family", SPECIAL)
def test_families_with_trees_deeper_than_windows_equal_the_oracle(family: str, window: int) -> None:
    model = tiny_transformers(family, **(SHAPE | {"sliding_window": window}))
    found, expected = (
        runner.forward(random_segments(runner, window, 5))
        for runner in (runner_of(model, executor=name, kv_tokens=8192) for name in ("native", "torch"))
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("vocabulary", [97, 128])  # of whole vectors: logits are streamed past the caches
@pytest.mark.parametrize("seed", range(4))
def test_ragged_random_trees_equal_the_oracle(seed: int, vocabulary: int) -> None:
    torch_runner, native = (make(executor, vocabulary=vocabulary) for executor in ("torch", "native"))
    expected = torch_runner.forward(random_segments(torch_runner, seed, 5))
    found = native.forward(random_segments(native, seed, 5))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "opt", "gpt_neox", *SPECIAL])
def test_a_tree_a_chain_and_single_steps_agree_bit_for_bit(family: str, dtype: str) -> None:
    """Losslessness in bfloat16 rests on this: no near-tie can flip between a 1- and a 30-token pass."""
    rng = np.random.default_rng(1)
    prompt, path = rng.integers(0, 97, 45).tolist(), rng.integers(0, 97, 6).tolist()
    runner = make("native", dtype, family)
    plain = runner.open()
    single = [runner.forward([Segment(plain, prompt, want_last=True)])[0]]
    single += [runner.forward([Segment(plain, [token], want_last=True)])[0] for token in path]

    chain = runner.open()
    (at_once,) = runner.forward([Segment(chain, prompt, path, range(-1, 5), want_last=True)])
    assert torch.equal(at_once, torch.cat(single))

    # the same path scattered through a tree of 30 nodes, prompt read in chunks, strangers in the batch
    nodes, places = rng.integers(0, 97, 30).tolist(), [3, 7, 12, 13, 20, 29]
    parents = [int(rng.integers(-1, node)) for node in range(30)]
    for depth, place in enumerate(places):
        nodes[place], parents[place] = path[depth], -1 if depth == 0 else places[depth - 1]
    tree = runner.open()
    runner.forward([Segment(tree, prompt[:17])])
    strangers = random_segments(runner, 2, 3)
    (scattered, *_) = runner.forward([Segment(tree, prompt[17:], nodes, parents, want_last=True), *strangers])
    assert torch.equal(scattered[[0, *(place + 1 for place in places)]], torch.cat(single))

    # and after the path was committed, the next step
    runner.cache.commit(tree, places)
    (after,) = runner.forward([Segment(tree, [5], want_last=True)])
    assert torch.equal(after, runner.forward([Segment(plain, [5], want_last=True)])[0])


@pytest.mark.parametrize("weights", ["bf16", "q8_0", "q4_1"])
def test_however_many_rows_each_is_as_if_alone(weights: str) -> None:
    """Rows go by pieces and deep matrices by turns, all of which differ with their number."""
    shape = {"head_dim": 32, "hidden_size": 288, "intermediate_size": 320, "num_attention_heads": 6}
    model = tiny_transformers("llama-untied", **shape)
    runner = runner_of(model, executor="native", dtype="bfloat16", weights=weights, kv_tokens=8192)
    sequence = runner.open()
    runner.forward([Segment(sequence, [3, 14, 15, 92])])

    def logits(nodes: list[int]) -> torch.Tensor:
        (found,) = runner.forward([Segment(sequence, [], nodes, [-1] * len(nodes))])
        runner.cache.commit(sequence, [])
        return found

    alone = [logits([node]) for node in range(26)]
    for rows in range(2, 27):
        assert torch.equal(logits(list(range(rows))), torch.cat(alone[:rows])), f"{rows} rows"


def test_the_number_of_threads_changes_nothing() -> None:
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            runner = make("native", "bfloat16")
            results.append(torch.cat(runner.forward(random_segments(runner, 5, 4))))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_bfloat16_is_as_close_to_float32_as_torch_is() -> None:
    exact = make("torch")
    expected = torch.cat(exact.forward(random_segments(exact, 7, 4)))

    def distance(executor: str) -> float:
        runner = make(executor, "bfloat16")
        return float((torch.cat(runner.forward(random_segments(runner, 7, 4))) - expected).abs().mean())

    assert distance("native") < 1.2 * distance("torch")


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "olmo3"])
def test_prefill_in_any_chunks_gives_the_same_bits(family: str) -> None:
    tokens = np.random.default_rng(3).integers(0, 97, 150).tolist()
    runner = make("native", "bfloat16", family)
    whole = runner.open()
    (expected,) = runner.forward([Segment(whole, tokens, want_last=True)])
    for size in (1, 7, 16, 64):
        sequence = runner.open()
        for start in range(0, 150, size):
            (found,) = runner.forward([Segment(sequence, tokens[start : start + size], want_last=True)])
        assert torch.equal(found, expected)
