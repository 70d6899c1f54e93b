"""GGUF files of every family give the logits of `transformers`, with and without quantisation."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from specinfer.errors import IncompatibleError
from specinfer.model.batch import Segment
from specinfer.model.families import FAMILIES, GGUF
from specinfer.model.families.hybrid.mamba_gguf import decay_logarithms
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.check import probe_gguf
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.account import check_tensors, model_of
from specinfer.model.weights.config_files import from_transformers, load_config
from specinfer.model.weights.draft_checkpoint import embedding_fingerprint
from specinfer.model.weights.families import EMBEDDING, RenamedWeights, in_llama_names
from specinfer.model.weights.gguf_weights import GgufWeights
from tests.support.models.families import random_model
from tests.support.models.gguf_files import Gguf
from tests.support.tiny_models import reference_logits

pytestmark = pytest.mark.native
TOKENS = torch.randint(3, 97, (40,), generator=torch.Generator().manual_seed(2)).tolist()
FILES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral, sliding window": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_5_text": {},
    "lfm2": {"block_auto_adjust_ff_dim": False},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": {"query_pre_attn_scalar": 16},
    "phi3": {},
    "phi3, longrope": {},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "granite": {},
    "olmo2": {},
    "olmo3": {},
    "qwen2_moe": {  # all experts, so that rounding does not change the choice
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96,
        "num_experts_per_tok": 4,
    },
    "qwen3_moe": {"moe_intermediate_size": 64, "norm_topk_prob": True},
    "mixtral": {},
    "olmoe": {},
    "granitemoe": {},
    "gpt_oss": {"num_experts_per_tok": 4},
    "qwen3_5_moe_text": {
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96,
        "num_experts_per_tok": 4,
    },
    "qwen3_next": {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 96},
    "granitemoehybrid": {"num_experts_per_tok": 4, "shared_intermediate_size": 96},
    "granitemoehybrid, dense": {
        "num_experts_per_tok": 0,
        "position_embedding_type": None,
        "shared_intermediate_size": 96,
    },
    "falcon_h1": {},
    "falcon_h1, normed": {"mamba_conv_bias": False},
    "mamba2": {"use_conv_bias": False},
}
"""Name in the table of families -> fields that GGUF has no key for, with the value that readers assume."""
STATE_SPACES = (*("granitemoehybrid", "granitemoehybrid, dense", "falcon_h1", "falcon_h1, normed", "mamba2"),)
RECURRENT = ("qwen3_5_text", "lfm2", "qwen3_5_moe_text", "qwen3_next", *STATE_SPACES)
"""Entries that the torch executor does not support."""


def file_of(name: str, **kind: Any) -> tuple[Any, Gguf]:
    model = random_model(name, intermediate_size=96, **FILES[name])
    model.set_attn_implementation("eager")
    file = Gguf.of(model, **kind)
    if name == "gemma3_text":
        file.values["attention.sliding_window_pattern"] = 2
    return model, file


def test_every_layout_has_a_file() -> None:
    assert {file_of(name)[1].architecture for name in FILES} == GGUF.keys()


@pytest.mark.parametrize(
    ("name", "executor"),
    [(name, executor) for name in FILES for executor in ("native", "torch")[: 1 + (name not in RECURRENT)]],
)
def test_a_file_gives_the_logits_of_transformers(name: str, executor: str, tmp_path: Path) -> None:
    model, file = file_of(name)
    weights = GgufWeights(file.write(tmp_path / "model.gguf"))
    hf = weights.config()
    config = from_transformers(hf)
    check_tensors(hf, config, in_llama_names(config, weights))
    hf.save_pretrained(tmp_path)
    assert load_config(tmp_path) == config
    runner = ModelRunner.build(config, weights, RunnerOptions("float32", kv_tokens=256, executor=executor))
    (logits,) = runner.forward([Segment(runner.open(), TOKENS, want_last=True)])
    expected = reference_logits(model, TOKENS)[-1]
    assert float((logits[0] - expected).abs().max() / expected.std()) < 5e-5


@pytest.mark.parametrize(
    "name",
    [
        *("qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "granitemoe", "gpt_oss"),
        *("qwen3_5_moe_text", "qwen3_next", *STATE_SPACES),
    ],
)
def test_the_probe_compares_files_with_experts_and_states(name: str, tmp_path: Path) -> None:
    path = file_of(name)[1].write(tmp_path / "model.gguf")
    outcome = probe_gguf(path, GgufWeights(path).config(), None, "native")
    assert max(way.distance for way in outcome.differences) < 5e-5


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(
            (name, "Q8_0")
            for name in (
                "phi3",
                "gemma3_text",
                "olmo3",
                "granite",
                "qwen2_moe",
                "qwen3_5_text",
                "lfm2",
                "qwen3_5_moe_text",
                *STATE_SPACES[:2],
                *STATE_SPACES[3:],  # without a norm, states of random weights magnify roundings
            )
        ),
        ("gpt_oss", "MXFP4"),
    ],
)
def test_blocks_of_a_file_are_multiplied_without_conversion(name: str, kind: str, tmp_path: Path) -> None:
    _, file = file_of(name, kind=gguf.GGMLQuantizationType[kind])
    weights = GgufWeights(file.write(tmp_path / "model.gguf"))
    config = from_transformers(weights.config())
    model = model_of(weights.config(), {name: weights[name] for name in weights}, torch.float32)
    model.set_attn_implementation("eager")
    runner = ModelRunner.build(config, weights, RunnerOptions(kv_tokens=256, executor="native"))
    assert runner.weights.blocks == (kind,)
    (logits,) = runner.forward([Segment(runner.open(), TOKENS, want_last=True)])
    expected = reference_logits(model, TOKENS)[-1]
    assert float((logits[0] - expected).abs().max() / expected.std()) < 0.3


@pytest.mark.parametrize("name", FILES)
def test_the_fingerprint_of_a_file_reads_only_some_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, file = file_of(name)
    weights = GgufWeights(file.write(tmp_path / "model.gguf"))
    named = in_llama_names(from_transformers(weights.config()), weights)
    whole = embedding_fingerprint({EMBEDDING: named[EMBEDDING]})
    monkeypatch.setattr(GgufWeights, "__getitem__", None)
    assert embedding_fingerprint(named) == whole


@pytest.mark.parametrize("value_dim", [16, 32])
def test_columns_of_value_heads_are_reordered_by_whole_blocks(value_dim: int, tmp_path: Path) -> None:
    """A block of 32 numbers cannot be divided: if a head has fewer numbers, the matrix is dequantised."""
    model = random_model("qwen3_5_text", linear_value_head_dim=value_dim)
    file = Gguf.of(model, kind=gguf.GGMLQuantizationType.Q8_0)
    weights = GgufWeights(file.write(tmp_path / "model.gguf"))
    name = "model.layers.0.linear_attn.out_proj.weight"
    torch.testing.assert_close(weights[name], model.state_dict()[name], rtol=0, atol=0.01)
    blocks = weights.blocks(name)
    assert (blocks is None) == (value_dim == 16)
    if blocks is not None:
        numbers = gguf.dequantize(blocks[1].numpy(), gguf.GGMLQuantizationType.Q8_0)
        assert torch.equal(torch.from_numpy(numbers), weights[name])


def test_a_block_that_predicts_further_tokens_is_left_out(tmp_path: Path) -> None:
    _model, file = file_of("qwen3_5_text")
    file.values |= {"block_count": 5, "nextn_predict_layers": 1}
    file.tensors |= {
        f"blk.4.{name}.weight": file.tensors["blk.1.attn_norm.weight"]
        for name in ("attn_norm", "nextn.enorm")
    }
    weights = GgufWeights(file.write(tmp_path / "model.gguf"))
    hf = weights.config()
    assert hf.num_hidden_layers == 4
    check_tensors(hf, from_transformers(hf), in_llama_names(from_transformers(hf), weights))


def test_in_float32_blocks_are_dequantised(tmp_path: Path) -> None:
    model, file = file_of("gemma3_text", kind=gguf.GGMLQuantizationType.Q8_0)
    weights = GgufWeights(file.write(tmp_path / "model.gguf"))
    model.load_state_dict({name: weights[name] for name in weights}, strict=False)
    options = RunnerOptions("float32", kv_tokens=256, executor="native")
    runner = ModelRunner.build(from_transformers(weights.config()), weights, options)
    (logits,) = runner.forward([Segment(runner.open(), TOKENS, want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(model, TOKENS)[-1], rtol=1e-4, atol=1e-4)


def test_blocks_of_fused_matrices_are_split_by_rows(tmp_path: Path) -> None:
    _, file = file_of("phi3", kind=gguf.GGMLQuantizationType.Q8_0)
    weights = GgufWeights(file.write(tmp_path / "model.gguf"))
    renamed = in_llama_names(from_transformers(weights.config()), weights)
    assert isinstance(renamed, RenamedWeights)
    for part in ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up", "mlp.down"):
        name = f"model.layers.1.{part}_proj.weight"
        blocks = renamed.blocks(name)
        assert blocks is not None
        numbers = gguf.dequantize(blocks[1].numpy(), gguf.GGMLQuantizationType.Q8_0)
        assert torch.equal(torch.from_numpy(numbers), renamed[name]), part
    assert renamed.blocks("model.layers.1.input_layernorm.weight") is None


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("granite", {"residual_scale": None}, "lacks the key granite.residual_scale"),
        ("phi3", {"rope.scaling.type": "yarn"}, "none and longrope are supported"),
        (
            "phi3",
            {"rope.scaling.type": "longrope"},
            "'longrope': longrope needs the tensors rope_factors_short",
        ),
        (
            "olmo3",
            {"attention.sliding_window_pattern": [True]},
            r"window_pattern = \[True\]:",
        ),
        ("olmo2", {"rope.scaling.attn_factor": 1.2}, "attn_factor = 1.2.*:"),
        ("qwen3_5_text", {"rope.dimension_sections": [9, 9]}, r"\[9, 9\]: must have a sum of 2"),
        ("lfm2", {"attention.head_count_kv": 2}, "head_count_kv = 2:"),
        ("qwen3_5_text", {"rope.scaling.type": "yarn"}, "scaled positions are not supported"),
        ("qwen3_5_text", {"ssm.inner_size": 130}, "inner_size = 130:"),
        ("mamba2", {"ssm.inner_size": 130}, "inner_size = 130:"),
        ("mamba2", {"ssm.inner_size": 136}, "inner_size = 136:"),
        ("mamba2", {"attention.head_count": 4}, "mamba2.attention.head_count = 4:"),
        ("mamba2", {"feed_forward_length": "x"}, "mamba2.feed_forward_length = 'x':"),
        ("mamba2", {"ssm.dt_b_c_rms": True}, "dt_b_c_rms = True:"),
        (
            "falcon_h1",
            {"ssm.group_count": 0},
            "falcon-h1.ssm.group_count = 0:",
        ),
        ("granitemoehybrid", {"attention.head_count_kv": 2}, "head_count_kv = 2:"),
        (
            "granitemoehybrid, dense",
            {"expert_used_count": "x"},
            "expert_used_count = 'x':",
        ),
        ("granitemoehybrid", {"residual_scale": None}, "lacks the key granitehybrid.residual_scale"),
        ("granitemoehybrid", {"rope.dimension_count": 8}, "dimension_count = 8:"),
        ("gemma2", {"attention.temperature_scale": 0.5}, "temperature_scale = 0.5:"),
    ],
)
def test_keys_of_a_family_are_read_or_refused(
    name: str, change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    _, file = file_of(name)
    file.values |= change
    file.values = {key: value for key, value in file.values.items() if value is not None}
    with pytest.raises(IncompatibleError, match=reason):
        GgufWeights(file.write(tmp_path / "model.gguf")).config()


def test_families_are_named_once() -> None:
    names = [
        name
        for family in {id(family): family for family in FAMILIES.values()}.values()
        for name in family.model_types
    ]
    assert len(names) == len(set(names)) == len(FAMILIES)


@pytest.mark.parametrize("wrong", [0.0, 0.5, float("nan")])
def test_an_impossible_decay_is_refused_by_name(wrong: float) -> None:
    decays = torch.tensor([-0.5, -2.0])
    torch.testing.assert_close(decay_logarithms("ssm_a", decays), torch.tensor([0.5, 2.0]).log())
    with pytest.raises(IncompatibleError, match=r"layers\.3\.mamba\.A_log"):
        decay_logarithms("model.layers.3.mamba.A_log", torch.tensor([-0.5, wrong]))
