"""The windowed cache against StreamingLLM in plain torch, which rotates unrotated keys again at every step."""

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from specinfer.errors import SettingError
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.model.runner import ModelRunner
from tests.support.tiny_models import reference_logits, runner_of, tiny_transformers

WINDOW = 64
EXECUTORS = {"torch": ("torch", "auto"), "native": ("native", "auto"), "bytes": ("native", "q8_0")}
"""Name -> (executor, storage of keys and values)."""
TOKENS = [(37 * i + i * i) % 97 for i in range(300)]


class StreamingOracle:
    """Runs a `transformers` Llama token by token, with the same rule of eviction."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in model.model.layers]

    @torch.inference_mode()
    def step(self, token: int) -> torch.Tensor:
        x = self._model.model.embed_tokens.weight[token]
        for layer, entries in zip(self._model.model.layers, self._cache, strict=True):
            x = x + self._attend(layer.self_attn, layer.input_layernorm(x), entries)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        for entries in self._cache:
            while len(entries) - BLOCK_TOKENS >= WINDOW:
                del entries[BLOCK_TOKENS : 2 * BLOCK_TOKENS]
        return F.linear(self._model.model.norm(x), self._model.lm_head.weight)

    def _attend(
        self, a: Any, x: torch.Tensor, entries: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        heads, size = self._model.config.num_attention_heads, self._model.config.head_dim
        q = a.q_proj(x).view(heads, size)
        entries.append((a.k_proj(x).view(-1, size), a.v_proj(x).view(-1, size)))
        keys = torch.stack([k for k, _ in entries], 1)
        values = torch.stack([v for _, v in entries], 1)
        positions = torch.arange(len(entries))
        keys = self._turn(keys, positions).repeat_interleave(heads // len(keys), 0)
        values = values.repeat_interleave(heads // len(values), 0)
        scores = torch.einsum("hd,hnd->hn", self._turn(q[:, None], positions[-1:])[:, 0], keys) / size**0.5
        return a.o_proj(torch.einsum("hn,hnd->hd", scores.softmax(-1), values).flatten())

    def _turn(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        inv_freq = self._model.model.rotary_emb.inv_freq
        angles = torch.outer(positions.float(), inv_freq).repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


@cache
def oracle_logits(max_positions: int) -> list[torch.Tensor]:
    oracle = StreamingOracle(windowed("torch", max_positions)[0])
    return [oracle.step(token) for token in TOKENS]


def windowed(
    executor: str, max_positions: int = 512, kv_tokens: int = 2048, family: str = "llama", **shape: Any
) -> tuple[Any, ModelRunner]:
    model = tiny_transformers(family, head_dim=16, max_position_embeddings=max_positions, **shape)
    executor, kv_type = EXECUTORS[executor]
    options = {"executor": executor, "kv_window": WINDOW, "kv_tokens": kv_tokens, "kv_type": kv_type}
    return model, runner_of(model, **options)


@pytest.mark.parametrize("executor", ["torch", "native"])
@pytest.mark.parametrize("max_positions", [512, 128])
def test_streaming_equals_the_oracle(executor: str, max_positions: int) -> None:
    """With 128 positions for 300 tokens the rotary positions must be moved back several times."""
    _, runner = windowed(executor, max_positions)
    sequence = runner.open()
    for token, expected in zip(TOKENS, oracle_logits(max_positions), strict=True):
        (logits,) = runner.forward([Segment(sequence, [token], want_last=True)])
        torch.testing.assert_close(logits[0], expected, rtol=1e-3, atol=1e-3)
        runner.cache.slide(sequence, ahead=32)
        runner.cache.check()
    assert sequence.length == 300
    assert WINDOW <= sequence.cached < WINDOW + BLOCK_TOKENS


@pytest.mark.parametrize("executor", ["torch", "native"])
def test_partly_rotated_heads_slide_as_well(executor: str) -> None:
    """With one layer, keys and values depend on their token alone, so a plain pass over the kept tokens is equal."""
    model, runner = windowed(executor, family="gpt_neox", num_hidden_layers=1)
    sequence = runner.open()
    for end, token in enumerate(TOKENS[:200], 1):
        dropped = sequence.evicted
        (logits,) = runner.forward([Segment(sequence, [token], want_last=True)])
        kept = [*TOKENS[:BLOCK_TOKENS], *TOKENS[BLOCK_TOKENS + dropped : end]] if dropped else TOKENS[:end]
        torch.testing.assert_close(logits[0], reference_logits(model, kept)[-1], rtol=1e-3, atol=1e-3)
        runner.cache.slide(sequence, ahead=32)
    assert dropped > 100


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_a_tree_in_a_window_equals_single_steps(family: str, executor: str) -> None:
    _, runner = windowed(executor, family=family)
    plain, tree = runner.open(), runner.open()
    for sequence in (plain, tree):
        for token in TOKENS[:150]:
            runner.forward([Segment(sequence, [token])])
            runner.cache.slide(sequence, ahead=32)
    path = [5, 6, 7]
    expected = [runner.forward([Segment(plain, [token], want_last=True)])[0] for token in [4, *path]]
    segment = Segment(tree, [4], [9, 5, 6, 8, 7], [-1, -1, 1, 1, 2], want_last=True)
    (logits,) = runner.forward([segment])
    torch.testing.assert_close(logits[[0, 2, 3, 5]], torch.cat(expected), rtol=1e-4, atol=1e-4)
    runner.cache.commit(tree, [1, 2, 4])
    (after,) = runner.forward([Segment(tree, [3], want_last=True)])
    torch.testing.assert_close(
        after, runner.forward([Segment(plain, [3], want_last=True)])[0], rtol=1e-4, atol=1e-4
    )


@pytest.mark.native
def test_keys_in_bytes_stay_near_the_oracle_after_many_rotations() -> None:
    """The keys of the first tokens are rotated and rounded again at every slide."""
    _, runner = windowed("bytes")
    sequence, oracle = runner.open(), oracle_logits(512)
    errors = []
    for token, expected in zip(TOKENS, oracle, strict=True):
        (logits,) = runner.forward([Segment(sequence, [token], want_last=True)])
        errors.append(float((logits[0] - expected).abs().mean() / expected.abs().mean()))
        runner.cache.slide(sequence, ahead=32)
    assert sequence.evicted > 200
    assert max(errors[-50:]) < 0.1, errors


@pytest.mark.native
def test_memory_does_not_grow() -> None:
    _, runner = windowed("native", kv_tokens=96)
    sequence = runner.open()
    for token in TOKENS:
        runner.forward([Segment(sequence, [token])])
        runner.cache.slide(sequence, ahead=1)
    assert len(sequence.blocks) <= (WINDOW + BLOCK_TOKENS) // BLOCK_TOKENS


def test_a_window_without_room_is_refused_and_one_without_rotary_positions() -> None:
    with pytest.raises(SettingError, match="kv_window = 20:"):
        runner_of(tiny_transformers("llama"), kv_window=20)
    with pytest.raises(SettingError, match="kv_window = 64:"):
        runner_of(tiny_transformers("opt"), kv_window=64)
