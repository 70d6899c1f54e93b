"""Recurrent layers of the compiled kernels: bits do not depend on chunks of the text or on other requests."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from specinfer.errors import ExhaustedError, IncompatibleError, SettingError
from specinfer.model.batch import Segment
from specinfer.model.cache.recurrent_states import RecurrentStates
from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.model.loading import load_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.check import probe_loaded
from specinfer.model.runner import ModelRunner
from tests.support.effort import effort
from tests.support.models.families import random_model
from tests.support.tiny_models import reference_logits, runner_of

pytestmark = pytest.mark.native

MIXTURES = ("qwen3_5_moe_text", "qwen3_next", "granitemoehybrid")
FAMILIES = (
    *("qwen3_5_text", "qwen3_next, dense", "lfm2", "granitemoehybrid, dense"),
    *("falcon_h1", "falcon_h1, normed", "mamba2", *MIXTURES),
)
SEEDS = range(effort(6, 20))


def make(family: str, dtype: str = "float32", seed: int = 0, **changes: Any) -> ModelRunner:
    model = random_model(family, seed, **changes)
    return runner_of(model, executor="native", dtype=dtype, kv_tokens=4096)


def tokens_of(seed: int, count: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(3, 97, count).tolist()
    return tokens


def plain(runner: ModelRunner, tokens: list[int]) -> torch.Tensor:
    """Return logits [T, V] after each token, read one by one."""
    sequence = runner.open()
    rows = [runner.forward([Segment(sequence, [token], want_last=True)])[0] for token in tokens]
    runner.cache.release(sequence)
    return torch.cat(rows)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_are_those_of_transformers(family: str, seed: int) -> None:
    model = random_model(family, seed)
    runner = runner_of(model, executor="native")
    text = tokens_of(seed, 5)
    sequence, new = runner.open(), text
    for _ in range(40):
        (logits,) = runner.forward([Segment(sequence, new, want_last=True)])
        reference = reference_logits(model, text)[-1]
        torch.testing.assert_close(logits[0], reference, rtol=1e-3, atol=1e-3)
        new = [int(logits[0].argmax())]
        assert new == [int(reference.argmax())]
        text = [*text, *new]


@pytest.mark.parametrize("family", FAMILIES)
def test_states_that_decay_slowly_are_those_of_transformers(family: str) -> None:
    """States of random weights decay within a few tokens; here each token still matters in the next blocks."""
    model, tokens = random_model(family), tokens_of(1, 45)
    for name, weight in model.named_parameters():
        if name.endswith("A_log"):
            weight.data.fill_(-4.0)
    actual = plain(runner_of(model, executor="native"), tokens)
    torch.testing.assert_close(actual, reference_logits(model, tokens), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=effort(5, 60), deadline=None)
@given(data=st.data())
def test_any_tree_gives_the_bits_of_plain_decoding(family: str, dtype: str, data: st.DataObject) -> None:
    """Contexts are read in random chunks, trees of up to 16 nodes in up to two passes, then a path is committed."""
    seed = data.draw(st.sampled_from(SEEDS))
    runner = make(family, dtype, seed)
    context = tokens_of(seed, data.draw(st.integers(1, 40)))
    cuts = sorted({0, *data.draw(st.lists(st.integers(1, len(context)), max_size=3)), len(context)})
    nodes = tokens_of(seed + 1, data.draw(st.integers(1, 16)))
    parents = [data.draw(st.integers(max(-1, node - 3), node - 1)) for node in range(len(nodes))]
    first = data.draw(st.integers(0, len(nodes)))
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])

    sequence, other = runner.open(), runner.open()
    rows = []
    for start, stop in pairwise(cuts):
        last = stop == len(context)
        grown = (nodes[:first], parents[:first]) if last else ((), ())
        other_segment = Segment(other, tokens_of(stop, 3), want_last=True)
        rows.append(
            runner.forward([other_segment, Segment(sequence, context[start:stop], *grown, want_last=True)])[1]
        )
    if first < len(nodes):
        rows.append(runner.forward([Segment(sequence, (), nodes[first:], parents[first:])])[0])
    actual = torch.cat(rows)[len(cuts) - 2 :]
    for row, path in zip(actual, [[], *paths], strict=True):
        assert torch.equal(row, plain(runner, [*context, *(nodes[node] for node in path)])[-1])

    path = data.draw(st.sampled_from([[], *paths]))
    runner.cache.commit(sequence, path)
    runner.cache.check()
    (after,) = runner.forward([Segment(sequence, [5, 6], [7], [-1], want_last=True)])
    text = [*context, *(nodes[node] for node in path), 5, 6, 7]
    assert torch.equal(after, plain(runner, text)[-2:])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_deep_chain_of_nodes_crosses_blocks(family: str) -> None:
    """Forty nodes in one pass, then in passes of seven; the states at two ends of blocks have children."""
    runner = make(family, "bfloat16")
    context, chain = tokens_of(1, 11), tokens_of(2, 40)
    wanted = plain(runner, [*context, *chain])[10:]
    for size in (40, 7):
        sequence = runner.open()
        (logits,) = runner.forward([Segment(sequence, context, want_last=True)])
        rows = [logits]
        for start in range(0, 40, size):
            part = chain[start : start + size]
            parents = range(start - 1, start - 1 + len(part))
            rows += runner.forward([Segment(sequence, (), part, parents)])
        assert torch.equal(torch.cat(rows), wanted)
        runner.cache.commit(sequence, range(40))
        (after,) = runner.forward([Segment(sequence, [5], want_last=True)])
        assert torch.equal(after, plain(runner, [*context, *chain, 5])[-1:])


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_and_threads_change_nothing(family: str) -> None:
    tokens, before, results = tokens_of(3, 150), torch.get_num_threads(), []
    try:
        for threads, size in ((1, 150), (2, 150), (3, 16), (7, 5), (2, 33), (1, 1)):
            torch.set_num_threads(threads)
            runner = make(family, "bfloat16")
            sequence = runner.open()
            for start in range(0, 150, size):
                (logits,) = runner.forward([Segment(sequence, tokens[start : start + size], want_last=True)])
            results.append(logits)
    finally:
        torch.set_num_threads(before)
    for logits in results[1:]:
        assert torch.equal(logits, results[0])


@pytest.mark.parametrize("length", [32, 37, 48])
def test_a_request_that_was_preempted_or_shares_a_prompt_continues_with_the_same_bits(length: int) -> None:
    runner = make("qwen3_5_text")
    text = tokens_of(4, length)
    wanted = plain(runner, [*text, 9])[-1]
    for chunk in (length, 16, 1):
        states_of(runner).shrink(0)
        first = runner.open()
        for start in range(0, length, chunk):
            runner.forward([Segment(first, text[start : start + chunk], want_last=True)])
        runner.cache.release(first)
        again = runner.open()
        shared = runner.cache.share(again, text)
        assert shared == length // BLOCK_TOKENS * BLOCK_TOKENS
        (actual,) = runner.forward([Segment(again, [*text[shared:], 9], want_last=True)])
        assert torch.equal(actual[0], wanted)
        runner.cache.release(again)


def test_a_path_that_ends_with_a_block_is_shared() -> None:
    """The state after the last node is computed when a request continues from it, here by each of three."""
    runner = make("qwen3_5_text")
    text = tokens_of(5, 16)
    first = runner.open()
    runner.forward([Segment(first, text[:12], text[12:], [-1, 0, 1, 2])])
    runner.cache.commit(first, range(4))
    second, third = runner.open(), runner.open()
    for sequence in (second, third):
        assert runner.cache.share(sequence, text) == 16
    actual = runner.forward(
        [Segment(path_sequence, [9], want_last=True) for path_sequence in (second, third, first)]
    )
    wanted = plain(runner, [*text, 9])[-1:]
    assert all(torch.equal(row, wanted) for row in actual)


def states_of(runner: ModelRunner) -> RecurrentStates[Any]:
    states = runner.cache.states
    assert states is not None
    return states


def test_sixteen_nodes_count_as_one_state() -> None:
    runner = make("qwen3_5_text")
    states = states_of(runner)
    states.limit = 6
    first, second = runner.open(), runner.open()
    runner.forward([Segment(first, [5], tokens_of(1, 17), [-1] * 17)])
    assert (states.needed, len(states)) == (3, 18)
    runner.forward([Segment(second, [5])])
    with pytest.raises(ExhaustedError, match="needs 4 more, 2 are free"):
        runner.cache.reserve(second, 1, 32)
    runner.cache.commit(first, [3])
    assert (states.needed, len(states)) == (2, 2)
    runner.cache.reserve(second, 1, 32)


def test_states_at_ends_of_blocks_inside_a_tree_are_counted() -> None:
    """A node at the end of a block has a whole state, as its children need it."""
    runner = make("qwen3_5_text")
    states = states_of(runner)
    states.limit = 14
    first, second, parents = runner.open(), runner.open(), [-1] * 8 + list(range(8))
    runner.forward([Segment(second, [5])])
    runner.forward([Segment(first, tokens_of(1, 15), tokens_of(2, 16), parents)])
    made = len({state.base.address for state in states._states.values() if state.base})
    assert (made, states.needed) == (8, 2 + 1 + 8)
    with pytest.raises(ExhaustedError, match="a request needs 11 more, 3 are free"):
        runner.cache.reserve(second, 14, 16, parents)
    runner.cache.commit(first, [0, 8])
    assert states.needed == 2
    runner.cache.reserve(second, 14, 16, parents)


def test_memory_is_used_again() -> None:
    runner = make("qwen3_5_text")
    recurrent = runner._executor._recurrent  # type: ignore[attr-defined]
    for _ in range(5):
        sequence = runner.open()
        runner.forward([Segment(sequence, tokens_of(1, 20), tokens_of(2, 9), range(-1, 8))])
        runner.cache.release(sequence)
        states_of(runner).shrink(0)
    assert len(recurrent._tokens) == 4 + 9, "those of one request"
    assert len(recurrent._bases) == 1


def test_prefixes_in_files_are_refused(tmp_path: Any) -> None:
    with pytest.raises(SettingError, match="recurrent layers"):
        make("qwen3_5_text").keep_prefixes(tmp_path, "model", 1 << 20)


def test_trees_are_grown_level_by_level() -> None:
    assert not make("qwen3_5_text")._executor.can_grow((), None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_5_moe_text"])
def test_the_text_part_of_a_model_for_images_is_run(family: str, tmp_path: Path) -> None:
    """Its tensors have the prefix `language_model`; those of images and of MTP are ignored."""
    model = random_model(family)
    weights = {
        name.replace("model.", "model.language_model.", 1): tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight" or not model.config.tie_word_embeddings
    }
    weights |= {"mtp.norm.weight": torch.zeros(64), "model.visual.pos_embed.weight": torch.zeros(4, 8)}
    save_file(weights, tmp_path / "model.safetensors")
    mixture, text = family == "qwen3_5_moe_text", model.config.to_dict()
    if mixture:
        del text["intermediate_size"]  # only models with dense layers have it
    kind = transformers.Qwen3_5MoeConfig if mixture else transformers.Qwen3_5Config
    kind(text_config=text).save_pretrained(tmp_path)
    loaded = load_model(tmp_path, RunnerOptions(dtype="float32", kv_tokens=512))
    assert probe_loaded(tmp_path, loaded).executor == "native"
    runner, tokens = ModelRunner(*loaded), tokens_of(1, 20)
    (logits,) = runner.forward([Segment(runner.open(), tokens, want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(model, tokens)[-1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("family", "change", "reason"),
    [
        ("lfm2", {"conv_bias": True}, "conv_bias = True"),
        ("qwen3_5_text", {"attention_bias": True}, "attention_bias = True"),
        ("granitemoehybrid, dense", {"time_step_limit": (0.0, 1.0)}, "time_step_limit"),
        ("qwen3_5_text", {"linear_key_head_dim": 8}, "recurrent heads have key size 8 and value size 32"),
    ],
)
def test_unsupported_fields_are_named(family: str, change: dict[str, Any], reason: str) -> None:
    with pytest.raises((IncompatibleError, SettingError), match=reason):
        make(family, **change)


def test_granite_without_positions() -> None:
    model = random_model("granitemoehybrid, dense", position_embedding_type=None)
    runner, tokens = runner_of(model, executor="native"), tokens_of(2, 40)
    (logits,) = runner.forward([Segment(runner.open(), tokens, want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(model, tokens)[-1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_next"])
def test_layers_on_disk_give_the_same_bits(family: str, tmp_path: Path) -> None:
    model, tokens = random_model(family), tokens_of(3, 40)
    offload = {"offload": "disk", "offload_directory": str(tmp_path)}
    actual = [
        runner.forward([Segment(runner.open(), tokens, want_last=True)])[0]
        for runner in (runner_of(model, executor="native", **options) for options in ({}, offload))
    ]
    assert torch.equal(*actual)


@pytest.mark.parametrize("family", FAMILIES)
def test_options_for_attention_only_refuse_such_models(family: str) -> None:
    model = random_model(family)
    with pytest.raises(IncompatibleError, match="kv_window = 64:"):
        runner_of(model, executor="native", kv_window=64)
    with pytest.raises(SettingError, match="recurrent layers"):
        runner_of(model, executor="torch")
