"""Models of a given shape with random weights: in memory for passes, in a directory for services."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.scale import ModelShape
from specinfer.model.options import DTYPES, RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config import from_transformers

_DEVIATION = 0.02
"""Standard deviation of weights: Llama's own start."""


def transformers_config(shape: ModelShape, positions: int) -> Any:
    """As `transformers` describes it."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads.query,
        num_key_value_heads=shape.heads.kv,
        head_dim=shape.heads.width,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
    )


class RandomWeights(Mapping[str, torch.Tensor]):
    """Tensors of a shape under Llama's names, made on the device when asked for: the same ones every time."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype, device: str) -> None:
        self._dtype, self._device = dtype, device
        self._shapes = dict(_tensors(shape))
        self._seeds = {name: number for number, name in enumerate(self._shapes)}

    def __getitem__(self, name: str) -> torch.Tensor:
        size = self._shapes[name]
        if len(size) == 1:
            return torch.ones(size, dtype=self._dtype, device=self._device)
        generator = torch.Generator(self._device).manual_seed(self._seeds[name])
        tensor = torch.empty(size, dtype=self._dtype, device=self._device)
        return tensor.normal_(0.0, _DEVIATION, generator=generator)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def pass_bytes(self) -> int:
        """Bytes of weights that a pass reads: all but the embeddings, of which it reads a row per token."""
        numbers = {name: torch.Size(size).numel() for name, size in self._shapes.items()}
        return self._dtype.itemsize * (sum(numbers.values()) - numbers["model.embed_tokens.weight"])


def _tensors(s: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    query, kv = s.heads.query * s.heads.width, s.heads.kv * s.heads.width
    yield "model.embed_tokens.weight", (s.vocabulary, s.hidden)
    for layer in range(s.layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (s.hidden,)
        yield f"{at}.self_attn.q_proj.weight", (query, s.hidden)
        yield f"{at}.self_attn.k_proj.weight", (kv, s.hidden)
        yield f"{at}.self_attn.v_proj.weight", (kv, s.hidden)
        yield f"{at}.self_attn.o_proj.weight", (s.hidden, query)
        yield f"{at}.post_attention_layernorm.weight", (s.hidden,)
        yield f"{at}.mlp.gate_proj.weight", (s.intermediate, s.hidden)
        yield f"{at}.mlp.up_proj.weight", (s.intermediate, s.hidden)
        yield f"{at}.mlp.down_proj.weight", (s.hidden, s.intermediate)
    yield "model.norm.weight", (s.hidden,)
    yield "lm_head.weight", (s.vocabulary, s.hidden)


def random_runner(shape: ModelShape, dtype: str, device: str, positions: int, kv_tokens: int) -> ModelRunner:
    """A runner of the gpu executor."""
    options = RunnerOptions(dtype=dtype, device=device, executor="gpu", kv_tokens=kv_tokens)
    weights = RandomWeights(shape, DTYPES[dtype], device)
    return ModelRunner.build(from_transformers(transformers_config(shape, positions)), weights, options)


def write_model(directory: Path, shape: ModelShape, dtype: str, device: str, positions: int) -> Path:
    """A model directory as services load it, with a tokenizer of a token per byte; returns the directory."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True)
    weights = RandomWeights(shape, DTYPES[dtype], device)
    transformers_config(shape, positions).save_pretrained(directory)
    save_file(
        {name: weights[name].cpu() for name in weights}, directory / "model.safetensors", {"format": "pt"}
    )
    _byte_tokenizer(shape.vocabulary).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({}))
    return directory


def _byte_tokenizer(vocabulary: int) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: vocabulary - 1]
    ids = {"<pad>": 0} | {letter: 1 + i for i, letter in enumerate(letters)}
    ids |= {f"<{i}>": i for i in range(len(ids), vocabulary)}
    made = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Split(Regex("."), "isolated")]
    )
    made.decoder = decoders.ByteLevel()
    return made
