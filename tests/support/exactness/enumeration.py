"""Exact output distributions: run programs over every outcome of their random choices, without sampling.

`outcomes(program)` calls `program(branches)` once per combination of outcomes; the program makes every random
choice by `branches`. The real merge, cut and acceptance rule run unchanged: drafts ask for their
tokens, and the rule gets a generator whose numbers, compared with a threshold, branch into accepted and
rejected with the probabilities that the comparison has (`BranchingRandomness`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar, cast

import numpy as np

from specinfer.model.sampling.noise import Noise
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from specinfer.verification.acceptance import AcceptanceRule, Float64, Randomness, find_rule
from specinfer.verification.target import LateNodeError

T = TypeVar("T")
Path = tuple[int, ...]
"""Tokens after the context."""
Tables = list[Float64]
"""Tables[d][path of d tokens] is the distribution [V] of the next token."""


Lateness = Callable[[Path], int]
"""Function from a path to the number of times that the mask of its constraint is not ready when asked for."""
Choice = Callable[[Float64], int]
"""Noise: a function that chooses a token, given unnormalised probabilities."""


class Branches:
    """Random choices of one run: options from a script, then the first option of each further choice."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.trail: list[tuple[int, int]] = []
        """(option taken, options) of every choice so far."""
        self.weight = 1.0
        """Probability of the run."""

    def choose(self, weights: Sequence[float] | Float64) -> int:
        """Choose an index with probability proportional to its weight; weight 0 is never chosen."""
        possible = np.flatnonzero(np.asarray(weights, float) > 0)
        at = len(self.trail)
        option = self._script[at] if at < len(self._script) else 0
        self.trail.append((option, len(possible)))
        index = int(possible[option])
        self.weight *= float(weights[index]) / float(np.sum(weights))
        return index

    def next_script(self) -> list[int] | None:
        trail = list(self.trail)
        while trail and trail[-1][0] + 1 == trail[-1][1]:
            trail.pop()
        if not trail:
            return None
        return [option for option, _ in trail[:-1]] + [trail[-1][0] + 1]


def outcomes(program: Callable[[Branches], T]) -> Iterator[tuple[T, float]]:
    """Yield every outcome of a program with its probability."""
    script: list[int] | None = []
    while script is not None:
        branches = Branches(script)
        result = program(branches)
        yield result, branches.weight
        script = branches.next_script()


class _Uniform:
    """A number drawn uniformly from [0, scale): comparing it branches."""

    def __init__(self, branches: Branches, scale: float = 1.0) -> None:
        self._branches, self._scale = branches, scale

    def __mul__(self, factor: float) -> "_Uniform":
        return _Uniform(self._branches, self._scale * float(factor))

    def __le__(self, bound: float) -> bool:
        below = min(1.0, float(bound) / self._scale)
        return self._branches.choose([below, 1 - below]) == 0


class BranchingRandomness:
    """Stands in for `specinfer.verification.acceptance.Randomness`: a generator and a noise in one."""

    def __init__(self, branches: Branches, choose: Choice | None = None) -> None:
        """`choose` is a fixed noise; with None, the noise also branches."""
        self._branches, self._choose = branches, choose or branches.choose

    def stream(self, depth: int) -> Any:
        return self

    def noise(self, depth: int) -> Any:
        return self

    def random(self) -> _Uniform:
        return _Uniform(self._branches)

    def choose(self, p: Float64) -> int:
        return self._choose(p)


@dataclass(frozen=True)
class TableTarget:
    """The target's distribution after each node of a tree, from tables."""

    tables: Tables
    tree: TokenTree

    def best(self, node: int) -> int:
        return int(self.probabilities(node).argmax())

    def probabilities(self, node: int) -> Float64:
        return np.array(after(self.tables, self.tree.sequence_of(node)[1:]))

    def choose(self, node: int, noise: Noise) -> int:
        return noise.choose(self.probabilities(node))


class LateTarget:
    """A target with late masks; requests whose root has no mask are not in a pass."""

    def __init__(self, target: TableTarget, late: Lateness) -> None:
        self._target = target
        paths = [tuple(target.tree.sequence_of(node)[1:]) for node in range(len(target.tree))]
        self._late = [late(path) if path else 0 for path in paths]

    def best(self, node: int) -> int:
        self._ask(node)
        return self._target.best(node)

    def probabilities(self, node: int) -> Float64:
        self._ask(node)
        return self._target.probabilities(node)

    def choose(self, node: int, noise: Noise) -> int:
        self._ask(node)
        return self._target.choose(node, noise)

    def _ask(self, node: int) -> None:
        if self._late[node]:
            self._late[node] -= 1
            raise LateNodeError(node)


