"""Pools of speculators for the proofs by enumeration: drafts as programs over every outcome, merged and cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import specinfer.model.sampling.drawing
import specinfer.tree.cut
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.request.sampling import Sampling
from specinfer.tree import (
    ExpansionVector,
    ProposalKind,
    TokenTree,
    TreeBuilder,
    TreeLimits,
    check_tree,
    cut_trees,
    merge_trees,
)
from tests.support.exactness.enumeration import (
    Branches,
    Tables,
    after,
    drawn,
    random_tables,
)

POINT, WITH, WITHOUT = ProposalKind
ROOT = 0
EXACT = 1e-9
BIASED = 1e-3
DRAWING = ["multi_step", "traversal"]
"""Rules that try draws."""
Draft = Callable[[Branches], TokenTree]
Cut = Callable[[Sequence[TokenTree]], list[TokenTree]]


def path_of(builder: TreeBuilder, node: int) -> tuple[int, ...]:
    path: list[int] = []
    while node > 0:
        path.insert(0, builder.token_ids[node])
        node = builder.parents[node]
    return tuple(path)


def draws(tables: Tables, kind: ProposalKind, widths: Sequence[int]) -> Draft:
    """Return a draft that draws a tree of the given widths, level by level."""

    def draft(branches: Branches) -> TokenTree:
        builder, frontier = TreeBuilder(ROOT), [0]
        for width in widths:
            level = []
            for node in frontier:
                level += drawn(branches, builder, node, kind, after(tables, path_of(builder, node)), width)
            frontier = level
        return builder.build()

    return draft


def points(tables: Tables, widths: Sequence[int]) -> Draft:
    """Return a draft of the most probable tokens, without randomness."""

    def draft(branches: Branches) -> TokenTree:
        builder, frontier = TreeBuilder(ROOT), [0]
        for width in widths:
            level = []
            for node in frontier:
                q = after(tables, path_of(builder, node))
                top = np.argsort(-q, kind="stable")[:width]
                level += builder.propose_points(node, top.tolist(), q[top].tolist())
            frontier = level
        return builder.build()

    return draft


def mixed(tables: Tables, kind: ProposalKind) -> Draft:
    """Return a draft like a user's function: draws and points, in which later ones depend on earlier draws."""

    def draft(branches: Branches) -> TokenTree:
        builder = TreeBuilder(ROOT)
        (first,) = drawn(branches, builder, 0, kind, tables[0], 1)
        below = after(tables, path_of(builder, first))
        if builder.token_ids[first] != 1:
            builder.propose_points(0, [1], [0.7])
        if builder.token_ids[first] == 0:
            builder.propose_points(first, [int(below.argmin())], [0.9])
            drawn(branches, builder, 0, WITH, tables[0], 1)
        else:
            drawn(branches, builder, first, kind, below, 1 + builder.token_ids[first] % 2)
        return builder.build()

    return draft


class TableModel:
    """A draft model whose logits come from tables."""

    def __init__(self, tables: Tables) -> None:
        with np.errstate(divide="ignore"):
            self._logits = [torch.from_numpy(np.log(table)) for table in tables]

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        return [torch.stack([self._logits[len(path)][path] for path in self._paths(s)]) for s in segments]

    def _paths(self, segment: Segment) -> list[tuple[int, ...]]:
        sequence = segment.sequence
        if segment.delta:
            return [()]
        first = len(sequence.node_tokens)
        sequence.node_tokens.extend(segment.nodes)
        sequence.node_parents.extend(segment.parents)
        return [self._path(sequence, node) for node in range(first, len(sequence.node_tokens))]

    @staticmethod
    def _path(sequence: KVSequence, node: int) -> tuple[int, ...]:
        path: list[int] = []
        while node >= 0:
            path.insert(0, sequence.node_tokens[node])
            node = sequence.node_parents[node]
        return tuple(path)


def grown(tables: Tables, shape: GrowthShape, limits: TreeLimits) -> Draft:
    """Return a draft by the real tree growth of SSMs: draws exceed the limits, and q lacks some tokens of P."""
    growth = ReferenceGrowth(TableModel(tables).forward, shape, torch.arange(len(tables[0])))

    def draft(branches: Branches) -> TokenTree:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(specinfer.model.sampling.drawing, "draw", lambda p, _: branches.choose(p))
            (tree,) = growth.grow([GrowthTask(KVSequence(), [ROOT], limits, Sampling())])
        check_tree(tree, len(tables[0]), limits.nodes + 1)
        return tree

    return draft


def merged(drafts: Sequence[Draft], branches: Branches) -> TokenTree:
    return merge_trees([(index, draft(branches)) for index, draft in enumerate(drafts)])


def step(pools: Sequence[Sequence[Draft]], cut: Cut) -> Callable[[Branches], list[TokenTree]]:
    """Return a program of the cut trees of a batch whose requests have these pools."""
    return lambda branches: cut([merged(drafts, branches) for drafts in pools])


def to(*budgets: int, **options: object) -> Cut:
    """Return a cut of a batch's trees to these numbers of nodes, roots excluded."""
    return lambda trees: cut_trees(trees, [budget + 1 for budget in budgets], **options)  # type: ignore[arg-type]


def table(*rows: object) -> Tables:
    return [np.array(row, float) for row in rows]


@dataclass(frozen=True)
class Pool:
    """One request's speculators."""

    drafts: list[Draft]
    budget: int


@st.composite
def pools(draw: st.DrawFn, rng: np.random.Generator, size: int, most: int) -> Pool:
    """One to three speculators that make about `most` draws together."""
    drafts: list[Draft] = []
    left = most
    for _ in range(draw(st.integers(1, 3))):
        tables = random_tables(rng, size, 3)
        sort = draw(st.sampled_from(["draws", "points", "mixed", "grown", "expanded"]))
        kind = draw(st.sampled_from([WITH, WITHOUT]))
        if sort == "points" or left < 2:
            drafts.append(points(tables, draw(st.sampled_from([(1,), (2,), (1, 1), (2, 1), (1, 1, 1)]))))
            continue
        widths = draw(st.sampled_from([w for w in ((2,), (1, 1), (1, 1, 1), (2, 1)) if _count(w) <= left]))
        left -= _count(widths)
        if sort == "draws":
            drafts.append(draws(tables, kind, widths))
        elif sort == "mixed":
            drafts.append(mixed(tables, kind))
        else:
            expansion = ExpansionVector(widths) if sort == "expanded" else None
            nodes = draw(st.integers(1, min(3, _count(widths))))
            drafts.append(grown(tables, shape_of(kind, size, expansion), TreeLimits(nodes, len(widths))))
    return Pool(drafts, draw(st.integers(1, 5)))


def shape_of(kind: ProposalKind, size: int, expansion: ExpansionVector | None = None) -> GrowthShape:
    return GrowthShape(expansion, beam=2, kind=kind, q_support=max(2, size - 1))


def _count(widths: Sequence[int]) -> int:
    return ExpansionVector(tuple(widths)).nodes


@st.composite
def options(draw: st.DrawFn) -> dict[str, object]:
    """Random options of a cut: beliefs by speculator and draw index, and a function `keeps`."""
    shares = st.lists(st.floats(0.01, 1), min_size=3, max_size=3)
    believed = draw(st.dictionaries(st.integers(0, 2), shares, max_size=3))
    budget, least = draw(st.integers(1, 8)), draw(st.floats(0, 0.1))
    return {
        "beliefs": {
            s: (lambda place, _, choices=choices: choices[min(place, 2)]) for s, choices in believed.items()
        },
        "keeps": lambda kept, chance: kept < budget and chance > least * kept,
    }
