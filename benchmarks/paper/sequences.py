"""Figure 11: verify a tree, or its sequences as separate requests.

Both ways verify the same drafts after the same contexts and accept the same tokens; only the pass differs:

    tree        the | cat (sat, ran) dog          1 row for the root, 4 for the nodes
    sequences   the | cat sat                     3 rows for the root, 5 for the nodes, and the context's
                the | cat ran                     keys are read three times
                the | dog
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks.prompts import EvaluationPrompt
from specinfer.drafters import Drafter, DraftJob
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.runner import ModelRunner
from specinfer.sampling import GREEDY
from specinfer.tree import TokenTree, TreeLimits


@dataclass(slots=True)
class MeasuredSteps:
    """Steps of a batch size: seconds, accepted tokens and verified rows."""

    tree_s: list[float] = field(default_factory=list)
    sequences_s: list[float] = field(default_factory=list)
    draft_s: list[float] = field(default_factory=list)
    tokens: int = 0
    tree_rows: int = 0
    sequence_rows: int = 0

    def report(self, batch: int) -> dict[str, Any]:
        """Return milliseconds per token, and ratios of sequences to trees."""
        per_token = 1000 * batch / self.tokens
        tree, apart, drafts = (sum(s) * per_token for s in (self.tree_s, self.sequences_s, self.draft_s))
        ratios = [one / other for one, other in zip(self.sequences_s, self.tree_s, strict=True)]
        return {
            "tree_ms": tree,
            "sequences_ms": apart,
            "draft_ms": drafts,
            "pass_ratio": apart / tree,
            "pass_ratio_error": stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0,
            "mean_of_step_ratios": mean(ratios),
            "ratio_with_drafts": (apart + drafts) / (tree + drafts),
            "steps": len(ratios),
            "tokens_per_step": self.tokens / (batch * len(ratios)),
            "rows": {"tree": self.tree_rows / len(ratios), "sequences": self.sequence_rows / len(ratios)},
        }


def paths(tree: TokenTree) -> list[list[int]]:
    """Return the tokens of every path from root to leaf."""
    inner = set(tree.parents.tolist())
    paths = []
    for leaf in range(1, len(tree)):
        if leaf in inner:
            continue
        path, node = [], leaf
        while node:
            path.append(int(tree.token_ids[node]))
            node = int(tree.parents[node])
        paths.append(path[::-1])
    return paths


def accepted_of_tree(tree: TokenTree, logits: torch.Tensor) -> tuple[list[int], list[int]]:
    """Return nodes and tokens that greedy verification with logits [N, V] accepts."""
    choices = logits.argmax(-1).tolist()
    node, nodes, tokens = 0, list[int](), list[int]()
    while True:
        tokens.append(choices[node])
        children = [n for n in range(1, len(tree)) if tree.parents[n] == node]
        node = next((n for n in children if tree.token_ids[n] == choices[node]), 0)
        if not node:
            return nodes, tokens
        nodes.append(node)


def accepted_of_sequences(sequences: Sequence[Sequence[int]], logits: Sequence[torch.Tensor]) -> list[int]:
    """Return the longest tokens that greedy verification accepts in any sequence."""
    best: list[int] = []
    for sequence, rows in zip(sequences, logits, strict=True):
        choices = rows.argmax(-1).tolist()
        agreed = 0
        while agreed < len(sequence) and sequence[agreed] == choices[agreed]:
            agreed += 1
        best = max(best, choices[: agreed + 1], key=len)
    return best


class Comparison:
    """Steps of target and drafter, verified by trees and by sequences."""

    def __init__(
        self,
        runner: ModelRunner,
        drafter: Drafter,
        limits: TreeLimits,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._runner, self._drafter, self._limits = runner, drafter, limits
        self._clock = clock or time.perf_counter

    def measure(self, prompts: Sequence[EvaluationPrompt], batch: int, steps: int) -> MeasuredSteps:
        """Measure all full batches, or one smaller batch of few prompts."""
        measured = MeasuredSteps()
        for start in range(0, max(1, len(prompts) - batch + 1), batch):
            self.run(prompts[start : start + batch], steps, measured)
        return measured

    def run(self, prompts: Sequence[EvaluationPrompt], steps: int, measured: MeasuredSteps) -> None:
        """Run `steps` steps of all prompts in one batch."""
        contexts = [list(prompt.tokens) for prompt in prompts]
        cached = [self._cached(context) for context in contexts]
        for step in range(steps):
            trees = self._draft(contexts, measured)
            ways = [self._as_tree, self._as_sequences][:: -1 if step % 2 else 1]
            answers = [way(contexts, cached, trees, measured) for way in ways]
            assert answers[0] == answers[1], "both ways accept the same tokens"
            for context, tokens in zip(contexts, answers[0], strict=True):
                context.extend(tokens)
                measured.tokens += len(tokens)
        for i, sequence in enumerate(cached):
            self._runner.cache.release(sequence)
            self._drafter.release(f"r{i}")
        self._runner.cache.check()

    def _cached(self, context: Sequence[int]) -> KVSequence:
        """Return a cached sequence of a context without its last token."""
        sequence = self._runner.open()
        known = self._runner.cache.share(sequence, context[:-1])
        if rest := context[known:-1]:
            self._runner.forward([Segment(sequence, rest)])
        return sequence

    def _draft(self, contexts: Sequence[Sequence[int]], steps: MeasuredSteps) -> list[TokenTree]:
        jobs = [DraftJob(f"r{i}", context, self._limits, GREEDY) for i, context in enumerate(contexts)]
        started = self._clock()
        trees = self._drafter.draft(jobs)
        steps.draft_s.append(self._clock() - started)
        return [_checked(tree) for tree in trees]

    def _as_tree(
        self,
        contexts: Sequence[Sequence[int]],
        cached: Sequence[KVSequence],
        trees: Sequence[TokenTree],
        steps: MeasuredSteps,
    ) -> list[list[int]]:
        segments = [
            Segment(s, c[-1:], t.token_ids[1:].tolist(), (t.parents[1:] - 1).tolist(), want_last=True)
            for s, c, t in zip(cached, contexts, trees, strict=True)
        ]
        seconds, logits = self._timed(segments)
        steps.tree_s.append(seconds)
        steps.tree_rows += sum(len(tree) for tree in trees)
        verdicts = [accepted_of_tree(tree, rows) for tree, rows in zip(trees, logits, strict=True)]
        for sequence, (nodes, _) in zip(cached, verdicts, strict=True):
            self._runner.cache.commit(sequence, [node - 1 for node in nodes])
        return [tokens for _, tokens in verdicts]

    def _as_sequences(
        self,
        contexts: Sequence[Sequence[int]],
        cached: Sequence[KVSequence],
        trees: Sequence[TokenTree],
        steps: MeasuredSteps,
    ) -> list[list[int]]:
        of_request = [paths(tree) or [[]] for tree in trees]
        segments = []
        for context, sequences in zip(contexts, of_request, strict=True):
            for tokens in sequences:
                parents = range(-1, len(tokens) - 1)
                segments.append(Segment(self._cached(context), context[-1:], tokens, parents, want_last=True))
        seconds, logits = self._timed(segments)
        steps.sequences_s.append(seconds)
        steps.sequence_rows += sum(1 + len(segment.nodes) for segment in segments)
        for segment in segments:
            self._runner.cache.release(segment.sequence)
        rows = iter(logits)
        return [accepted_of_sequences(sequence, [next(rows) for _ in sequence]) for sequence in of_request]

    def _timed(self, segments: Sequence[Segment]) -> tuple[float, list[torch.Tensor]]:
        started = self._clock()
        logits = self._runner.forward(segments)
        return self._clock() - started, logits


def _checked(tree: object) -> TokenTree:
    assert isinstance(tree, TokenTree), tree
    return tree
