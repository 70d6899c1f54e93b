"""Measure how often the target's next token is among a drafter's most probable ones (the paper's Table 1)."""

from collections.abc import Sequence

from benchmarks.drafts.prompts import EvaluationPrompt
from specinfer.drafters import Drafter, DraftJob
from specinfer.model.runner import ModelRunner
from specinfer.sampling import Sampling
from specinfer.tree import TokenTree, TreeLimits
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, VerifyJob

GUESSES = 5


def success(
    runner: ModelRunner,
    drafter: Drafter,
    prompts: Sequence[EvaluationPrompt],
    temperature: float,
    new_tokens: int,
) -> dict[str, list[float]]:
    """Percent of next tokens among the top 1..5 guesses, by source."""
    return {
        source: [round(100 * sum(place <= k for place in places) / len(places), 1) for k in range(GUESSES)]
        for source, places in guesses(runner, drafter, prompts, temperature, new_tokens).items()
    }


def guesses(
    runner: ModelRunner,
    drafter: Drafter,
    prompts: Sequence[EvaluationPrompt],
    temperature: float,
    new_tokens: int,
) -> dict[str, list[int]]:
    """By source: the place of every next token among the guesses, or `GUESSES`; all prompts at once.

    An answer is followed to where the target ends it.
    """
    engine = VerifierEngine(runner, "naive", EngineLimits())
    contexts = [list(p.tokens) for p in prompts]
    held = [0] * len(prompts)
    places: dict[str, list[int]] = {p.source: [] for p in prompts}
    sampling = [Sampling(temperature, seed=i) for i in range(len(prompts))]
    limits, greedy = TreeLimits(GUESSES, 1), Sampling(temperature=0)
    running = list(range(len(prompts)))
    while running:
        drafts = drafter.draft([DraftJob(f"r{i}", contexts[i], limits, greedy) for i in running])
        jobs = [
            VerifyJob(f"r{i}", held[i], c[held[i] :], TokenTree.root_only(c[-1]), sampling[i])
            for i in running
            for c in [contexts[i]]
        ]
        for i, tree, outcome in zip(running, drafts, engine.verify(jobs), strict=True):
            assert outcome.verdict is not None, outcome.message
            token = outcome.verdict.bonus
            assert isinstance(tree, TokenTree), tree
            ranked = sorted(range(1, len(tree)), key=lambda node: -tree.scores[node])
            tokens = [int(tree.token_ids[node]) for node in ranked]
            places[prompts[i].source].append(tokens.index(token) if token in tokens else GUESSES)
            contexts[i].append(token)
            held[i] = outcome.held_len
        running = [
            i
            for i in running
            if contexts[i][-1] not in runner.config.eos_token_ids
            and len(contexts[i]) < len(prompts[i].tokens) + new_tokens
        ]
    names = [f"r{i}" for i in range(len(prompts))]
    engine.release(names)
    for name in names:
        drafter.release(name)
    return places
