"""The distribution of stochastic output is the target's (paper, Theorem 4.2), and the test can tell.

A target and two drafters over four tokens are tables indexed by the last two tokens. Each sample
generates three tokens through the real merge, cut and acceptance code; the 64 outcomes are compared
with their exact probabilities by a chi-square test.

False alarms: every test uses a fixed seed and fails for p < 1e-4. If the code is right, a fresh seed
would fail one of the 25 cases with probability 25e-4 at most. The negative controls must reach
p < 1e-9.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from specinfer.model.batch import Segment
from specinfer.model.distributions import draw
from specinfer.model.growth import GrowthShape, GrowthTask, ReferenceGrowth
from specinfer.model.gumbel import Noise
from specinfer.model.kv_cache import KVSequence
from specinfer.sampling import SamplingParams
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder, TreeLimits, cut_trees, merge_trees, truncate
from verifier_svc.acceptance import AcceptanceRule, Float64, RequestRandomness, find_rule

pytestmark = pytest.mark.statistical

V, LENGTH, SAMPLES = 4, 3, 6000
POINT, WITH, WITHOUT = ProposalKind
ALPHA, CERTAIN = 1e-4, 1e-9
Context = tuple[int, ...]
Draft = Callable[[Context, np.random.Generator, int], TokenTree]
"""Of a context, by randomness of its own and, if it likes, the seed by which the target chooses."""
Cut = Callable[[TokenTree, np.random.Generator], TokenTree]


def _table(seed: int, sharpness: float) -> Float64:
    logits = np.random.default_rng(seed).normal(size=(V, V, V)) * sharpness
    e = np.exp(logits)
    return np.asarray(e / e.sum(-1, keepdims=True))


TARGET = _table(1, 1.0)
DRAFTS = (0.5 * TARGET + 0.5 * _table(2, 1.0), _table(3, 1.5))
START = (0, 1)


class TableTarget:
    """P after each node of a tree, from the last two tokens."""

    def __init__(self, context: Context, tree: TokenTree) -> None:
        self._context, self._tree = context, tree

    def probabilities(self, node: int) -> Float64:
        a, b = (*self._context[:-1], *self._tree.sequence_of(node))[-2:]
        return np.array(TARGET[a, b])

    def best(self, node: int) -> int:
        return int(self.probabilities(node).argmax())

    def choose(self, node: int, noise: Noise) -> int:
        return noise.choose(self.probabilities(node))


def _drafter(table: Float64, kind: ProposalKind, widths: Sequence[int] = (2, 2)) -> Draft:
    """Draws a tree of the given widths; float32 as on the wire."""

    def draft(context: Context, rng: np.random.Generator, seed: int) -> TokenTree:
        builder, frontier = TreeBuilder(context[-1]), [0]
        for width in widths:
            level = []
            for node in frontier:
                q = table[_last_two(context, builder, node)].astype(np.float32)
                level.extend(_propose(builder, node, kind, q, width, rng))
            frontier = level
        return builder.build()

    return draft


def _last_two(context: Context, builder: TreeBuilder, node: int) -> tuple[int, int]:
    tail: list[int] = []
    while node > 0:
        tail.insert(0, builder.token_ids[node])
        node = builder.parents[node]
    a, b = (*context, *tail)[-2:]
    return a, b


def _propose(
    builder: TreeBuilder,
    node: int,
    kind: ProposalKind,
    q: "np.ndarray[tuple[int], np.dtype[np.float32]]",
    width: int,
    rng: np.random.Generator,
) -> list[int]:
    if kind is POINT:
        top = np.argsort(-q)[:width]
        return builder.propose_points(node, top.tolist(), q[top].tolist())
    left, draws = q.astype(np.float64), []
    for _ in range(width):
        draws.append(draw(left, rng))
        if kind is WITHOUT:
            left[draws[-1]] = 0
    return builder.propose_samples(node, kind, draws, (np.arange(V, dtype=np.int32), q))


class TableModel:
    """A draft whose logits are those of a table."""

    def __init__(self, table: Float64) -> None:
        self._logits = torch.from_numpy(np.log(table))

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        return [self._logits[tuple(zip(*self._pairs(s), strict=True))] for s in segments]

    def _pairs(self, segment: Segment) -> list[Context]:
        """The last two tokens before each row of logits."""
        sequence = segment.sequence
        if segment.delta:
            sequence.tokens.extend(segment.delta)
            return [tuple(sequence.tokens[-2:])]
        sequence.node_tokens.extend(segment.nodes)
        sequence.node_parents.extend(segment.parents)
        ends = [*range(-1, len(sequence.node_tokens))]
        tokens = dict(zip(ends, [sequence.tokens[-1], *sequence.node_tokens], strict=True))
        return [(tokens[p], t) for p, t in zip(segment.parents, segment.nodes, strict=True)]


def _best_first(table: Float64, kind: ProposalKind, nodes: int) -> Draft:
    """The growth of the SSM drafter: more is drawn than is kept, and q lacks a token that P has."""
    shape = GrowthShape(beam=2, kind=kind, q_support=V - 1)
    growth = ReferenceGrowth(TableModel(table).forward, shape, torch.arange(V))

    def draft(context: Context, rng: np.random.Generator, seed: int) -> TokenTree:
        own = seed if kind is POINT else int(rng.integers(2**63))
        task = GrowthTask(KVSequence(), context, TreeLimits(nodes, 3), SamplingParams(seed=own))
        return growth.grow([task])[0]

    return draft


def _mistaken_top_k(table: Float64) -> Draft:
    """The known mistake: top-k children that claim to be draws from the softmax."""

    def draft(context: Context, rng: np.random.Generator, seed: int) -> TokenTree:
        q = table[context[-2], context[-1]].astype(np.float32)
        builder = TreeBuilder(context[-1])
        top = np.argsort(-q)[:2].tolist()
        builder.propose_samples(0, WITHOUT, top, (np.arange(V, dtype=np.int32), q))
        return builder.build()

    return draft


def _generate(rule: AcceptanceRule, drafts: Sequence[Draft], cut: Cut, rng: np.random.Generator) -> Context:
    context, seed = START, int(rng.integers(2**63))
    while len(context) < len(START) + LENGTH:
        trees = [(i, draft(context, rng, seed)) for i, draft in enumerate(drafts)]
        tree = cut(merge_trees(trees), rng)
        randomness = RequestRandomness(SamplingParams(seed=seed), len(context))
        verdict = rule(tree, TableTarget(context, tree), randomness)
        accepted = tuple(int(tree.token_ids[v]) for v in verdict.accepted)
        context = (*context, *accepted, verdict.bonus)
    return context[len(START) : len(START) + LENGTH]


def _exact() -> dict[Context, float]:
    result = {}
    for tokens in product(range(V), repeat=LENGTH):
        p, context = 1.0, START
        for token in tokens:
            p *= TARGET[context[-2], context[-1], token]
            context = (*context, token)
        result[tokens] = p
    return result


def _whole(tree: TokenTree, rng: np.random.Generator) -> TokenTree:
    return tree


def p_value(rule: str, drafts: Sequence[Draft], cut: Cut = _whole, seed: int = 0) -> float:
    """Probability of a deviation at least this large if the output were the target's."""
    rng = np.random.default_rng(seed)
    exact = _exact()
    counts = dict.fromkeys(exact, 0)
    for _ in range(SAMPLES):
        counts[_generate(find_rule(rule), drafts, cut, rng)] += 1
    common = [k for k in exact if exact[k] * SAMPLES >= 5]  # the usual condition of the test
    rare = [k for k in exact if k not in common]
    observed = [counts[k] for k in common] + [sum(counts[k] for k in rare)]
    expected = [exact[k] * SAMPLES for k in common] + [sum(exact[k] for k in rare) * SAMPLES]
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("rule", ["multi_step", "naive"])
@pytest.mark.parametrize("kind", [POINT, WITH, WITHOUT])
def test_one_speculator(rule: str, kind: ProposalKind) -> None:
    assert p_value(rule, [_drafter(DRAFTS[0], kind)]) > ALPHA


