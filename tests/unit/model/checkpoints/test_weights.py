"""Weights from GGUF and safetensors give the logits of the original model."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.batch import Segment
from specinfer.model.formats.base import BlockFormat
from specinfer.model.formats.registry import FORMATS
from specinfer.model.formats.weights_in_format import QuantisedWeights
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers, load_config
from specinfer.model.weights.files import SafetensorsWeights
from specinfer.model.weights.gguf_weights import GgufWeights
from tests.support.tiny_models import (
    reference_logits,
    silence_attention,
    tiny_transformers,
)

PROMPT = [3, 14, 15, 92, 65]


def _interleave(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows to llama.cpp's order of rotary pairs, like its converter."""
    size = tensor.shape[0] // heads
    return tensor.view(heads, 2, size // 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def write_gguf(
    model: Any, path: Path, architecture: str, quantised: bool = False, matrices: str = "F32"
) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach()
        stem, kind = name.removeprefix("model.").rsplit(".", 1)
        if stem.startswith("layers."):
            _, layer, part = stem.split(".", 2)
            if architecture == "llama" and part == "self_attn.q_proj":
                tensor = _interleave(tensor, config.num_attention_heads)
            if architecture == "llama" and part == "self_attn.k_proj":
                tensor = _interleave(tensor, config.num_key_value_heads)
            target = f"blk.{layer}.{parts[part]}.{kind}"
        elif stem == "lm_head" and config.tie_word_embeddings:
            continue
        else:
            target = f"{names[stem]}.{kind}"
        array = np.ascontiguousarray(tensor.numpy())
        if quantised and array.ndim == 2:
            kind = (
                gguf.GGMLQuantizationType.Q8_0
                if target.startswith("token")
                else gguf.GGMLQuantizationType.Q4_1
            )
            writer.add_tensor(target, gguf.quants.quantize(array, kind), raw_dtype=kind)
        elif array.ndim == 2:
            kind = gguf.GGMLQuantizationType[matrices]
            writer.add_tensor(target, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(("family", "architecture"), [("llama", "llama"), ("qwen2", "qwen2")])
def test_gguf_equals_transformers(family: str, architecture: str, tmp_path: Path) -> None:
    model = tiny_transformers(family)
    write_gguf(model, tmp_path / "model.gguf", architecture)
    options = RunnerOptions(dtype="float32", kv_tokens=256)
    runner = ModelRunner.build(from_transformers(model.config), GgufWeights(tmp_path / "model.gguf"), options)
    (logits,) = runner.forward([Segment(runner.open(), PROMPT, want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(model, PROMPT)[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_unquantised_matrices_are_returned_as_stored(kind: str, tmp_path: Path) -> None:
    """Rows of queries are in the order of `transformers`; norms are not returned as blocks."""
    model = tiny_transformers("llama")
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    write_gguf(model, tmp_path / "model.gguf", "llama", matrices=kind)
    weights = GgufWeights(tmp_path / "model.gguf")
    for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"):
        blocks = weights.blocks(name)
        assert blocks is not None
        assert blocks[0] == kind
        assert torch.equal(blocks[1].view(dtype), model.state_dict()[name].to(dtype))
        assert torch.equal(weights[name], model.state_dict()[name].to(dtype).float())
    assert weights.blocks("model.norm.weight") is None


def as_stored(weights: Any) -> dict[str, torch.Tensor]:
    """Return the weights that a bfloat16 model with blocks computes with: matrices dequantised, the rest in
    bfloat16."""
    exact = {}
    for name in weights:
        blocks = weights.blocks(name) if name != "model.embed_tokens.weight" else None
        if blocks is None:
            exact[name] = weights[name].to(torch.bfloat16).float()
        else:
            kind = gguf.GGMLQuantizationType[blocks[0]]
            exact[name] = torch.from_numpy(gguf.dequantize(blocks[1].numpy(), kind))
    return exact


def block_model(attention: bool) -> Any:
    model = tiny_transformers(
        "llama-untied",
        head_dim=32,
        hidden_size=96,
        intermediate_size=160,
        num_attention_heads=6,
        initializer_range=0.1,
    )
    if not attention:
        silence_attention(model)
    return model


def block_logits(
    model: Any, source: Any, dtype: str = "bfloat16", executor: str = "native", weights: str = "auto"
) -> torch.Tensor:
    """Return logits [4 + 20, V] of a tree of 3 nodes, and of more rows than kernels process at a time."""
    options = RunnerOptions(kv_tokens=512, executor=executor, dtype=dtype, weights=weights)
    runner = ModelRunner.build(from_transformers(model.config), source, options)
    segments = [
        Segment(runner.open(), PROMPT * 4, [3, 4, 5], [-1, 0, 0], want_last=True),
        Segment(runner.open(), PROMPT, list(range(40, 59)), [-1] * 19, want_last=True),
    ]
    return torch.cat(runner.forward(segments))


def distance(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual - exact).norm() / exact.norm())


@pytest.mark.native
def test_only_activations_are_rounded_and_in_groups(tmp_path: Path) -> None:
    """All layers add zero, so the head is the only product of blocks."""
    model = block_model(attention=False)
    for name, tensor in model.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            tensor.data.zero_()
    write_gguf(model, tmp_path / "model.gguf", "llama", quantised=True)
    rounded = GgufWeights(tmp_path / "model.gguf")
    head = rounded.blocks("lm_head.weight")
    assert head is not None
    assert head[0] == "Q4_1"
    logits = block_logits(model, rounded)
    assert torch.equal(logits, block_logits(model, rounded))
    exact = block_logits(model, as_stored(GgufWeights(tmp_path / "model.gguf")), "float32", "torch")
    assert 1e-4 < distance(logits, exact) < 0.01, "1/127 of the largest of 32, rounded to the nearest"


@pytest.mark.native
def test_rows_in_eight_bits_do_not_depend_on_other_rows(tmp_path: Path) -> None:
    model = block_model(attention=True)
    write_gguf(model, tmp_path / "model.gguf", "llama", quantised=True)
    weights = GgufWeights(tmp_path / "model.gguf")
    assert block_kind(weights, "model.embed_tokens.weight") == "Q8_0"
    options = RunnerOptions(kv_tokens=512, executor="native")
    runner = ModelRunner.build(from_transformers(model.config), weights, options)

    def logits(nodes: list[int], parents: list[int]) -> torch.Tensor:
        return runner.forward([Segment(runner.open(), PROMPT * 4, nodes, parents, want_last=True)])[0]

    chain = logits([3, 4, 5], [-1, 0, 1])
    tree = logits([3, *range(20, 40), 4, 5], [-1, *[-1] * 20, 0, 21])
    assert torch.equal(tree[[0, 1, 22, 23]], chain)


@pytest.mark.native
def test_a_tied_head_of_eight_bits_is_multiplied_with_eight_bits(tmp_path: Path) -> None:
    model = tiny_transformers(
        "llama", head_dim=32, hidden_size=96, intermediate_size=160, initializer_range=0.1
    )
    write_gguf(model, tmp_path / "model.gguf", "llama", quantised=True)
    weights = GgufWeights(tmp_path / "model.gguf")
    exact = block_logits(model, as_stored(weights), "float32", "torch")
    assert distance(block_logits(model, weights), exact) < 0.05


def block_kind(weights: GgufWeights, name: str) -> str:
    blocks = weights.blocks(name)
    assert blocks is not None
    return blocks[0]


@pytest.mark.native
@pytest.mark.parametrize(("name", "max_distance"), [("q8_0", 0.1), ("q4_1", 0.6)])
def test_quantising_while_loading_equals_quantised_weights(name: str, max_distance: float) -> None:
    """Logits equal those of quantised and dequantised matrices, and are near those of the original."""
    model = block_model(attention=False)
    weights = {name: tensor.detach().to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    chosen = FORMATS[name]
    assert isinstance(chosen, BlockFormat)
    exact = block_logits(model, as_stored(QuantisedWeights(weights, chosen)), "float32", "torch")
    original = block_logits(model, weights)
    logits = block_logits(model, weights, weights=name)
    assert distance(logits, exact) < 0.03, "activations in eight bits"
    assert 0.01 < distance(logits, original) < max_distance


def test_formats_that_an_executor_does_not_support_are_refused(tmp_path: Path) -> None:
    tiny_transformers("llama").save_pretrained(tmp_path)
    for weights, dtype, reason in (
        ("q4_0", "float32", "needs the native executor in bfloat16"),
        ("q4_k", "bfloat16", "is read from GGUF files, not made: use auto with such a file, or q5_0"),
        ("bf16", "float32", "needs dtype = bfloat16"),
        ("int8", "bfloat16", "needs the gpu executor; on a CPU q8_0 has 8 bits a weight"),
        ("w8a8", "bfloat16", "is called q8_0 now"),
        ("native-a8", "bfloat16", "is called auto now"),
        ("int2", "bfloat16", "must be one of auto, f32, f16, bf16, q8_0, "),
    ):
        with pytest.raises(SettingError, match=f"weights = '{weights}': {reason}"):
            load_checked(tmp_path, RunnerOptions(weights=weights, dtype=dtype))


def test_saved_directory_equals_transformers(tmp_path: Path) -> None:
    model = tiny_transformers("qwen3")
    model.save_pretrained(tmp_path)
    runner = load_checked(tmp_path, RunnerOptions(dtype="float32", kv_tokens=256))
    (logits,) = runner.forward([Segment(runner.open(), PROMPT, want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(model, PROMPT)[-1], rtol=1e-4, atol=1e-4)


def test_shards_are_found_through_their_index(tmp_path: Path) -> None:
    model = tiny_transformers("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    weights = SafetensorsWeights(tmp_path)
    assert torch.equal(weights["model.norm.weight"], model.state_dict()["model.norm.weight"])


def test_first_layers_are_those_of_the_whole_model() -> None:
    whole, cut = tiny_transformers("llama"), tiny_transformers("llama")
    cut.model.layers = cut.model.layers[:2]
    cut.config.num_hidden_layers = 2
    weights = {name: tensor.detach() for name, tensor in whole.state_dict().items()}
    options = RunnerOptions(dtype="float32", kv_tokens=256, layers=2)
    runner = ModelRunner.build(from_transformers(whole.config), weights, options)
    (logits,) = runner.forward([Segment(runner.open(), PROMPT, want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(cut, PROMPT)[-1], rtol=1e-4, atol=1e-4)


def test_bad_models_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"model = .*no config\.json"):
        load_config(tmp_path)
    for content, reason in (
        ("{", "not a valid JSON file"),
        ('{"speculators_model_type": "ssm"}', "model_type"),
    ):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(SettingError, match=rf"model = .*config\.json: .*{reason}"):
            load_config(tmp_path)
    with pytest.raises(SettingError, match=r"no \*\.safetensors"):
        SafetensorsWeights(tmp_path)
    config = tiny_transformers("llama").config
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(IncompatibleError, match="rope_type = 'dynamic'"):
        from_transformers(config)
    with pytest.raises(SettingError, match="layers = 9:"):
        from_transformers(tiny_transformers("llama").config).first_layers(9)
    state = dict(tiny_transformers("llama").state_dict())
    del state["model.norm.weight"]
    complete = from_transformers(tiny_transformers("llama").config)
    with pytest.raises(IncompatibleError, match=r"model\.norm\.weight"):
        ModelRunner.build(complete, state, RunnerOptions())


def test_parts_without_windows_are_limited_to_the_models_window() -> None:
    windowed = tiny_transformers("mistral").config
    windowed.sliding_window = 64
    config = from_transformers(windowed)
    assert (config.windows, config.max_positions) == ((64, 64, 64), 512)
    shorter = config.like_llama("ranks")
    assert (shorter.windows, shorter.max_positions) == ((), 64)
    windowed.sliding_window = 512
    assert from_transformers(windowed).windows == (), "the window has all positions"
