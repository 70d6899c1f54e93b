"""Llama in plain numpy, one token at a time: fast enough for every step of a test.

Independent of our code and of `transformers`, with which tests/unit/model/test_tiny_llama.py compares it. Keys and
values are cached by context, so that a continued context costs only its new tokens.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
_MAX_CONTEXTS = 4096
_LOOK_BACK = 12
"""Maximum new tokens of a context that is continued from a cached one."""


class State(NamedTuple):
    """A context's keys and values."""

    keys: tuple[Floats, ...]
    """Per layer, [T, KV heads, D]."""
    values: tuple[Floats, ...]
    token: int
    """Token id of the most probable next token."""


class TinyLlama:
    """A Llama of `transformers` with default rotary positions and no biases."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
        self._layers, self._eps = config.num_hidden_layers, config.rms_norm_eps
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._size = config.head_dim
        theta = config.rope_parameters["rope_theta"]
        self._frequencies = theta ** -(np.arange(0, self._size, 2) / self._size)
        self._known: OrderedDict[tuple[int, ...], State] = OrderedDict()

    def greedy(self, context: Sequence[int], count: int) -> list[int]:
        """Return the `count` most probable tokens after a context, one after another."""
        text = tuple(context)
        for _ in range(count):
            text = (*text, self._read(text).token)
        return list(text[len(context) :])

    def _read(self, text: tuple[int, ...]) -> State:
        start = next(
            (n for n in range(len(text), max(0, len(text) - _LOOK_BACK), -1) if text[:n] in self._known), 0
        )
        state = self._known[text[:start]] if start else None
        for place in range(start, len(text)):
            state = self._step(state, text[place], place)
        assert state is not None, "an empty context"
        self._known[text] = state
        self._known.move_to_end(text)
        if len(self._known) > _MAX_CONTEXTS:
            self._known.popitem(last=False)
        return state

    def _step(self, before: State | None, token: int, place: int) -> State:
        w, keys, values = self._weights, list[Floats](), list[Floats]()
        hidden = w["model.embed_tokens.weight"][token]
        for layer in range(self._layers):
            name = f"model.layers.{layer}."
            x = self._norm(hidden, f"{name}input_layernorm")
            q, k, v = (
                (w[f"{name}self_attn.{part}_proj.weight"] @ x).reshape(-1, self._size) for part in "qkv"
            )
            k, v = self._turn(k, place)[None], v[None]
            if before is not None:
                k, v = np.concatenate([before.keys[layer], k]), np.concatenate([before.values[layer], v])
            keys.append(k)
            values.append(v)
            mixed = self._attend(self._turn(q, place), k, v)
            hidden = hidden + w[f"{name}self_attn.o_proj.weight"] @ mixed
            x = self._norm(hidden, f"{name}post_attention_layernorm")
            gate, up = w[f"{name}mlp.gate_proj.weight"] @ x, w[f"{name}mlp.up_proj.weight"] @ x
            hidden = hidden + w[f"{name}mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
        logits = w["lm_head.weight"] @ self._norm(hidden, "model.norm")
        return State(tuple(keys), tuple(values), int(logits.argmax()))

    def _norm(self, x: Floats, name: str) -> Floats:
        return x / np.sqrt((x * x).mean() + self._eps) * self._weights[f"{name}.weight"]

    def _turn(self, x: Floats, place: int) -> Floats:
        """Apply the rotary position `place` to [heads, D]; the halves are real and imaginary parts."""
        first, second = np.split(x, 2, -1)
        cos, sin = np.cos(place * self._frequencies), np.sin(place * self._frequencies)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def _attend(self, q: Floats, k: Floats, v: Floats) -> Floats:
        grouped = q.reshape(self._kv_heads, -1, self._size)
        scores = np.einsum("gqd,tgd->gqt", grouped, k) / np.sqrt(self._size)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("gqt,tgd->gqd", p / p.sum(-1, keepdims=True), v).reshape(-1)