@pytest.mark.parametrize("rule", ["multi_step", "naive"])
@pytest.mark.parametrize("kinds", [(POINT, WITHOUT), (WITH, WITHOUT), (WITHOUT, WITHOUT), (WITH, POINT)])
def test_two_merged_speculators(rule: str, kinds: tuple[ProposalKind, ProposalKind]) -> None:
    assert p_value(rule, [_drafter(t, k) for t, k in zip(DRAFTS, kinds, strict=True)]) > ALPHA


@pytest.mark.parametrize("kinds", [(WITH, WITHOUT), (WITHOUT, POINT), (WITH, WITH)])
def test_two_merged_speculators_cut_to_a_budget(kinds: tuple[ProposalKind, ProposalKind]) -> None:
    drafts = [_drafter(t, k) for t, k in zip(DRAFTS, kinds, strict=True)]
    assert p_value("multi_step", drafts, lambda tree, rng: truncate(tree, 4)) > ALPHA


@pytest.mark.parametrize("kinds", [(WITH, WITHOUT), (WITHOUT, POINT), (WITHOUT, WITHOUT)])
def test_two_merged_speculators_cut_together_with_a_batch_mate(
    kinds: tuple[ProposalKind, ProposalKind],
) -> None:
    """The node budget of a batch: what another request's tree leaves, while it is worth its price."""
    drafts = [_drafter(t, k) for t, k in zip(DRAFTS, kinds, strict=True)]
    mate = _drafter(DRAFTS[1], WITHOUT, (3, 1))

    def cut(tree: TokenTree, rng: np.random.Generator) -> TokenTree:
        trees = [tree, mate((2, 3), rng, 0)]
        beliefs = {0: lambda place, _: (0.7, 0.1)[min(place, 1)], 1: lambda place, chance: 0.5 * chance}
        return cut_trees(trees, [6, 5], beliefs, lambda kept, chance: kept < 7 and chance > 0.02 * kept)[0]

    assert p_value("multi_step", drafts, cut) > ALPHA


