"""Mixtures of experts in the kernels: rows with other experts in the pass do not change a row's result."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from specinfer.errors import IncompatibleError
from specinfer.model.batch import Segment
from specinfer.model.families.experts import Experts
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.families import in_llama_names
from tests.support.effort import effort
from tests.support.models.block_models import EMBEDDING, FormattedWeights, stored
from tests.support.tiny_models import MIXTURES, reference_logits, runner_of, tiny_transformers

pytestmark = pytest.mark.native
SHAPE = {"head_dim": 16, "intermediate_size": 88}
SEEDS = range(effort(6, 20))
PROMPT = np.random.default_rng(1).integers(3, 97, 21).tolist()
ROWS = 40


def native(model: Any, **options: Any) -> ModelRunner:
    return runner_of(model, executor="native", **options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", MIXTURES)
def test_greedy_text_is_that_of_transformers(family: str, seed: int) -> None:
    model = tiny_transformers(family, seed, **SHAPE)
    runner = native(model)
    sequence, tokens, delta = runner.open(), [*PROMPT], PROMPT
    for _ in range(12):
        (logits,) = runner.forward([Segment(sequence, delta, want_last=True)])
        expected = reference_logits(model, tokens)[-1]
        assert int(logits.argmax()) == int(expected.argmax())
        delta = [int(expected.argmax())]
        tokens += delta


@pytest.mark.parametrize("executor", ["native", "torch"])
def test_queries_keys_and_values_are_bounded(executor: str) -> None:
    model, free = (tiny_transformers("olmoe", clip_qkv=bound, **SHAPE) for bound in (0.4, None))
    runner = runner_of(model, executor=executor)
    (logits,) = runner.forward([Segment(runner.open(), PROMPT, want_last=True)])
    expected, other = (reference_logits(bounded, PROMPT)[-1] for bounded in (model, free))
    torch.testing.assert_close(logits[0], expected, rtol=1e-3, atol=1e-3)
    assert float((expected - other).abs().max()) > 0.1, "the bound matters"
    with pytest.raises(IncompatibleError, match="kv_window = 64:"):
        runner_of(model, executor=executor, kv_window=64)


def test_a_bound_must_be_positive() -> None:
    with pytest.raises(IncompatibleError, match=r"clip_qkv = 0\.0:"):
        runner_of(tiny_transformers("olmoe", clip_qkv=0.0, **SHAPE))


def along_path(runner: ModelRunner, path: Sequence[int]) -> torch.Tensor:
    """Return the logits [1, V] after the prompt and a path of tokens, decoded one by one."""
    sequence = runner.open()
    (logits,) = runner.forward([Segment(sequence, PROMPT, want_last=True)])
    for token in path:
        (logits,) = runner.forward([Segment(sequence, [token], want_last=True)])
    runner.cache.release(sequence)
    return logits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", MIXTURES)
@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(max_examples=effort(4, 20))
def test_a_tree_of_any_shape_is_decoding_along_its_paths(
    family: str, dtype: str, data: st.DataObject, seed: int
) -> None:
    runner = native(tiny_transformers(family, seed % 7, **SHAPE), dtype=dtype)
    count = data.draw(st.integers(1, 16))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(count)]
    tokens = np.random.default_rng(seed).integers(3, 97, count).tolist()
    tree = runner.open()
    (rows_of_tree,) = runner.forward([Segment(tree, PROMPT, tokens, parents, want_last=True)])
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), tokens[node]])
    for row, path in enumerate([[], *paths]):
        assert torch.equal(rows_of_tree[row : row + 1], along_path(runner, path)), (parents, row)


FORMATS = ("bf16", "q8_0", "q4_1", "Q4_K", "Q6_K")
"""Formats by which weights are quantised, and types of blocks that files have."""


def rows_of(runner: ModelRunner, sequence: Any, tokens: list[int]) -> torch.Tensor:
    (rows,) = runner.forward([Segment(sequence, [], tokens, [-1] * len(tokens))])
    runner.cache.commit(sequence, [])
    return rows


def native_blocks(model: Any, kind: str, **options: Any) -> ModelRunner:
    """Return a runner whose matrices, except embeddings, are random blocks of a type."""
    config = from_transformers(model.config)
    weights = in_llama_names(config, {name: tensor.detach() for name, tensor in model.state_dict().items()})
    blocks = {
        name: (kind, stored(kind, tensor.float().numpy()))
        for name, tensor in weights.items()
        if tensor.dim() == 2 and tensor.shape[1] % 256 == 0 and name != EMBEDDING
    }
    native_options = RunnerOptions(executor="native", **options)
    runner = ModelRunner.build(config, FormattedWeights(weights, blocks), native_options)
    assert runner.weights.counts[kind] > 20, runner.weights
    return runner


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("family", ["qwen2_moe", "mixtral"])
def test_other_rows_and_the_number_of_threads_do_not_change_a_row(family: str, weights: str) -> None:
    """Rows of one expert are computed in pieces, and threads divide columns and experts by the number of rows."""
    shape = {"head_dim": 32, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
    model, options = tiny_transformers(family, **shape), {"dtype": "bfloat16", "kv_tokens": 4096}
    if weights.isupper():
        runner = native_blocks(model, weights, **options)
    else:
        runner = native(model, weights=weights, **options)
    sequence = runner.open()
    runner.forward([Segment(sequence, PROMPT)])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = [rows_of(runner, sequence, [token]) for token in range(ROWS)]
        assert len({tuple(row[0].tolist()) for row in alone}) == ROWS, "a negative control: rows differ"
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            for rows in (1, 2, 3, 5, 8, 13, 19, ROWS):
                actual = rows_of(runner, sequence, list(range(rows)))
                assert torch.equal(actual, torch.cat(alone[:rows])), f"{rows} rows, {threads} threads"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe"])
def test_a_prompt_in_chunks_gives_the_same_bits(family: str) -> None:
    tokens = np.random.default_rng(3).integers(0, 97, 300).tolist()
    runner = native(tiny_transformers(family, **SHAPE), dtype="bfloat16", kv_tokens=4096)
    (expected,) = runner.forward([Segment(runner.open(), tokens, want_last=True)])
    for size in (7, 64, 299):
        sequence = runner.open()
        for start in range(0, 300, size):
            (logits,) = runner.forward([Segment(sequence, tokens[start : start + size], want_last=True)])
        assert torch.equal(logits, expected)


def test_matrices_of_experts_are_in_the_chosen_format_and_the_router_in_float32() -> None:
    model = tiny_transformers("qwen2_moe", head_dim=16, hidden_size=64, intermediate_size=256)
    formats = native(model, dtype="bfloat16", weights="q8_0").weights
    attention_and_head, experts, dense = 4 * 3 + 1, 3 * 6, 3 * 2
    shared, embeddings = 2, 1  # its third matrix has rows of 134 numbers
    assert formats.counts["Q8_0"] == attention_and_head + experts + dense + shared, formats
    assert formats.counts["BF16"] == 1 + embeddings, formats
    norms, biases, router, shared_gate = 2 * 3 + 1, 3 * 3, 1, 1
    assert formats.counts["F32"] == norms + biases + router + shared_gate, formats


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe"])
def test_offloaded_experts_give_the_same_bits(family: str, tmp_path: Path) -> None:
    model = tiny_transformers(family, **SHAPE)
    expected = along_path(native(model), [5, 6])
    offloaded = native(model, offload="disk", offload_directory=str(tmp_path))
    assert torch.equal(along_path(offloaded, [5, 6]), expected)


def test_torch_offloads_no_mixture_with_dense_layers(tmp_path: Path) -> None:
    model = tiny_transformers("qwen3_moe", **SHAPE)
    with pytest.raises(IncompatibleError, match="mixtures"):
        runner_of(model, offload="disk", offload_directory=str(tmp_path))


def test_a_shared_expert_may_have_no_gate() -> None:
    model = tiny_transformers("qwen2_moe", **SHAPE)
    config = from_transformers(model.config)
    assert config.experts is not None
    assert config.experts.gated_shared
    config = replace(config, experts=replace(config.experts, gated_shared=False))
    gate = "mlp.shared_expert_gate.weight"
    weights = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(gate)}
    logits_by_executor = []
    for executor in ("native", "torch"):
        runner = ModelRunner.build(
            config, weights, RunnerOptions("float32", kv_tokens=256, executor=executor)
        )
        logits_by_executor += runner.forward([Segment(runner.open(), PROMPT, want_last=True)])
    torch.testing.assert_close(*logits_by_executor, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(gate):
                parameter.zero_()  # a share of one half
            if ".shared_expert.down_proj" in name:
                parameter.mul_(2)
    torch.testing.assert_close(
        logits_by_executor[1][0], reference_logits(model, PROMPT)[-1], rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("used", [0, 7, None])
def test_a_wrong_number_of_experts_per_token_is_refused(used: Any) -> None:
    with pytest.raises(IncompatibleError, match=f"num_experts_per_tok = {used}:"):
        Experts(6, used, 8, renormalised=True)


@pytest.mark.parametrize(
    ("family", "field", "value", "reason"),
    [
        ("granitemoe", "num_local_experts", None, "num_local_experts = None:"),
        ("qwen3_moe", "num_local_experts", "8", "num_local_experts = '8':"),
        ("qwen3_moe", "decoder_sparse_step", 0, "decoder_sparse_step = 0:"),
        ("mixtral", "intermediate_size", 0, "intermediate_size = 0:"),
    ],
)
def test_a_wrong_field_of_a_mixture_is_named(family: str, field: str, value: Any, reason: str) -> None:
    hf = AutoConfig.for_model(family)
    object.__setattr__(hf, field, value)
    with pytest.raises(IncompatibleError, match=reason):
        from_transformers(hf)
