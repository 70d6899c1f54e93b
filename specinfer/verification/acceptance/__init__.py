"""Acceptance rules: functions (tree, target distribution, randomness) -> verdict.

Every rule in `RULES` is lossless: for any tree, the returned tokens have the target's distribution (greedy: equal
the target's most probable tokens). A rule is one file and one line in `RULES`. The lossy rule `typical` is not in
`RULES`: no setting of a service selects it, only a request that gives its thresholds.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import SettingError
from specinfer.model.sampling.choices import Excerpt
from specinfer.model.sampling.distributions import generator
from specinfer.model.sampling.noise import Noise
from specinfer.request.sampling import Sampling, StreamDomain
from specinfer.system.named_function import named_function
from specinfer.tree import ProposalKind, TokenTree
from specinfer.tree.token_tree import Int32

RULES = {
    "greedy": "specinfer.verification.acceptance.greedy:verify_greedy",
    "multi_step": "specinfer.verification.acceptance.multi_step:verify_multi_step",
    "naive": "specinfer.verification.acceptance.naive:verify_naive",
    "traversal": "specinfer.verification.acceptance.traversal:verify_traversal",
}

Float64 = NDArray[np.float64]


class Target(Protocol):
    """The target's predictions after each node of one tree.

    `choose` samples from the same distribution as `probabilities` returns, without copying it from the device.
    """

    def best(self, node: int) -> int:
        """Return the most probable next token."""

    def probabilities(self, node: int) -> Float64 | Excerpt:
        """Return the distribution [V]; callers may change it at tokens of q."""

    def choose(self, node: int, noise: Noise) -> int:
        """Return the next token, chosen by this noise."""


class Randomness(Protocol):
    """Random numbers for choices after a node, by the node's depth."""

    def stream(self, depth: int) -> np.random.Generator: ...

    def noise(self, depth: int) -> Noise: ...


@dataclass(frozen=True, slots=True)
class RequestRandomness:
    sampling: Sampling
    context_len: int
    """Context position of the token after the root."""

    def stream(self, depth: int) -> np.random.Generator:
        """Return the random stream for accepting draws below a node."""
        return generator(self.sampling, self.context_len + depth, StreamDomain.VERIFY)

    def noise(self, depth: int) -> Noise:
        """Return the noise for choosing the token after a node."""
        return Noise(self.sampling.seed, self.context_len + depth)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Result of a rule: the accepted path, and the token after it."""

    accepted: tuple[int, ...]
    """Accepted nodes, from the root's child down; empty if none is accepted."""
    bonus: int
    """Token that the target adds after the accepted path."""


class AcceptanceRule(Protocol):
    """Accepts a path from the root, and adds a token after it."""

    def __call__(self, tree: TokenTree, target: Target, randomness: Randomness) -> Acceptance: ...


def find_rule(name: str | AcceptanceRule) -> AcceptanceRule:
    """Return a rule: a function itself, or by its name or MODULE:NAME.

    A user's rule is not checked: the answers have the target's distribution only if it keeps it.

    Raises:
        SettingError: for an unknown name.
    """
    if callable(name):
        return name
    if ":" in name:
        return named_function("acceptance", name)
    if name not in RULES:
        raise SettingError("acceptance", name, f"must be one of {', '.join(RULES)}, or MODULE:NAME")
    module, function = RULES[name].split(":")
    rule: AcceptanceRule = getattr(import_module(module), function)
    return rule


def children_by_token(tree: TokenTree) -> dict[tuple[int, int], int]:
    edges = zip(tree.parents[1:].tolist(), tree.token_ids[1:].tolist(), strict=True)
    return {edge: child for child, edge in enumerate(edges, start=1)}


def drawable(tree: TokenTree) -> dict[int, Int32]:
    """Return each node with draws below, and ascending tokens of their q."""
    draws: dict[int, list[Int32]] = {}
    for proposal in tree.proposals:
        if proposal.kind is not ProposalKind.POINT:
            draws.setdefault(proposal.parent, []).append(proposal.q_token_ids)
    return {node: np.unique(np.concatenate(lists)) for node, lists in draws.items()}
