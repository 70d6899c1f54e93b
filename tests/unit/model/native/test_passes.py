"""Passes of the compiled kernels: equal to the torch executor, and to the bit independent of other requests."""

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
CACHES = [("float32", "auto"), ("bfloat16", "auto"), ("float32", "bf16"), ("bfloat16", "q8_0")]
"""(numeric type, storage of keys and values)"""


def make(
    executor: str,
    dtype: str = "float32",
    family: str = "llama",
    vocabulary: int = 97,
    kv_type: str = "auto",
) -> ModelRunner:
    model = tiny_transformers(family, **SHAPE, vocab_size=vocabulary, max_position_embeddings=2048)
    return runner_of(model, executor=executor, dtype=dtype, kv_tokens=8192, kv_type=kv_type)


def random_segments(runner: ModelRunner, seed: int, requests: int, longest: int = 120) -> list[Segment]:
    """Read ragged contexts; return segments with ragged deltas and random trees."""
    rng = np.random.default_rng(seed)
    sequences = [runner.open() for _ in range(requests)]
    lengths = rng.integers(1, longest, requests)
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
    actual, expected = (
        runner.forward(random_segments(runner, window, 5))
        for runner in (runner_of(model, executor=name, kv_tokens=8192) for name in ("native", "torch"))
    )
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("vocabulary", [97, 128])  # of whole vectors: logits are streamed past the caches
@pytest.mark.parametrize("seed", range(4))
def test_ragged_random_trees_equal_the_oracle(seed: int, vocabulary: int) -> None:
    torch_runner, native = (make(executor, vocabulary=vocabulary) for executor in ("torch", "native"))
    expected = torch_runner.forward(random_segments(torch_runner, seed, 5))
    actual = native.forward(random_segments(native, seed, 5))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_trees_over_several_segments_equal_the_oracle() -> None:
    """Contexts have up to three segments of 512 positions."""
    oracle, native = make("torch"), make("native")
    expected = torch.cat(oracle.forward(random_segments(oracle, 3, 4, 1400)))
    actual = torch.cat(native.forward(random_segments(native, 3, 4, 1400)))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_cache_in_bytes_rounds_a_few_times_as_much_as_bfloat16() -> None:
    """Its error is the sum of errors of 8-bit keys, queries and values; bfloat16 has nine bits."""
    oracle = make("torch")
    expected = torch.cat(oracle.forward(random_segments(oracle, 3, 4, 1400)))

    def distance(kv_type: str) -> float:
        runner = make("native", kv_type=kv_type)
        return float((torch.cat(runner.forward(random_segments(runner, 3, 4, 1400))) - expected).abs().mean())

    assert distance("bf16") < distance("q8_0") < 5 * distance("bf16")


@pytest.mark.parametrize(("dtype", "kv_type"), CACHES)
@pytest.mark.parametrize(
    ("family", "length"),
    [
        *((family, 45) for family in ("llama", "opt", "gpt_neox", *SPECIAL)),
        *(
            (family, length) for family in ("llama", "gemma2") for length in (507, 1022)
        ),  # into the next segment
    ],
)
def test_a_tree_a_chain_and_single_steps_agree_bit_for_bit(
    family: str, length: int, dtype: str, kv_type: str
) -> None:
    """Losslessness in bfloat16 depends on this: no near-tie may flip between passes of 1 and 30 tokens."""
    rng = np.random.default_rng(1)
    prompt, path = rng.integers(0, 97, length).tolist(), rng.integers(0, 97, 6).tolist()
    runner = make("native", dtype, family, kv_type=kv_type)
    plain = runner.open()
    single = [runner.forward([Segment(plain, prompt, want_last=True)])[0]]
    single += [runner.forward([Segment(plain, [token], want_last=True)])[0] for token in path]

    chain = runner.open()
    (at_once,) = runner.forward([Segment(chain, prompt, path, range(-1, 5), want_last=True)])
    assert torch.equal(at_once, torch.cat(single))

    # the same path scattered in a tree of 30 nodes, the prompt read in chunks, other requests in the batch
    nodes, places = rng.integers(0, 97, 30).tolist(), [3, 7, 12, 13, 20, 29]
    parents = [int(rng.integers(-1, node)) for node in range(30)]
    for depth, place in enumerate(places):
        nodes[place], parents[place] = path[depth], -1 if depth == 0 else places[depth - 1]
    tree = runner.open()
    runner.forward([Segment(tree, prompt[:17])])
    others = random_segments(runner, 2, 3)
    (scattered, *_) = runner.forward([Segment(tree, prompt[17:], nodes, parents, want_last=True), *others])
    assert torch.equal(scattered[[0, *(place + 1 for place in places)]], torch.cat(single))

    # the next step after the path was committed
    runner.cache.commit(tree, places)
    (after,) = runner.forward([Segment(tree, [5], want_last=True)])
    assert torch.equal(after, runner.forward([Segment(plain, [5], want_last=True)])[0])


