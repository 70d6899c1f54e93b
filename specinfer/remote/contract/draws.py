"""Test that sampled ("drawn") tokens follow the sent distribution q.

Otherwise speculation would bias the output. Each drawn token is ranked in the q that remained before the draw: rank 0
is the most probable token; among equally probable tokens the lower id is first. A rank's expected count is the sum of
its probabilities over all draws. Pearson's statistic over the ranks then has at most the spread of chi-square. With
one draw per request, a total variation distance of 0.2 is found with probability 0.99, of 0.1 with probability 1/3.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from specinfer.remote.contract.examined import BrokenContractError, Examined, NotApplicableError
from specinfer.tree import Proposal, ProposalKind, TokenTree
from specinfer.v1 import common_pb2

REQUESTS = 400
_BATCH = 50
_RANKS = 5
"""Number of ranks; the last includes all later ranks.

An odd number, so that `chi_square_tail` has an even number of degrees of freedom.
"""
_MIN_EXPECTED = 5.0
FALSE_ALARM = 1e-6
"""Probability that a correct service fails the test."""

Float64 = NDArray[np.float64]


async def draws_follow_q(it: Examined) -> str:
    """Check draws of many requests with one context and different draw_seeds."""
    drawing = [place for place, speculator in enumerate(it.description.speculators) if speculator.draws]
    if not drawing:
        raise NotApplicableError("no speculator has `draws` in Describe")
    trees: dict[int, list[TokenTree]] = {place: [] for place in drawing}
    context = it.context(12)
    for start in range(0, REQUESTS, _BATCH):
        entries = [
            it.entry(
                f"draws-{start + i}",
                context,
                sampling=common_pb2.SamplingParams(temperature=1.0),
                draw_seed=int(it.rng.integers(2**63)),
                speculators=drawing,
            )
            for i in range(_BATCH)
        ]
        for entry, result in zip(entries, await it.ask(entries), strict=True):
            for place, tree in it.trees(entry, result).items():
                trees[place].append(tree)
        await it.release([entry.request_id for entry in entries])
    names = [it.description.speculators[place].name for place in drawing]
    return "; ".join(_judge(name, trees[place]) for name, place in zip(names, drawing, strict=True))


def _judge(name: str, trees: Sequence[TokenTree]) -> str:
    observed, expected = rank_counts(trees)
    draws = int(observed.sum())
    if draws < 2 * _MIN_EXPECTED:
        return f"{name}: {draws} draws, too few for a test"
    observed, expected = merged(observed, expected)
    if len(observed) < 3:
        return f"{name}: {draws} draws, too few ranks are probable for a test"
    statistic = float(((observed - expected) ** 2 / expected).sum())
    p_value = chi_square_tail(statistic, len(observed) - 1)
    if p_value < FALSE_ALARM:
        shares = ", ".join(
            f"{o / draws:.3f} ({e / draws:.3f})" for o, e in zip(observed, expected, strict=True)
        )
        raise BrokenContractError(
            f"{name}: {draws} draws do not follow q: shares by rank (expected) {shares}, p = {p_value:.1e}"
        )
    return f"{name}: {draws} draws, p = {p_value:.2f}"


def rank_counts(trees: Iterable[TokenTree]) -> tuple[Float64, Float64]:
    """Return observed and expected counts of draws by rank."""
    observed, expected = np.zeros(_RANKS), np.zeros(_RANKS)
    for tree in trees:
        for proposal in tree.proposals:
            for rank, chances in _ranked(tree, proposal):
                observed[rank] += 1
                expected += chances
    return observed, expected


def _ranked(tree: TokenTree, proposal: Proposal) -> Iterator[tuple[int, Float64]]:
    """Yield each draw's rank, and the [_RANKS] probabilities of all ranks."""
    if proposal.kind is ProposalKind.POINT:
        return
    ids, q = proposal.q_token_ids, proposal.q_probabilities.astype(np.float64)
    for child in proposal.children:
        order = np.lexsort((ids, -q))
        chances = np.zeros(_RANKS)
        np.add.at(chances, np.minimum(np.arange(len(q)), _RANKS - 1), q[order] / q.sum())
        token = tree.token_ids[child]
        yield min(int(np.flatnonzero(ids[order] == token)[0]), _RANKS - 1), chances
        if proposal.kind is ProposalKind.WITHOUT_REPLACEMENT:
            q = np.where(ids == token, 0.0, q)


def merged(observed: Float64, expected: Float64) -> tuple[Float64, Float64]:
    """Merge the last ranks until every rank expects `_MIN_EXPECTED` draws.

    An odd number of ranks remains.
    """
    while len(expected) > 1 and (expected[-1] < _MIN_EXPECTED or len(expected) % 2 == 0):
        observed, expected = (np.append(counts[:-2], counts[-2:].sum()) for counts in (observed, expected))
    return observed, expected


def chi_square_tail(statistic: float, degrees: int) -> float:
    """Return P(chi-square >= statistic) for an even number of degrees of freedom.

    For even numbers this is a finite sum: exp(-x/2) sum over k < degrees/2 of (x/2)^k / k!.
    """
    half = statistic / 2
    return math.exp(-half) * sum(half**k / math.factorial(k) for k in range(degrees // 2))
