"""Weights of safetensors files and quantised weights give the logits of the model; bad models are named."""

from pathlib import Path
from typing import Any

import gguf
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
from tests.support.tiny_models import (
    reference_logits,
    silence_attention,
    tiny_transformers,
)

PROMPT = [3, 14, 15, 92, 65]


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


def block_model() -> Any:
    """Return a model whose attention adds nothing."""
    model = tiny_transformers(
        "llama-untied",
        head_dim=32,
        hidden_size=96,
        intermediate_size=160,
        num_attention_heads=6,
        initializer_range=0.1,
    )
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
@pytest.mark.parametrize(("name", "max_distance"), [("q8_0", 0.1), ("q4_1", 0.6)])
def test_quantising_while_loading_equals_quantised_weights(name: str, max_distance: float) -> None:
    """Logits equal those of quantised and dequantised matrices, and are near those of the original."""
    model = block_model()
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
