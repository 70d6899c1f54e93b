"""The gpu executor on a real device: captured passes and growths, every type, weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specinfer.model.batch import Segment, flatten
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.task import GrowthShape
from specinfer.model.gpu.graphs import bucket_for
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.files import SafetensorsWeights
from specinfer.request.sampling import GREEDY
from specinfer.tree import TokenTree, TreeLimits
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.unit.model.gpu.passes import DEVICE
from tests.unit.model.gpu.test_executor import segments
from tests.unit.model.gpu.test_growth import CUT, NOISY, VOCABULARY, assert_same, tasks_for

pytestmark = pytest.mark.gpu

MODEL = tiny_transformers(
    "llama",
    hidden_size=256,
    intermediate_size=512,
    head_dim=64,
    num_attention_heads=8,
    num_key_value_heads=2,
    num_hidden_layers=4,
)
TYPES = ("float32", "float16", "bfloat16")
ROUNDING = 1.5
"""Maximum error against float32 on the CPU, relative to the torch executor's error in the same type."""
LIMITS = [TreeLimits(12, 4), TreeLimits(5, 5), TreeLimits(30, 3), TreeLimits(1, 1)]
SAMPLINGS = [GREEDY, NOISY, CUT, GREEDY]


def on_device(dtype: str = "float32", **options: str) -> ModelRunner:
    return runner_of(MODEL, executor="gpu", device=DEVICE, dtype=dtype, kv_tokens=4096, **options)


@pytest.mark.parametrize("dtype", TYPES)
def test_captured_passes_round_as_little_as_the_torch_executor(dtype: str) -> None:
    """The pass runs twice: the second is a replay of the graph with other numbers. The error is the root mean square
    over all logits."""
    kinds = {"executor": "torch", "kv_tokens": 4096}
    ours, exact = on_device(dtype), runner_of(MODEL, **kinds)
    theirs = runner_of(MODEL, device=DEVICE, dtype=dtype, **kinds)
    for seed in (1, 2):
        actual, rounded, expected = (
            torch.cat([logits.cpu() for logits in runner.forward(segments(runner, seed))])
            for runner in (ours, theirs, exact)
        )
        error, usual = ((rows - expected).square().mean().sqrt() for rows in (actual, rounded))
        assert error <= max(ROUNDING * usual, 1e-3)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_replayed_pass_is_the_pass_itself(dtype: str) -> None:
    runner = on_device(dtype)
    executor: Any = runner._executor
    sequence = runner.open()
    runner.cache.reserve(sequence, 9)
    batch = flatten([Segment(sequence, [5, 17, 2, 80, 33], [7, 8, 9], [-1, 0, 0], want_last=True)])
    with torch.inference_mode():
        replayed, bucket = executor.run(batch), bucket_for(batch, executor._group)
        assert bucket in executor._graphs._captured
        run = executor._replayed(bucket)[: len(replayed)]
    torch.testing.assert_close(replayed, run, rtol=0, atol=1e-5)


def grow(runner: ModelRunner, reference: bool, rounds: int) -> list[TokenTree]:
    """Return the trees of several rounds on one cache; later rounds replay the captured sequence."""
    shape, trees = GrowthShape(beam=4), list[TokenTree]()
    sequences = [runner.open() for _ in LIMITS]
    for round_ in range(rounds):
        tasks = tasks_for(sequences, round_, LIMITS, SAMPLINGS)
        for task in tasks:
            runner.cache.reserve(task.sequence, len(task.delta) + shape.scored_nodes(task.limits))
        if reference:
            trees += ReferenceGrowth(runner.forward, shape, VOCABULARY).grow(tasks)
            for sequence in sequences:
                runner.cache.commit(sequence, ())
        else:
            trees += runner.grow(tasks, shape, VOCABULARY)
        runner.cache.check()
    return trees


def test_captured_growths_are_those_of_the_reference() -> None:
    for actual, expected in zip(grow(on_device(), False, 3), grow(on_device(), True, 3), strict=True):
        assert_same(actual, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_growths_in_sixteen_bits_have_most_nodes_of_the_reference(dtype: str) -> None:
    """Passes of other sizes round differently, so close candidates may swap ranks."""
    shared = wanted = 0
    for actual, expected in zip(
        grow(on_device(dtype), False, 3), grow(on_device(dtype), True, 3), strict=True
    ):
        paths = [{tree.sequence_of(node) for node in range(1, len(tree))} for tree in (actual, expected)]
        shared, wanted = shared + len(paths[0] & paths[1]), wanted + len(paths[1])
    assert shared > 0.8 * wanted


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_host_between_levels() -> None:
    runner = on_device()
    grow(runner, False, 1)
    executor: Any = runner._executor
    (levels,) = executor._growth._memory
    try:
        torch.cuda.set_sync_debug_mode("error")
        with torch.inference_mode():
            executor._growth._graphs.run(levels)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_weights_in_eight_bits_run_captured(kind: str) -> None:
    pytest.importorskip("torchao")
    ours, exact = on_device("bfloat16", weights=kind), on_device("bfloat16")
    for a, b in zip(ours.forward(segments(ours, 1)), exact.forward(segments(exact, 1)), strict=True):
        assert torch.nn.functional.cosine_similarity(a, b).min() > 0.9


def test_safetensors_are_read_to_the_device(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.arange(6.0)}, tmp_path / "model.safetensors")
    tensor = SafetensorsWeights(tmp_path, DEVICE)["a"]
    assert tensor.is_cuda
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]