@pytest.mark.parametrize("weights", ["bf16", "q8_0", "q4_1"])
def test_the_number_of_rows_does_not_change_a_row(weights: str) -> None:
    """Rows are computed in pieces, and deep matrices in parts, both of which depend on the number of rows."""
    shape = {"head_dim": 32, "hidden_size": 288, "intermediate_size": 320, "num_attention_heads": 6}
    model = tiny_transformers("llama-untied", **shape)
    runner = runner_of(model, executor="native", dtype="bfloat16", weights=weights, kv_tokens=8192)
    sequence = runner.open()
    runner.forward([Segment(sequence, [3, 14, 15, 92])])

    def logits(nodes: list[int]) -> torch.Tensor:
        (rows,) = runner.forward([Segment(sequence, [], nodes, [-1] * len(nodes))])
        runner.cache.commit(sequence, [])
        return rows

    alone = [logits([node]) for node in range(26)]
    for rows in range(2, 27):
        assert torch.equal(logits(list(range(rows))), torch.cat(alone[:rows])), f"{rows} rows"


@pytest.mark.parametrize("kv_type", ["auto", "q8_0"])
@pytest.mark.parametrize(("requests", "longest"), [(4, 120), (1, 2000), (3, 2000)])
def test_the_number_of_threads_changes_nothing(requests: int, longest: int, kv_type: str) -> None:
    """It changes the division of the work, and whether the segments of a context are divided among threads."""
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            runner = make("native", "bfloat16", kv_type=kv_type)
            results.append(torch.cat(runner.forward(random_segments(runner, 5, requests, longest))))
    finally:
        torch.set_num_threads(before)
    for actual in results[1:]:
        assert torch.equal(results[0], actual)


def test_bfloat16_is_as_close_to_float32_as_torch_is() -> None:
    exact = make("torch")
    expected = torch.cat(exact.forward(random_segments(exact, 7, 4)))

    def distance(executor: str) -> float:
        runner = make(executor, "bfloat16")
        return float((torch.cat(runner.forward(random_segments(runner, 7, 4))) - expected).abs().mean())

    assert distance("native") < 1.2 * distance("torch")


@pytest.mark.parametrize("kv_type", ["auto", "q8_0"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "olmo3"])
def test_prefill_in_any_chunks_gives_the_same_bits(family: str, kv_type: str) -> None:
    tokens = np.random.default_rng(3).integers(0, 97, 700).tolist()
    runner = make("native", "bfloat16", family, kv_type=kv_type)
    whole = runner.open()
    (expected,) = runner.forward([Segment(whole, tokens, want_last=True)])
    for size in (7, 16, 64, 511):
        sequence = runner.open()
        for start in range(0, 700, size):
            (logits,) = runner.forward([Segment(sequence, tokens[start : start + size], want_last=True)])
        assert torch.equal(logits, expected)
