"""How often the target's next token is among a drafter's most probable ones (the paper's Table 1)."""

from collections import defaultdict
from collections.abc import Sequence

from benchmarks.drafts.prompts import Prompt
from specinfer.model.runner import ModelRunner
from specinfer.sampling import SamplingParams
from specinfer.tree import TokenTree, TreeLimits
from speculator_svc.drafters import Drafter, DraftJob
from verifier_svc.engine import EngineLimits, VerifierEngine, VerifyJob

GUESSES = 5


def success(
    runner: ModelRunner, drafter: Drafter, prompts: Sequence[Prompt], temperature: float, new_tokens: int
) -> dict[str, list[float]]:
    """Percent of next tokens among the top 1..5 guesses, by source; plain decoding, all prompts at once."""
    engine = VerifierEngine(runner, "naive", EngineLimits())
    contexts = [list(p.tokens) for p in prompts]
    held = [0] * len(prompts)
    hits: dict[str, list[int]] = defaultdict(lambda: [0] * GUESSES)
    totals: dict[str, int] = defaultdict(int)
    sampling = [SamplingParams(temperature, seed=i) for i in range(len(prompts))]
    limits, greedy = TreeLimits(GUESSES, 1), SamplingParams(temperature=0)
    for _ in range(new_tokens):
        drafts = drafter.draft([DraftJob(f"r{i}", c, limits, greedy) for i, c in enumerate(contexts)])
        jobs = [
            VerifyJob(f"r{i}", held[i], c[held[i] :], TokenTree.root_only(c[-1]), sampling[i])
            for i, c in enumerate(contexts)
        ]
        for i, outcome in enumerate(engine.verify(jobs)):
            assert outcome.verdict is not None, outcome.message
            tree, token = drafts[i], outcome.verdict.bonus
            assert isinstance(tree, TokenTree), tree
            ranked = sorted(range(1, len(tree)), key=lambda node: -tree.scores[node])
            tokens = [int(tree.token_ids[node]) for node in ranked]
            if token in tokens:
                hits[prompts[i].source][tokens.index(token)] += 1
            totals[prompts[i].source] += 1
            contexts[i].append(token)
            held[i] = outcome.held_len
    names = [f"r{i}" for i in range(len(prompts))]
    engine.release(names)
    for name in names:
        drafter.release(name)
    return {
        source: [round(100 * sum(found[: k + 1]) / totals[source], 1) for k in range(GUESSES)]
        for source, found in hits.items()
    }
