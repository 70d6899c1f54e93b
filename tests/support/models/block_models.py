"""Small models whose matrices are stored in given GGUF formats, quantised or not."""

from collections.abc import Iterator, Mapping

import gguf
import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.interfaces import Blocks
from tests.support.models.block_products import BLOCK_BYTES, K_QUANTS, factors_at, random_rows

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_NUMBERS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def stored(kind: str, numbers: NDArray[np.float32]) -> torch.Tensor:
    """Return a matrix [N, K] as rows [N, bytes] in a GGUF format; K and IQ types get other numbers."""
    if kind in _NUMBERS:
        return torch.from_numpy(numbers).to(_NUMBERS[kind]).contiguous().view(torch.uint8)
    of_kind = gguf.GGMLQuantizationType[kind]
    if kind not in K_QUANTS and kind != "IQ4_NL":
        return torch.from_numpy(gguf.quantize(numbers, of_kind))
    # `gguf` only reads these types: random blocks of the same size of numbers
    rows = random_rows(kind, *numbers.shape).reshape(len(numbers), -1, BLOCK_BYTES[kind])
    ratio = numbers.std() / gguf.dequantize(rows.reshape(len(numbers), -1), of_kind).std()
    for at in factors_at(kind):
        factors = rows[..., at : at + 2].copy().view(np.float16)
        rows[..., at : at + 2] = (factors * np.float16(ratio)).view(np.uint8)
    return torch.from_numpy(rows.reshape(len(numbers), -1))


class FormattedWeights(Mapping[str, torch.Tensor]):
    """Tensors by name; the matrices in `rows` are used in their stored format."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], rows: Mapping[str, Blocks]) -> None:
        self._tensors, self._rows = tensors, rows

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix in its stored format; None if it is not quantised."""
        return self._rows.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _runner(config: transformers.LlamaConfig, weights: FormattedWeights) -> ModelRunner:
    options = RunnerOptions(kv_tokens=4096, executor="native", dtype="bfloat16")
    return ModelRunner.build(from_transformers(config), weights, options)


def one_product(head: Blocks, embedding: Blocks, k: int, scale: int = 0) -> ModelRunner:
    """Return a model whose logits are one product: 2^scale times a token's embedding, times the head.

    Its layer adds zero. The norm before the head has an epsilon of one, to which squares of numbers below 2^-13
    add nothing, so the norm only multiplies by its weights, which are 2^scale.
    """
    config = transformers.LlamaConfig(
        vocab_size=len(head[1]),
        hidden_size=k,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        rms_norm_eps=1.0,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    shapes = dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), (16, k))
    layer = "model.layers.0."
    tensors = {
        f"{layer}{'self_attn' if part[0] in 'qkvo' else 'mlp'}.{part}.weight": torch.zeros(
            shapes.get(part, (k, 16)), dtype=torch.bfloat16
        )
        for part in PARTS
    }
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{layer}{norm}.weight"] = torch.ones(k)
    tensors[NORM] = torch.full((k,), 2.0**scale)
    rows = {EMBEDDING: embedding, HEAD: head}
    tensors |= {name: torch.empty(len(product), k, device="meta") for name, (_, product) in rows.items()}
    return _runner(config, FormattedWeights(tensors, rows))


def mixed_model(kinds: Mapping[str, str], hidden: int = 256, inner: int = 512, seed: int = 0) -> ModelRunner:
    """Return a random model of two layers that share matrices; `kinds`: formats by part, including "embed" and "head".

    Sizes are odd where possible: 97 tokens, keys and values of one head.
    """
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=2,
        num_attention_heads=16,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    random = np.random.default_rng(seed)
    tensors, rows = {}, {}

    def matrix(kind: str, n: int, k: int, *names: str) -> None:
        numbers = (random.standard_t(5, (n, k)) / k**0.5).astype(np.float32)
        matrix = kind, stored(kind, numbers)
        for name in names:
            tensors[name], rows[name] = torch.from_numpy(numbers), matrix

    shapes = {"q_proj": (256, hidden), "o_proj": (hidden, 256), "down_proj": (hidden, inner)}
    shapes |= dict.fromkeys(("k_proj", "v_proj"), (16, hidden))
    shapes |= dict.fromkeys(("gate_proj", "up_proj"), (inner, hidden))
    layers = ("model.layers.0.", "model.layers.1.")
    for part in PARTS:
        block = "self_attn" if part[0] in "qkvo" else "mlp"
        matrix(kinds[part], *shapes[part], *(f"{layer}{block}.{part}.weight" for layer in layers))
    for layer in layers:
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}{norm}.weight"] = torch.from_numpy(random.normal(1, 0.3, hidden)).float()
    tensors[NORM] = torch.from_numpy(random.normal(1, 0.3, hidden)).float()
    matrix(kinds["embed"], 97, hidden, EMBEDDING)
    matrix(kinds["head"], 97, hidden, HEAD)
    return _runner(config, FormattedWeights(tensors, rows))
