"""Any causal language model of `transformers`, through its attention interface with our tree mask.

Slower than our own decoder, and for families it does not know (GPT-2, Phi, Gemma, ...). The model
runs the flattened pass as one row of T tokens; where it would attend, it calls `_attend`, which stores keys
and values in the paged cache and attends over each token's own request.
"""

import inspect
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.batch import Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots
from specinfer.model.torch.attention import AttentionBackend, make_attention
from specinfer.model.weights.config import ModelConfig, eos_token_ids, max_positions

_NAME = "specinfer_tree"
_PASS: "ContextVar[_Pass]" = ContextVar("specinfer_pass")  # set only while a model runs


class _Pass:
    """Inputs of the attention function in the pass that calls it."""

    def __init__(self, executor: "GenericExecutor", plan: Any, slots: torch.Tensor) -> None:
        self.executor, self.plan, self.slots = executor, plan, slots


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend by `transformers`' interface: query [1, H, T, D] -> [1, T, H, D]."""
    current = _PASS.get()
    layer: int = module.layer_idx  # type: ignore[assignment]
    executor = current.executor
    keys, values = executor.memory(layer, key, value)
    keys.index_copy_(0, current.slots, key[0].transpose(0, 1))
    values.index_copy_(0, current.slots, value[0].transpose(0, 1))
    q = query[0].transpose(0, 1)
    scaling = options.get("scaling")
    if scaling is not None:  # ours divides by sqrt(D)
        q = q * (scaling * q.shape[-1] ** 0.5)
    return executor.attention.attend(q, keys, values, current.plan)[None], None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, lambda *_args, **_kwargs: None)


class GenericExecutor:
    """A `transformers` model over a paged cache."""

    name = "generic"

    def __init__(
        self, model: Any, num_blocks: int, device: str = "cpu", attention: str = "reference"
    ) -> None:
        self._model = model.eval().to(device)
        self._model.set_attn_implementation(_NAME)
        if self._model.config._attn_implementation != _NAME:
            family = self._model.config.model_type
            raise IncompatibleError(f"model_type = {family!r}: does not use the attention interface")
        self.attention: AttentionBackend = make_attention(attention, device)
        self._slots, self._device = num_blocks * BLOCK_TOKENS, device
        self._memory: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def memory(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a layer, [slots, KV heads, D].

        They are made when first used, as only the model knows their shape.
        """
        if layer not in self._memory:
            made = [t.new_zeros(self._slots, t.shape[1], t.shape[3]) for t in (key, value)]
            self._memory[layer] = made[0], made[1]
        return self._memory[layer]

    def run(self, batch: Batch) -> torch.Tensor:
        """Run a pass and return its logits [R, V]."""
        token_ids, positions, slots, rows = (
            torch.tensor(numbers, dtype=torch.int64, device=self._device)
            for numbers in (batch.token_ids, batch.positions, batch.write_slots, batch.logit_rows)
        )
        keep = {"logits_to_keep": rows} if self._keeps else {}
        token = _PASS.set(_Pass(self, self.attention.plan(batch), slots))
        try:
            out = self._model(
                input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **keep
            )
        finally:
            _PASS.reset(token)
        logits: torch.Tensor = out.logits[0].float()
        return logits if self._keeps else logits[rows]

    @torch.inference_mode()
    def move(self, source: Slots, target: Slots) -> None:
        """Copy entries from slots to slots."""
        here, there = (
            torch.tensor(slots, dtype=torch.int64, device=self._device) for slots in (source, target)
        )
        for pair in self._memory.values():
            for cache in pair:
                cache.index_copy_(0, there, cache.index_select(0, here))

    def rotate(self, slots: Slots, delta: int) -> None:
        """Raise an error: only the model knows how its keys carry positions."""
        raise SettingError("kv_window", delta, "the generic executor has no windowed cache")


def generic_config(hf: Any, generation: Any | None = None) -> ModelConfig:
    """Return the configuration of a model that runs generically, for the services."""
    text = hf.get_text_config()
    heads = text.num_attention_heads
    return ModelConfig(
        family=hf.model_type,
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        layers=text.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        norm_eps=0.0,
        max_positions=max_positions(text),
        activation="",
        tied_embeddings=False,
        qk_norm=False,
        eos_token_ids=eos_token_ids(text, generation),
    )
