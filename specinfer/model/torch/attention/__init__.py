"""Attention over the paged cache: one signature, several backends, loaded on request by name.

A backend is one file plus one line here.
"""

from importlib import import_module
from typing import Any, Protocol

import torch

from specinfer.errors import SettingError
from specinfer.model.batch import Batch

BACKENDS = {
    "reference": "specinfer.model.torch.attention.reference:ReferenceAttention",
}


class AttentionBackend(Protocol):
    """Tree attention (paper, Definition 4.1) for a ragged batch."""

    def plan(self, batch: Batch, look_back: int = 0) -> Any:
        """Return the common parts (masks, tables) of all layers of one pass, computed once.

        With `look_back` a token sees no more than so many positions up to its own.
        """

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        plan: Any,
        scale: float | None = None,
        cap: float = 0.0,
    ) -> torch.Tensor:
        """Return attention of every token of the pass over its own request.

        Args:
            query: [T, H, D], rotated.
            keys, values: [slots, KV heads, D], this layer's cache, the pass's own entries written.
            plan: what `plan` returned for this pass.
            scale: factor on scores; None: one over the root of D.
            cap: soft bound of scores; 0: none.

        Returns:
            [T, H, D]
        """


def make_attention(name: str, device: str) -> AttentionBackend:
    """Return the backend of this name.

    Raises:
        SettingError: if there is none.
    """
    if name not in BACKENDS:
        raise SettingError("attention", name, f"must be one of {', '.join(BACKENDS)}")
    module, cls = BACKENDS[name].split(":")
    backend: AttentionBackend = getattr(import_module(module), cls)(device)
    return backend
