"""EAGLE gives the logits of its training module, and its checkpoints have the published layout."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from specinfer.drafters.eagle import EagleRunner
from specinfer.drafters.published.eagle3 import load_eagle, save_eagle
from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.drafting.stack import DraftStack, DraftWeights, RowsTask
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.options import RunnerOptions
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.families import EMBEDDING
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.training.eagle_student import EagleStudent, starting_tensors
from specinfer.training.feature_students import UnrolledBatch, UnrolledRows
from specinfer.tree import TokenTree, TreeLimits
from tests.support.tiny_models import tiny_transformers

LAYERS, VOCABULARY = 3, 40
CHAIN = TreeLimits(4, 4, 1)
TORCH = RunnerOptions(dtype="float32", executor="torch", kv_tokens=256)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def eagle(request: pytest.FixtureRequest) -> tuple[ModelConfig, DraftWeights, torch.Tensor]:
    """Return (the target's configuration, random weights, draft vocabulary)."""
    model = tiny_transformers(request.param)
    config, weights = from_transformers(model.config), model.state_dict()
    token_ids = torch.arange(3, 3 + 2 * VOCABULARY, 2)
    tensors = starting_tensors(config, weights, LAYERS, token_ids)
    generator = torch.Generator().manual_seed(1)
    noisy = {n: t + torch.randn(t.shape, generator=generator) for n, t in tensors.items()}
    layer_config = replace(config, layers=1, vocab_size=VOCABULARY, tied_embeddings=False)
    return config, DraftWeights(layer_config, noisy | {EMBEDDING: weights[EMBEDDING]}), token_ids


def states_of(tokens: int, seed: int, config: ModelConfig) -> torch.Tensor:
    shape = (tokens, LAYERS, config.hidden_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def unrolled(
    eagle: tuple[ModelConfig, DraftWeights, torch.Tensor],
    tokens: list[int],
    states: torch.Tensor,
    chain: list[int],
) -> list[torch.Tensor]:
    """Return the training module's logits at the end of a context and along a chain after it."""
    config, weights, _ = eagle
    student = EagleStudent(config, weights.tensors[EMBEDDING], weights.tensors)
    # in step k the token of the last row is the chain's token k
    padded = torch.cat([states, torch.zeros(len(chain), *states.shape[1:], dtype=states.dtype)])
    row = torch.tensor([len(states) - 1])
    empty = torch.zeros(0)
    steps = tuple(UnrolledRows(row, empty, empty, empty) for _ in range(len(chain) + 1))
    batch = UnrolledBatch(torch.tensor([tokens[1:] + chain]), padded[None], steps)
    with torch.inference_mode():
        return [logits[0] for logits in student(batch)]


def grow(runner: EagleRunner, token_ids: torch.Tensor, tasks: list[RowsTask]) -> list[TokenTree]:
    shape = GrowthShape()
    for item in tasks:
        rows = len(item.task.delta) + shape.scored_nodes(item.task.limits)
        runner.cache.reserve(item.task.sequence, rows)
    return runner.grow(tasks, shape, token_ids)


def test_a_drafted_chain_equals_the_prediction_of_the_unrolled_module(
    eagle: tuple[ModelConfig, DraftWeights, torch.Tensor],
) -> None:
    """Two requests of different lengths share a batch; the first continues after half of its chain was accepted.

    Negative control: the same hidden states with tokens one position too early.
    """
    config, weights, token_ids = eagle
    runner = EagleRunner.build(weights, TORCH)
    contexts = [[5, 9, 11, 30, 4, 8], [7, 3, 60, 61]]
    states = [states_of(len(c) - 1, seed, config) for seed, c in enumerate(contexts)]
    sequences = [runner.cache.open() for _ in contexts]
    tasks = [
        RowsTask(GrowthTask(sequence, context[1:], CHAIN, GREEDY, offset=1), true_states)
        for sequence, context, true_states in zip(sequences, contexts, states, strict=True)
    ]
    trees = grow(runner, token_ids, tasks)
    for tree, context, true_states in zip(trees, contexts, states, strict=True):
        chain = tree.token_ids[1:].tolist()
        expected = [int(token_ids[row.argmax()]) for row in unrolled(eagle, context, true_states, chain[:-1])]
        assert chain == expected
        assert len(set(chain)) > 1, "a model with only one guess would prove nothing"
        early = [context[0], *context[:-1]]
        assert [int(token_ids[r.argmax()]) for r in unrolled(eagle, early, true_states, chain[:-1])] != chain

    accepted = trees[0].token_ids[1:3].tolist()
    context = [*contexts[0], *accepted, 12]
    more = states_of(3, 7, config)
    (tree,) = grow(
        runner,
        token_ids,
        [RowsTask(GrowthTask(sequences[0], context[len(contexts[0]) :], CHAIN, GREEDY, offset=1), more)],
    )
    chain = tree.token_ids[1:].tolist()
    rows = unrolled(eagle, context, torch.cat([states[0], more]), chain[:-1])
    assert chain == [int(token_ids[row.argmax()]) for row in rows]


def test_scores_of_a_tree_are_the_modules_probabilities(
    eagle: tuple[ModelConfig, DraftWeights, torch.Tensor],
) -> None:
    config, weights, token_ids = eagle
    runner = EagleRunner.build(weights, TORCH)
    context, states = [5, 9, 11, 30], states_of(3, 0, config)
    task = GrowthTask(runner.cache.open(), context[1:], TreeLimits(9, 3), GREEDY, offset=1)
    (tree,) = grow(runner, token_ids, [RowsTask(task, states)])
    assert max(len(path_to(tree, node)) for node in range(len(tree))) >= 2
    for node in range(1, len(tree)):
        path = [int(tree.token_ids[n]) for n in path_to(tree, node)]
        row = unrolled(eagle, context, states, path[:-1])[-1]
        place = token_ids.tolist().index(path[-1])
        assert tree.scores[node] == pytest.approx(float((row / 0.75).softmax(-1)[place]), abs=1e-5)


def test_noise_depends_on_the_position_in_the_context(
    eagle: tuple[ModelConfig, DraftWeights, torch.Tensor],
) -> None:
    """A drafter that lacks the first hidden states sees the same noise as one that has all of them."""
    config, weights, token_ids = eagle
    sampling = Sampling(temperature=1.0, seed=5)
    tokens = []
    for offset in (1, 1, 4):
        runner = EagleRunner.build(weights, TORCH)
        task = GrowthTask(runner.cache.open(), [9, 11, 30], CHAIN, sampling, offset=offset)
        tokens.append(grow(runner, token_ids, [RowsTask(task, states_of(3, 0, config))])[0])
    assert tokens[0].token_ids.tolist() == tokens[1].token_ids.tolist() != tokens[2].token_ids.tolist()


def path_to(tree: TokenTree, node: int) -> list[int]:
    path = []
    while node:
        path.append(node)
        node = int(tree.parents[node])
    return path[::-1]


def target_directory(tmp_path: Path, model: Any) -> Path:
    directory = tmp_path / "target"
    model.save_pretrained(directory)
    return directory


def test_checkpoints_are_read_as_they_were_written(tmp_path: Path) -> None:
    model = tiny_transformers("llama")
    target = target_directory(tmp_path, model)
    config, token_ids = from_transformers(model.config), torch.tensor([3, 5, 8, 90])
    tensors = starting_tensors(config, model.state_dict(), 2, token_ids)
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_eagle(tmp_path / "e", tensors, token_ids, (1, 3), target, "tiny", {"seed": 1})
    stored = load_file(tmp_path / "e" / "model.safetensors")
    assert {"fc.weight", "norm.weight", "layers.0.hidden_norm.weight", "d2t", "t2d"} <= set(stored)
    assert stored["layers.0.self_attn.q_proj.weight"].shape[1] == 2 * config.hidden_size
    assert stored["t2d"].nonzero()[:, 0].tolist() == token_ids.tolist()
    layer = load_eagle(tmp_path / "e", target)
    assert layer.token_ids.tolist() == token_ids.tolist()
    assert layer.weights.layers == (1, 3)
    assert set(layer.weights.tensors) == {EMBEDDING, *tensors}
    assert all(torch.equal(layer.weights.tensors[name], tensors[name]) for name in tensors)


def test_in_four_bits_a_checkpoint_has_the_numbers_of_q4_0_and_the_targets_head(tmp_path: Path) -> None:
    model = tiny_transformers("llama", head_dim=32, hidden_size=96, intermediate_size=160)
    target = target_directory(tmp_path, model)
    weights, token_ids = model.state_dict(), torch.tensor([3, 5, 8, 90])
    tensors = starting_tensors(from_transformers(model.config), weights, 2, token_ids)
    tensors = {
        n: t + torch.randn(t.shape, generator=torch.Generator().manual_seed(2)) for n, t in tensors.items()
    }
    save_eagle(tmp_path / "e", tensors, token_ids, (1, 3), target, "tiny", {}, four_bits=True)
    layer = load_eagle(tmp_path / "e", target)
    assert set(layer.weights.tensors) == {EMBEDDING, *tensors}
    for name, tensor in tensors.items():
        read = layer.weights.tensors[name]
        if name in ("model.norm.weight", "lm_head.weight"):
            assert torch.equal(read, output_rows(weights, name, token_ids)), "the target's"
        elif tensor.ndim == 2:
            type_name = "Q8_0" if name == "fc.weight" else "Q4_0"
            kind = gguf.GGMLQuantizationType[type_name]
            blocks = gguf.quantize(tensor.numpy(), kind)
            assert (read.numpy() == gguf.dequantize(blocks, kind)).all()
            assert (gguf.quantize(read.numpy(), kind) == blocks).all(), (
                "so that the kernels multiply what is stored"
            )
        else:
            assert torch.equal(read, tensor.to(torch.bfloat16))
    stored = load_file(tmp_path / "e" / "model.safetensors")
    assert not any("lm_head" in name or name == "norm.weight" for name in stored)
    assert sum(t.nbytes for n, t in stored.items() if "proj" in n) < 0.6 * sum(
        t.numel() for n, t in tensors.items() if "proj" in n and t.ndim == 2
    )


@pytest.mark.parametrize("tokens", [[3, 5, 8, 97], [-1, 5, 8, 90], [3, 3, 8, 90]])
@pytest.mark.parametrize("four_bits", [False, True])
def test_tokens_that_the_target_does_not_have_are_refused(
    tokens: list[int], four_bits: bool, tmp_path: Path
) -> None:
    """Rows of the target's head would be read outside its file."""
    model = tiny_transformers("llama", head_dim=32, hidden_size=96, intermediate_size=160)
    target, token_ids = target_directory(tmp_path, model), torch.tensor([3, 5, 8, 90])
    tensors = starting_tensors(from_transformers(model.config), model.state_dict(), 2, token_ids)
    save_eagle(tmp_path / "e", tensors, token_ids, (1, 3), target, "tiny", {}, four_bits)
    file = tmp_path / "e" / "model.safetensors"
    save_file(load_file(file) | {"d2t": torch.tensor(tokens) - torch.arange(4)}, file)
    with pytest.raises(IncompatibleError, match="e: d2t must give distinct target tokens below 97"):
        load_eagle(tmp_path / "e", target)


@pytest.mark.parametrize("executor", ["torch", pytest.param("native", marks=pytest.mark.native)])
@pytest.mark.parametrize("name", ["fc.weight", "layers.0.mlp.up_proj.weight"])
def test_a_tensor_that_a_checkpoint_lacks_is_named(name: str, executor: str, tmp_path: Path) -> None:
    model = tiny_transformers("llama", head_dim=32, hidden_size=96, intermediate_size=160)
    target, token_ids = target_directory(tmp_path, model), torch.tensor([3, 5, 8, 90])
    tensors = starting_tensors(from_transformers(model.config), model.state_dict(), 2, token_ids)
    save_eagle(tmp_path / "e", tensors, token_ids, (1, 3), target, "tiny", {})
    file = tmp_path / "e" / "model.safetensors"
    stored = load_file(file)
    del stored[name]
    save_file(stored, file)
    weights = load_eagle(tmp_path / "e", target).weights
    with pytest.raises(IncompatibleError, match=rf"weights lack (model\.)?{name}"):
        EagleRunner.build(weights, RunnerOptions(kv_tokens=256, executor=executor))


def output_rows(weights: dict[str, torch.Tensor], name: str, token_ids: torch.Tensor) -> torch.Tensor:
    return weights[name] if "norm" in name else weights[EMBEDDING][token_ids]


@pytest.mark.native
def test_a_checkpoint_in_four_bits_is_served_so(tmp_path: Path) -> None:
    model = tiny_transformers("llama", head_dim=32, hidden_size=96, intermediate_size=160)
    target, token_ids = target_directory(tmp_path, model), torch.arange(40)
    tensors = starting_tensors(from_transformers(model.config), model.state_dict(), 2, token_ids)
    options, trees = RunnerOptions(kv_tokens=256, numbers_as="q8_0"), []
    for four_bits in (True, False):
        save_eagle(tmp_path / "e", tensors, token_ids, (1, 3), target, "tiny", {}, four_bits)
        weights = load_eagle(tmp_path / "e", target).weights
        for asked in ("auto", "q4_0", "q8_0"):
            runner = EagleRunner.build(weights, replace(options, weights=asked))
            config = weights.config
            states = torch.randn(3, 2, config.hidden_size, generator=torch.Generator().manual_seed(0))
            task = GrowthTask(runner.cache.open(), [1, 2, 3], CHAIN, GREEDY)
            trees.append(grow(runner, token_ids, [RowsTask(task, states.to(torch.bfloat16))])[0])
    scores = [tree.scores.tolist() for tree in trees]
    assert scores[0] == scores[1] != scores[2], "four bits: auto is q4_0"
    assert scores[3] == scores[5] != scores[4], "otherwise auto is q8_0"


def test_a_checkpoint_of_another_library_loads(tmp_path: Path) -> None:
    """The layout of the `speculators` library: own embeddings, no fingerprint, default layers, original tensor
    names."""
    model = tiny_transformers("llama", num_hidden_layers=8)
    target = target_directory(tmp_path, model)
    config = from_transformers(model.config)
    tensors = starting_tensors(config, model.state_dict(), 3, torch.arange(97))
    renamed = {"hidden_norm.weight": "layers.0.hidden_norm.weight", "model.norm.weight": "norm.weight"}
    stored = {renamed.get(n, n.removeprefix("model.")): t.clone() for n, t in tensors.items()}
    stored["embed_tokens.weight"] = model.state_dict()["model.embed_tokens.weight"] + 1
    directory = tmp_path / "published"
    directory.mkdir()
    save_file(stored, directory / "model.safetensors")
    config_of_layer = model.config.to_diff_dict() | {"model_type": "llama", "num_hidden_layers": 1}
    written = published_config(config_of_layer, norm_before_residual=True)
    (directory / "config.json").write_text(json.dumps(written))
    layer = load_eagle(directory, target)
    assert layer.weights.layers == (2, 4, 5)
    assert layer.weights.norm_before_residual
    assert torch.equal(layer.weights.tensors[EMBEDDING], stored["embed_tokens.weight"])
    assert layer.token_ids.tolist() == list(range(97))
    save_file(stored | {"input_norm.weight": torch.ones(3)}, directory / "model.safetensors")
    with pytest.raises(IncompatibleError, match=r"input_norm\.weight"):
        load_eagle(directory, target)
    DraftStack(layer.weights, torch.float32, "cpu", 4)


def published_config(layer: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a `config.json` as the `speculators` library writes it."""
    return {
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": 97,
        "eagle_aux_hidden_state_layer_ids": None,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "org/model", "architectures": ["LlamaForCausalLM"]},
        },
    } | fields


@pytest.mark.parametrize(
    ("fields", "layer", "reason"),
    [
        ({"norm_before_fc": True}, {}, "norm_before_fc = True:"),
        ({"fc_norm": True}, {}, "fc_norm = True:"),
        ({"norm_output": True}, {}, "norm_output = True:"),
        ({"mood": 1}, {}, "mood = 1:"),
        ({"eagle_aux_hidden_state_layer_ids": [5, 2]}, {}, "must be in ascending order"),
        ({}, {"num_hidden_layers": 2}, "num_hidden_layers = 2:"),
    ],
)
def test_unsupported_fields_of_a_published_layer_are_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], layer: dict[str, Any], reason: str
) -> None:
    model = tiny_transformers("llama", num_hidden_layers=8)
    target, directory = target_directory(tmp_path, model), tmp_path / "published"
    directory.mkdir()
    layer_fields = model.config.to_diff_dict() | {"model_type": "llama", "num_hidden_layers": 1} | layer
    (directory / "config.json").write_text(json.dumps(published_config(layer_fields, **fields)))
    with pytest.raises(IncompatibleError, match=reason):
        load_eagle(directory, target)


def test_another_kind_and_another_target_are_refused(tmp_path: Path) -> None:
    model = tiny_transformers("llama")
    target = target_directory(tmp_path, model)
    ids = torch.arange(4)
    tensors = starting_tensors(from_transformers(model.config), model.state_dict(), 1, ids)
    save_eagle(tmp_path / "e", tensors, ids, (3,), target, "tiny", {})
    other = target_directory(tmp_path / "other", tiny_transformers("llama", seed=1))
    with pytest.raises(IncompatibleError, match="embeddings"):
        load_eagle(tmp_path / "e", other)
    config = json.loads((tmp_path / "e" / "config.json").read_text())
    (tmp_path / "e" / "config.json").write_text(json.dumps(config | {"speculators_model_type": "ssm"}))
    with pytest.raises(IncompatibleError, match="speculators_model_type = 'ssm':"):
        load_eagle(tmp_path / "e", target)


def test_on_a_gpu_the_layer_runs_in_torch(
    eagle: tuple[ModelConfig, DraftWeights, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specinfer.drafters.eagle.is_cuda", lambda device: True)
    options = RunnerOptions(dtype="float32", kv_tokens=256)
    assert isinstance(EagleRunner.build(eagle[1], options)._model, DraftStack)
    with pytest.raises(
        SettingError, match=r"weights = 'q8_0': .* an EAGLE layer on a GPU is stored unquantised"
    ):
        EagleRunner.build(eagle[1], replace(options, dtype="bfloat16", weights="q8_0"))
