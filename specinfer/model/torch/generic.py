"""Runs any causal model of `transformers` with our tree mask.

It is for families that our own, faster decoder does not support. The model runs the flattened pass as one row of T
tokens. Through the attention interface of `transformers` it calls `generic_attention`, which stores keys and values in
the paged cache; each token attends to its own request.
"""

import inspect
from typing import Any

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.batch import Batch
from specinfer.model.cache.recurrent_states import RecurrentStates
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots
from specinfer.model.families.positions import UNBOUNDED, longest_text, served_positions
from specinfer.model.torch.generic_attention import CURRENT, NAME, GenericPass, Memory
from specinfer.model.torch.recurrent import RecurrentLayers, TokenState
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import eos_token_ids


class GenericExecutor:
    """A `transformers` model over a paged cache."""

    name = "generic"

    def __init__(self, model: Any, num_blocks: int, device: str = "cpu") -> None:
        self.model = model.eval().to(device)
        family = self.model.config.model_type
        self._recurrent = RecurrentLayers(model)
        self.model.set_attn_implementation(NAME)
        if self.model.config._attn_implementation != NAME:
            raise IncompatibleError(f"model_type = {family!r}: does not use the attention interface")
        parameters = inspect.signature(model.forward).parameters
        self._places = "position_ids" in parameters
        if not self._places and not self._recurrent:
            reason = "forward() takes no position_ids, which trees need"
            raise IncompatibleError(f"model_type = {family!r}: {reason}")
        self._capacity, self._device = num_blocks * BLOCK_TOKENS, device
        self._memory: Memory = {}
        text = self.model.config.get_text_config()
        self._max_positions = longest_text(text) if self._places else UNBOUNDED
        self.limit = ""
        """Reason why not all positions are served; empty if all are."""
        if self._places and self._max_positions < text.max_position_embeddings:
            stated = "its original_max_position_embeddings (rope_type = 'longrope')"
            self.limit = f"served up to {self._max_positions}, {stated}"
        self._keeps = "logits_to_keep" in parameters
        self.attending: list[torch.nn.Module] = []
        """Modules that read or stored earlier tokens in the last pass."""

    @property
    def recurrent_states(self) -> RecurrentStates[TokenState] | None:
        return self._recurrent.states if self._recurrent else None

    def run(self, batch: Batch) -> torch.Tensor:
        """Run a pass and return its logits [R, V]."""
        if batch.positions and max(batch.positions) >= self._max_positions:
            raise IncompatibleError(
                f"position {max(batch.positions)}: the model is {self.limit or f'served up to {self._max_positions}'}"
            )
        token_ids, positions, slots, rows = (
            torch.tensor(numbers, dtype=torch.int64, device=self._device)
            for numbers in (batch.token_ids, batch.positions, batch.write_slots, batch.logit_rows)
        )
        more = {"logits_to_keep": rows} if self._keeps else {}
        if self._places:
            more["position_ids"] = positions[None]
        running = GenericPass(batch, slots, self._memory, self._capacity)
        token = CURRENT.set(running)
        try:
            with self._recurrent.over(batch):
                out = self.model(
                    input_ids=token_ids[None],
                    attention_mask=torch.ones_like(token_ids)[
                        None
                    ],  # otherwise transformers splits the row where positions jump
                    use_cache=False,
                    **more,
                )
        finally:
            CURRENT.reset(token)
        self.attending = [*running.modules, *self._recurrent.modules]
        logits: torch.Tensor = out.logits[0].float()
        return logits if self._keeps else logits[rows]

    @torch.inference_mode()
    def move(self, source: Slots, target: Slots) -> None:
        here, there = (
            torch.tensor(slots, dtype=torch.int64, device=self._device) for slots in (source, target)
        )
        for pair in self._memory.values():
            for cache in pair:
                cache.index_copy_(0, there, cache.index_select(0, here))

    def rotate(self, slots: Slots, delta: int) -> None:
        """Raise an error: how keys depend on positions is unknown."""
        raise NotImplementedError("rotate: the generic executor's cache has no window (kv_window)")


def generic_config(hf: Any, generation: Any | None = None) -> ModelConfig:
    """Return the fields of `ModelConfig` that callers need; others are placeholders."""
    text = hf.get_text_config()
    heads = _number(text, "num_attention_heads") or 1
    return ModelConfig(
        family=hf.model_type,
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=_number(text, "intermediate_size") or 4 * text.hidden_size,
        layers=text.num_hidden_layers,
        heads=heads,
        kv_heads=_number(text, "num_key_value_heads") or heads,
        head_dim=_number(text, "head_dim") or text.hidden_size // heads,
        norm_eps=0.0,
        max_positions=served_positions(text),
        activation="",
        tied_embeddings=False,
        qk_norm=False,
        eos_token_ids=eos_token_ids(text, generation),
    )


def _number(text: Any, name: str) -> int | None:
    """Return a number of the configuration; None: missing, or different per layer."""
    try:
        value = getattr(text, name, None)
    except RuntimeError:  # raised by configurations whose layers differ
        return None
    return value if isinstance(value, int) else None
