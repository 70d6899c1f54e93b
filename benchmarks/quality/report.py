"""Distances of distributions, and the section of a model in the report."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from benchmarks.tables import head, line, origin

TITLE = """# Quality of the formats

Next-token distributions at all tokens of some texts, compared with those of the same checkpoint in float32.
KL: divergence from float32 in nats. First token: share of tokens after which the most probable token is the same.
"auto" is a GGUF file as it lies: its distance is what activations of 8 bits cost. Where the checkpoint is a quantised
file, the other rows quantise its dequantised numbers again: they show what the format adds, and the format of the
file itself looks too good.
"""


class Distance(NamedTuple):
    """Distance of a format from the reference."""

    mean: float
    """Mean KL divergence."""
    high: float
    """99th percentile of the KL divergences."""
    same: float
    """Share of equal first tokens."""

    @classmethod
    def of(cls, kl: torch.Tensor, same: torch.Tensor) -> "Distance":
        """Return the distance over all tokens, each with its KL and whether its first token is the same."""
        return cls(kl.mean().item(), kl.quantile(0.99).item(), same.float().mean().item())


class Row(NamedTuple):
    """One format."""

    name: str
    held: str
    """Types that were really held, and why."""
    distance: Distance

    def line(self) -> str:
        """Return the line of the table."""
        mean, high, same = self.distance
        return line(self.name, [f"{mean:.5f}", f"{high:.4f}", f"{same:.2%}", self.held])


def distances(logits: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return by row the KL divergence from the reference, and whether both have the same maximum."""
    wanted = reference.log_softmax(-1)
    kl = (wanted.exp() * (wanted - logits.log_softmax(-1))).sum(-1)
    return kl, logits.argmax(-1) == reference.argmax(-1)


def section(title: str, rows: Sequence[Row], texts: int, tokens: int, about: dict[str, Any]) -> str:
    """Return the section of a model."""
    columns = ["KL, mean", "KL, 99th percentile", "same first token", "held"]
    lines = [
        f"## {title}",
        "",
        f"{origin(about)}; {texts} texts, {tokens} tokens.",
        "",
        *head(columns, "format"),
    ]
    return "\n".join([*lines, *(row.line() for row in rows), ""])