@pytest.mark.parametrize(("kind", "nodes"), [(WITHOUT, 3), (WITHOUT, 5), (WITH, 3), (POINT, 4)])
def test_best_first_trees(kind: ProposalKind, nodes: int) -> None:
    """Trees of the likeliest draws, or of what the target's own noise favours, merged with another
    speculator's points and cut once more."""
    drafts = [_drafter(DRAFTS[1], POINT, (1, 1)), _best_first(DRAFTS[0], kind, nodes)]
    assert p_value("multi_step", drafts, lambda tree, rng: truncate(tree, nodes + 1)) > ALPHA


def test_negative_control_top_k_children_against_softmax() -> None:
    """Trap 1: deterministic children verified as if drawn are not lossless, and this test sees it."""
    assert p_value("multi_step", [_mistaken_top_k(DRAFTS[0])]) < CERTAIN


def test_draws_beside_points_that_look_at_the_noise() -> None:
    """What is left of P when all draws are rejected is chosen by noise that the points have seen."""
    drafts = [_best_first(DRAFTS[0], POINT, 3), _best_first(DRAFTS[1], WITHOUT, 3)]
    assert p_value("multi_step", drafts, lambda tree, rng: truncate(tree, 4)) > ALPHA


def test_negative_control_cutting_by_drawn_token() -> None:
    """Keeping the likelier of two independent draws is not lossless, and this test sees it."""

    def draft(context: Context, rng: np.random.Generator, seed: int) -> TokenTree:
        q = DRAFTS[0][context[-2], context[-1]].astype(np.float32)
        best = max((draw(q.astype(np.float64), rng) for _ in range(2)), key=lambda token: q[token])
        builder = TreeBuilder(context[-1])
        builder.propose_samples(0, WITH, [best], (np.arange(V, dtype=np.int32), q))
        return builder.build()

    assert p_value("multi_step", [draft]) < CERTAIN


def test_multi_step_accepts_more_than_naive() -> None:
    """Theorem 4.3 on the same drafts: fewer steps for the same number of tokens."""

    def accepted(rule: str) -> int:
        rng, total = np.random.default_rng(5), 0
        for seed in range(3000):
            tree = _drafter(DRAFTS[0], WITHOUT)(START, rng, seed)
            randomness = RequestRandomness(SamplingParams(seed=seed), len(START))
            total += len(find_rule(rule)(tree, TableTarget(START, tree), randomness).accepted)
        return total

    assert accepted("multi_step") > 1.05 * accepted("naive")
