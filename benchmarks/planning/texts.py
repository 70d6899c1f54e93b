"""Simulate texts and the drafts of two speculators.

A text is described by the probability that the accurate speculator's first guess is correct. Token ids of a tree
encode guesses: `2 * rank + speculator`, where rank 0 is the speculator's best guess.
"""

import heapq
import random
from dataclasses import dataclass, field
from functools import lru_cache

from specinfer.tree import TokenTree, TreeBuilder

TOKENS, PROMPT = 128, 170
"""Tokens of an answer, and average tokens of a prompt."""
COPIED = 0.98
"""Probability of a correct first guess while a text copies itself."""
ROOT = 0


@dataclass
class SimulatedRequest:
    """A request in the simulation."""

    name: str
    guess: float
    """Probability that the good speculator's first guess is right."""
    left: int = TOKENS
    context: int = PROMPT
    """Context tokens."""
    read: dict[int, int] = field(default_factory=dict)
    """Context tokens that each speculator has read."""
    copying: bool = False
    alarm: bool = False
    """True if n-grams draft although the text copies nothing."""


def accepted_path(text: SimulatedRequest, tree: TokenTree, rng: random.Random) -> list[int]:
    """Draw which path of a tree the target accepts."""
    kids: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        kids.setdefault(parent, []).append(node)
    path, node = list[int](), 0
    while node in kids:
        at, chosen = rng.random(), None
        for child in kids[node]:
            token = int(tree.token_ids[child])
            at -= probability_of(first_guess(text, token % 2), token // 2, token % 2)
            if at < 0:
                chosen = child
                break
        if chosen is None:
            return path
        path.append(chosen)
        node = chosen
    return path


def expected_accepted(text: SimulatedRequest, tree: TokenTree) -> float:
    """Return the expected number of accepted nodes."""
    chances, tokens = [1.0], tree.token_ids.tolist()
    for node, parent in enumerate(tree.parents.tolist()[1:], 1):
        rank, speculator = divmod(tokens[node], 2)
        chances.append(chances[parent] * probability_of(first_guess(text, speculator), rank, speculator))
    return sum(chances) - 1


def first_guess(text: SimulatedRequest, speculator: int) -> float:
    if text.copying:
        return COPIED if speculator == 0 else 0.0
    return text.guess if speculator == 0 else text.guess**2


def probability_of(guess: float, rank: int, speculator: int) -> float:
    """Return the probability that a speculator's guess of a rank is correct."""
    return float((0.85 if speculator == 0 else 0.15) * guess * (1 - guess) ** rank)


@lru_cache(maxsize=64)
def copied_chain(token: int, nodes: int) -> TokenTree:
    """Return a chain of `nodes` equal tokens, as n-gram drafters propose."""
    builder, node = TreeBuilder(ROOT), 0
    for _ in range(nodes):
        (node,) = builder.propose_points(node, [token], [0.7], speculator=1)
    return builder.build()


@lru_cache(maxsize=1024)
def drafted_tree(guess: float, nodes: int, speculator: int) -> TokenTree:
    """Return the tree of a speculator that overestimates its scores."""
    builder = TreeBuilder(ROOT)
    heap = [(-probability_of(guess, 0, speculator), 0, 0)]  # minus path probability, parent, rank
    while heap and len(builder) <= nodes:
        negated, parent, rank = heapq.heappop(heap)
        probability = probability_of(guess, rank, speculator)
        (node,) = builder.propose_points(
            parent, [2 * rank + speculator], [probability**0.7], speculator=speculator
        )
        heapq.heappush(
            heap, (negated / probability * probability_of(guess, rank + 1, speculator), parent, rank + 1)
        )
        heapq.heappush(heap, (negated * probability_of(guess, 0, speculator), node, 0))
    return builder.build()
