"""Models of mixed formats: a row's result has the same bits in every pass, however its context is computed."""

import numpy as np
import pytest
import torch

from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.runner import ModelRunner
from tests.support.models.block_models import mixed_model
from tests.support.models.block_products import BLOCK_BYTES

pytestmark = pytest.mark.native
PARTS = ("embed", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "head")
MIXES: dict[str, tuple[str, ...]] = {
    **{name: (name,) * 9 for name in BLOCK_BYTES},
    "q4_k_m": ("Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q4_K", "Q6_K", "Q6_K"),
    "small-rows": ("Q8_0", "Q5_0", "Q5_0", "Q8_0", "Q5_0", "Q4_K", "Q5_0", "Q6_K", "Q8_0"),
    "dynamic": ("Q5_K", "Q4_K", "Q5_K", "Q8_0", "IQ4_XS", "Q4_K", "Q6_K", "Q3_K", "Q2_K"),
    "mixed-numbers": ("F16", "F16", "Q4_K", "BF16", "Q5_1", "Q4_K", "F16", "BF16", "F16"),
    "numbers": ("BF16", "F32", "F16", "BF16", "F16", "BF16", "F32", "F32", "BF16"),
}
"""Name of a mix -> formats of `PARTS`."""
PROMPT = np.random.default_rng(1).integers(0, 97, 45).tolist()
ROWS = 40


@pytest.fixture(scope="module", params=sorted(MIXES))
def runner(request: pytest.FixtureRequest) -> ModelRunner:
    return mixed_model(dict(zip(PARTS, MIXES[request.param], strict=True)))


@pytest.fixture(scope="module")
def prompt(runner: ModelRunner) -> KVSequence:
    sequence = runner.open()
    runner.forward([Segment(sequence, PROMPT)])
    return sequence


@pytest.fixture(scope="module")
def alone(runner: ModelRunner, prompt: KVSequence) -> torch.Tensor:
    """Return the logits [40, V] after the prompt and one of 40 tokens, each computed in its own pass."""
    return torch.cat([siblings(runner, prompt, [token]) for token in range(ROWS)])


def siblings(runner: ModelRunner, sequence: KVSequence, nodes: list[int]) -> torch.Tensor:
    """Return the logits after each of the tokens, which are siblings after the sequence."""
    (rows,) = runner.forward([Segment(sequence, [], nodes, [-1] * len(nodes))])
    runner.cache.commit(sequence, [])
    return rows


def test_the_number_of_rows_does_not_change_a_row(
    runner: ModelRunner, prompt: KVSequence, alone: torch.Tensor
) -> None:
    assert len({tuple(row.tolist()) for row in alone}) == ROWS, "a negative control: rows differ"
    for rows in (*range(2, 20), 24, 25, 31, 33, ROWS):
        assert torch.equal(siblings(runner, prompt, list(range(rows))), alone[:rows]), f"{rows} rows"


def test_other_sequences_in_a_pass_do_not_change_a_row(runner: ModelRunner, alone: torch.Tensor) -> None:
    random = np.random.default_rng(2)
    for count in (2, 5, 11):
        sequences = [runner.open() for _ in range(count)]
        runner.forward([Segment(sequence, PROMPT) for sequence in sequences])
        unrelated = Segment(runner.open(), random.integers(0, 97, 3 * count).tolist(), want_last=True)
        segments = [Segment(sequence, [token], want_last=True) for token, sequence in enumerate(sequences)]
        (_, *actual) = runner.forward([unrelated, *segments])
        assert torch.equal(torch.cat(actual), alone[:count])
        for segment in (unrelated, *segments):
            runner.cache.release(segment.sequence)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_the_number_of_threads_changes_nothing(
    runner: ModelRunner, prompt: KVSequence, alone: torch.Tensor, threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(siblings(runner, prompt, [7]), alone[7:8])
        assert torch.equal(siblings(runner, prompt, list(range(19))), alone[:19])
    finally:
        torch.set_num_threads(before)


def test_a_tree_a_chain_and_single_steps_agree(runner: ModelRunner) -> None:
    random = np.random.default_rng(3)
    path = random.integers(0, 97, 5).tolist()
    steps = runner.open()
    single = [runner.forward([Segment(steps, PROMPT, want_last=True)])[0]]
    single += [runner.forward([Segment(steps, [token], want_last=True)])[0] for token in path]
    chain = runner.open()
    (at_once,) = runner.forward([Segment(chain, PROMPT, path, range(-1, 4), want_last=True)])
    assert torch.equal(at_once, torch.cat(single))
    nodes, places = random.integers(0, 97, 23).tolist(), [2, 6, 11, 12, 21]
    parents = [int(random.integers(-1, node)) for node in range(23)]
    for depth, place in enumerate(places):
        nodes[place], parents[place] = path[depth], -1 if depth == 0 else places[depth - 1]
    tree = runner.open()
    (scattered,) = runner.forward([Segment(tree, PROMPT, nodes, parents, want_last=True)])
    assert torch.equal(scattered[[0, *(place + 1 for place in places)]], torch.cat(single))
    for sequence in (steps, chain, tree):
        runner.cache.release(sequence)


def test_prefill_in_any_chunks_gives_the_same_bits(runner: ModelRunner) -> None:
    whole = runner.open()
    (expected,) = runner.forward([Segment(whole, PROMPT, want_last=True)])
    for size in (1, 2, 5, 16, 33):
        sequence = runner.open()
        for start in range(0, len(PROMPT), size):
            (logits,) = runner.forward([Segment(sequence, PROMPT[start : start + size], want_last=True)])
        assert torch.equal(logits, expected), f"chunks of {size}"
        runner.cache.release(sequence)
