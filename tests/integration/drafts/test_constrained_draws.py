"""Draws of constrained requests in a whole system: texts follow the masked target's distribution."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

import specinfer.planning.trees
from specinfer.constraints.constraint import Constraint, ConstraintKind
from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.tree import ProposalKind, TokenMatcher, TokenTree, TreeBuilder, without_forbidden
from specinfer.verification.engine import EngineLimits
from specinfer.wire.sampling_codec import encode_constraint
from tests.support.system import ScriptedDrafter, ascii_tokenizer, running_system
from tests.support.tiny_models import reference_logits, silence_attention, tiny_transformers

LENGTH, REQUESTS = 40, 32
ALLOWED = {"a": "bc", "b": "acd", "c": "ad", "d": "abc"}
FORBIDDEN = "|".join([a + b for a in ALLOWED for b in ALLOWED if b not in ALLOWED[a]])
WALK = Constraint(
    ConstraintKind.GRAMMAR, f"start: WALK\nWALK: /[abcd]{{{LENGTH}}}/ & ~/(?s:.*)({FORBIDDEN})(?s:.*)/"
)
"""Grammar in which only some characters may follow each one."""
LETTERS = np.array(ascii_tokenizer().encode("abcdef"), np.int32)
"""Tokens that drafters draw; the last two are never allowed."""


def drawing(seed: int, kind: ProposalKind) -> ScriptedDrafter:
    """Return a drafter that draws two tokens by a random table, and two below the first one."""
    tables = np.random.default_rng(seed).dirichlet(np.full(6, 0.8), size=6).astype(np.float32)
    tables = np.maximum(tables, 1e-3)
    tables /= tables.sum(-1, keepdims=True)

    def script(job: DraftJob) -> TokenTree:
        rng = np.random.default_rng([job.draw_seed, len(job.context)])
        builder, node, last = TreeBuilder(job.context[-1]), 0, job.context[-1]
        for _ in range(min(2, job.limits.depth)):
            q = tables[int(np.flatnonzero(last == LETTERS)[0])] if last in LETTERS else tables[0]
            replace = kind is ProposalKind.WITH_REPLACEMENT
            draws = rng.choice(LETTERS, 2, replace=replace, p=q.astype(float) / q.astype(float).sum())
            node = builder.propose_samples(node, kind, draws.tolist(), (LETTERS, q))[0]
            last = int(draws[0])
        return builder.build()

    drafter = ScriptedDrafter(script)
    drafter.description = DrafterDescription(draws=True)
    return drafter


def p_value(target: Any, texts: Sequence[str]) -> float:
    """Return the p-value of the texts' transitions (chi-square, 6 degrees of freedom).

    Null hypothesis: the masked Markov chain of the target wrote them.
    """
    counts = Counter(pair for text in texts for pair in pairwise(text))
    statistic = 0.0
    for before, after in ALLOWED.items():
        logits = reference_logits(target, ascii_tokenizer().encode(before))[-1].double()
        p = logits[ascii_tokenizer().encode(after)].softmax(-1).numpy()
        seen = np.array([counts[before, character] for character in after])
        statistic += float(((seen - seen.sum() * p) ** 2 / (seen.sum() * p)).sum())
    return float(stats.chi2.sf(statistic, sum(len(after) - 1 for after in ALLOWED.values())))


def keep_q(tree: TokenTree, matcher: TokenMatcher) -> TokenTree:
    """Drop forbidden draws without renormalizing q."""
    pruned = without_forbidden(tree, matcher)
    proposals = {(p.speculator, tree.sequence_of(p.parent)): p for p in tree.proposals}
    whole = [proposals[p.speculator, pruned.sequence_of(p.parent)] for p in pruned.proposals]
    kept = [
        p._replace(q_token_ids=old.q_token_ids, q_probabilities=old.q_probabilities)
        for p, old in zip(pruned.proposals, whole, strict=True)
    ]
    return TokenTree(pruned.token_ids, pruned.parents, tuple(kept), pruned.scores, pruned.order)


@pytest.mark.statistical
@pytest.mark.parametrize("prune", [without_forbidden, keep_q])
async def test_draws_follow_the_masked_target(
    redis_url: str, prune: Callable[[TokenTree, TokenMatcher], TokenTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two services draw, with and without replacement, often forbidden tokens.

    The target is a Markov chain, as its attention is off. False alarms: 1e-4. The negative control leaves q unchanged.
    """
    monkeypatch.setattr(specinfer.planning.trees, "without_forbidden", prune)
    target = tiny_transformers("llama", seed=3, max_position_embeddings=1024, initializer_range=0.12)
    silence_attention(target)
    drafters = {
        "a": drawing(1, ProposalKind.WITHOUT_REPLACEMENT),
        "b": drawing(2, ProposalKind.WITH_REPLACEMENT),
    }
    async with running_system(
        redis_url,
        drafters,
        model=target,
        eos=0,
        engine_limits=EngineLimits(max_context_len=512),
        max_batch=REQUESTS,
        tree_depth=3,
        tree_nodes=6,
        step_nodes=6 * REQUESTS,
        kv_tokens=REQUESTS * 512,
    ) as system:
        # late masks shorten accepted paths: the accepted number would depend on the machine
        system.verifier.masks.budget_s = math.inf
        monkeypatch.setattr(system.verifier.masks, "wait_for", lambda _: None)
        system.verifier.masks.until = time.monotonic() + 3600
        answers = await asyncio.gather(
            *(
                system.generate(
                    [1], temperature=1.0, seed=s, max_new_tokens=LENGTH, constraint=encode_constraint(WALK)
                )
                for s in range(REQUESTS)
            )
        )
        assert system.gateway.observer.totals.counts.accepted > LENGTH * REQUESTS / 10
    texts = ["".join([reply.text for reply in replies]) for replies in answers]
    assert {len(text) for text in texts} == {LENGTH}
    assert (p_value(target, texts) > 1e-4) == (prune is without_forbidden)