def after(tables: Tables, path: Path) -> Float64:
    """Return the distribution [V] after a path; beyond the tables, the one after the context."""
    return cast(Float64, tables[len(path)][path] if len(path) < len(tables) else tables[0])


def verified(
    tree: TokenTree,
    tables: Tables,
    rule: str = "multi_step",
    choose: Choice | None = None,
    late: Lateness = lambda path: 0,
) -> dict[Path, float]:
    """Return the tokens that one step commits, with their probabilities over the rule's own randomness.

    Args:
        choose: fixed noise, if drafts may depend on it.
        late: delay of masks by path. The step ends at a node whose mask is needed and not ready.
    """
    verify: AcceptanceRule = find_rule(rule)

    def step(branches: Branches) -> Path:
        target = LateTarget(TableTarget(tables, tree), late)
        try:
            verdict = verify(tree, target, cast(Randomness, BranchingRandomness(branches, choose)))
        except LateNodeError as error:
            return tuple(tree.sequence_of(error.node)[1:])
        return (*(int(tree.token_ids[node]) for node in verdict.accepted), verdict.bonus)

    return _total(outcomes(step))


def joint(
    draft: Callable[[Branches], Sequence[TokenTree]],
    targets: Sequence[Tables],
    length: int,
    rule: str = "multi_step",
    late: Lateness = lambda path: 0,
) -> Float64:
    """Return the joint distribution, [V] * (length * requests), of the first `length` tokens of a batch's
    requests.

    Args:
        draft: returns the cut trees of one step, one per request. Tokens that the step does not commit come from
            the target, since the next step's drafts are independent of this step's.
        targets: tables of every request's target.
        late: delay of masks by path, as in `verified`.
    """
    probability: Any = 0.0
    known: dict[tuple[int, bytes], Float64] = {}
    for trees, weight in outcomes(draft):
        parts = []
        for i, tree in enumerate(trees):
            key = i, _signature(tree)
            if key not in known:
                known[key] = _completed(verified(tree, targets[i], rule, late=late), targets[i], length)
            parts.append(known[key])
        together: Any = weight
        for part in parts:
            together = np.multiply.outer(together, part)
        probability = probability + together
    return np.asarray(probability)


def exact(targets: Sequence[Tables], length: int) -> Float64:
    """Return the expected result of `joint`: the requests' tokens follow their targets independently."""
    together: Any = 1.0
    for tables in targets:
        together = np.multiply.outer(together, _completed({(): 1.0}, tables, length))
    return np.asarray(together)


def _completed(committed: dict[Path, float], tables: Tables, length: int) -> Float64:
    size = len(tables[0])
    result = np.zeros((size,) * length)
    for tokens, weight in committed.items():
        kept = tokens[:length]
        for rest in product(range(size), repeat=length - len(kept)):
            p, path = weight, kept
            for token in rest:
                p *= after(tables, path)[token]
                path = (*path, token)
            result[path] += p
    return result


def _total(outcomes: Iterator[tuple[Path, float]]) -> dict[Path, float]:
    total: dict[Path, float] = {}
    for tokens, weight in outcomes:
        total[tokens] = total.get(tokens, 0.0) + weight
    return total


def _signature(tree: TokenTree) -> bytes:
    rows = [
        (
            p.parent,
            p.speculator,
            int(p.kind),
            p.children,
            p.q_token_ids.tobytes(),
            p.q_probabilities.tobytes(),
        )
        for p in tree.proposals
    ]
    return repr((tree.token_ids.tolist(), tree.parents.tolist(), rows, tree.order)).encode()


def random_tables(rng: np.random.Generator, size: int, depth: int, sharpness: float = 1.5) -> Tables:
    """Return random distributions after every path of up to `depth` tokens; some tokens are impossible."""
    tables = []
    for d in range(depth + 1):
        weights = np.exp(sharpness * rng.normal(size=(size,) * (d + 1)))
        impossible = rng.random(weights.shape) < 0.1
        weights = np.where(impossible & (weights < weights.max(-1, keepdims=True)), 0.0, weights)
        tables.append(np.asarray(weights / weights.sum(-1, keepdims=True)))
    return tables


def drawn(
    branches: Branches, builder: TreeBuilder, node: int, kind: ProposalKind, q: Float64, count: int
) -> list[int]:
    """Propose `count` children drawn from q, in float32 as on the wire; return their distinct nodes."""
    ids = np.flatnonzero(q > 0).astype(np.int32)
    sent = q[ids].astype(np.float32)
    left, draws = sent.astype(np.float64), list[int]()
    while len(draws) < count and left.sum() > 0:
        index = branches.choose(left)
        draws.append(int(ids[index]))
        if kind is ProposalKind.WITHOUT_REPLACEMENT:
            left[index] = 0.0
    return builder.propose_samples(node, kind, draws, (ids, sent))
