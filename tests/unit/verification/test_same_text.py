"""Without draws, a seed gives the text of plain decoding, token for token, for any proposals.

Noise, growth, merge, cut and rule are the real ones. test_gumbel.py tests that the noise follows the target's
distribution, and test_exact.py the same for draws.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.sampling.noise import Noise
from specinfer.request.sampling import Sampling
from specinfer.tree import ProposalKind, TokenTree, TreeLimits, merge_trees, truncate
from specinfer.verification.acceptance import Float64, RequestRandomness, find_rule
from tests.support.effort import effort

V, LENGTH = 6, 12
SEEDS = effort(60, 300)
Context = tuple[int, ...]
Draft = Callable[[Context, int], TokenTree]
"""Returns the tree of a context for a request with this seed."""


def table(seed: int) -> Float64:
    """Return distributions [V, V] of the next token by the last one."""
    return np.random.default_rng(seed).dirichlet(np.full(V, 0.6), size=V)


TARGET = table(1)


class TableTarget:
    """A target whose P after a node depends only on the node's token."""

    def __init__(self, tree: TokenTree) -> None:
        self._tree = tree

    def probabilities(self, node: int) -> Float64:
        return np.array(TARGET[int(self._tree.token_ids[node])])

    def best(self, node: int) -> int:
        return int(self.probabilities(node).argmax())

    def choose(self, node: int, noise: Noise) -> int:
        return noise.choose(self.probabilities(node))


class TableModel:
    """A draft whose logits depend only on the last token."""

    def __init__(self, table: Float64) -> None:
        self._logits = torch.from_numpy(np.log(table))

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        for segment in segments:
            segment.sequence.node_tokens.extend(segment.nodes)
            segment.sequence.node_parents.extend(segment.parents)
        return [self._logits[list(segment.nodes) or [segment.delta[-1]]] for segment in segments]


def grown(draft_table: Float64, kind: ProposalKind, blind: bool = False) -> Draft:
    """Return the growth of SSM drafters with this table."""
    growth = ReferenceGrowth(TableModel(draft_table).forward, GrowthShape(beam=2, kind=kind), torch.arange(V))

    def draft(context: Context, seed: int) -> TokenTree:
        sampling = Sampling(temperature=0 if blind else 1, seed=seed)
        task = GrowthTask(KVSequence(), context, TreeLimits(5, 3), sampling, 1.0 if blind else None)
        return growth.grow([task])[0]

    return draft


def decode(rule: str, drafts: Sequence[Draft], seed: int) -> tuple[list[int], int]:
    """Return tokens and number of steps."""
    context, steps = [0], 0
    while len(context) <= LENGTH:
        trees = [(i, draft(tuple(context), seed)) for i, draft in enumerate(drafts)]
        tree = truncate(merge_trees(trees), 5) if trees else TokenTree.root_only(context[-1])
        randomness = RequestRandomness(Sampling(seed=seed), len(context))
        verdict = find_rule(rule)(tree, TableTarget(tree), randomness)
        context += [*(int(tree.token_ids[node]) for node in verdict.accepted), verdict.bonus]
        steps += 1
    return context[1 : LENGTH + 1], steps


POOLS: dict[str, tuple[str, list[Draft]]] = {
    "points that use the noise": ("multi_step", [grown(table(2), ProposalKind.POINT)]),
    "points that do not": ("multi_step", [grown(table(2), ProposalKind.POINT, blind=True)]),
    "both": (
        "multi_step",
        [grown(table(2), ProposalKind.POINT), grown(TARGET, ProposalKind.POINT, blind=True)],
    ),
    "traversal": ("traversal", [grown(table(2), ProposalKind.POINT)]),
    "naive, draws": (
        "naive",
        [grown(TARGET, ProposalKind.WITHOUT_REPLACEMENT), grown(table(3), ProposalKind.POINT)],
    ),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_seed_gives_the_text_of_plain_decoding(name: str) -> None:
    rule, drafts = POOLS[name]
    saved = 0
    for seed in range(SEEDS):
        plain, plain_steps = decode(rule, [], seed)
        tokens, steps = decode(rule, drafts, seed)
        assert tokens == plain
        saved += plain_steps - steps
    assert saved > SEEDS, "drafts are accepted"


def test_points_that_use_the_noise_are_accepted_more_often() -> None:
    """The same draft model without the noise needs more steps."""
    with_noise, blind = (grown(TARGET, ProposalKind.POINT, blind=blind) for blind in (False, True))
    taken = [
        sum(decode("multi_step", [draft], seed)[1] for seed in range(30)) for draft in (with_noise, blind)
    ]
    assert taken[0] < 0.9 * taken[1]
