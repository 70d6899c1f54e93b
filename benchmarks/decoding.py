"""Batched speculative decoding in one process, without services."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.feature_flow import FeatureFlow
from benchmarks.prompts import EvaluationPrompt
from specinfer.drafters import Drafter, DraftJob, TargetTopK
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry
from specinfer.drafters.source_chain import agreed_tokens
from specinfer.model.runner import ModelRunner
from specinfer.planning.calibration import Calibration
from specinfer.request.sampling import GREEDY, Sampling, draft_seed
from specinfer.request.statuses import EntryStatus
from specinfer.tree import TokenTree, TreeLimits, merge_trees
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, VerifyJob


@dataclass(frozen=True, slots=True)
class DecodingPlan:
    """Parameters of a run."""

    nodes: int
    depth: int
    temperature: float
    new_tokens: int
    batch: int = 8
    rule: str = "multi_step"
    calibrated: bool = False
    """True if scores are calibrated, as in the gateway."""
    width: int | None = None
    """Maximum children of a node; 1 makes chains, None trees."""


@dataclass(slots=True)
class Result:
    """Counts and times of a run."""

    per_prompt: list[tuple[str, int, int]] = field(default_factory=list)
    """(source, steps, tokens) of every prompt."""
    seconds: float = 0.0
    answers: list[list[int]] = field(default_factory=list)
    """Tokens of every prompt's answer."""
    first_guesses: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """Steps by the prompt's data set and the first guess's correctness.

    The first guess is the root's most probable child.
    """

    without_model: Counter[str] = field(default_factory=Counter)
    """Replayed steps without a pass of a drafter's model, by source."""

    def right_first_guesses(self, source: str) -> float:
        """Return the share of a source's steps with a correct first guess."""
        right, wrong = (self.first_guesses[source, value] for value in (True, False))
        return right / max(right + wrong, 1)

    def tokens_per_step(self, source: str | None = None) -> float:
        """Return tokens per step, of one source or of all."""
        rows = [(steps, tokens) for name, steps, tokens in self.per_prompt if source in (None, name)]
        return sum(tokens for _, tokens in rows) / max(1, sum(steps for steps, _ in rows))

    def by_source(self) -> dict[str, float]:
        """Return tokens per step of every source, rounded."""
        sources = dict.fromkeys(source for source, _, _ in self.per_prompt)
        return {source: round(self.tokens_per_step(source), 3) for source in sources}

    def standard_error(self) -> float:
        """Return the jackknife error of tokens per step, over prompts."""
        rows = np.array([(steps, tokens) for _, steps, tokens in self.per_prompt], float)
        steps, tokens = (rows.sum(0) - rows).T
        rate = tokens / steps
        return float(np.sqrt((len(rows) - 1) * rate.var()))

    def ms_per_token(self, batch: int) -> float:
        """Return milliseconds per token of a request; `batch` share a step."""
        return 1000 * batch * self.seconds / sum(tokens for _, _, tokens in self.per_prompt)


@dataclass(slots=True)
class _Request:
    prompt: EvaluationPrompt
    name: str
    sampling: Sampling
    context: list[int]
    cached_len: int = 0
    steps: int = 0
    first_guesses: Counter[bool] = field(default_factory=Counter)
    target_top_k: TargetTopK | None = None
    """The target's last predictions, if any drafter needs them."""
    ended: bool = False
    """True if the target has ended the answer."""

    @property
    def new_tokens(self) -> int:
        return len(self.context) - len(self.prompt.tokens)

    def count_guesses(self, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Record whether the first guess was accepted."""
        children = [node for node, parent in enumerate(tree.parents) if parent == 0]
        first = max(children, key=lambda node: tree.scores[node], default=None)
        self.first_guesses[first is not None and tree.token_ids[first] == tokens[0]] += 1

    def commit(self, tokens: Sequence[int], stops: Sequence[int]) -> None:
        """Append a step's tokens, up to the answer's end."""
        end = next((i for i, token in enumerate(tokens) if token in stops), None)
        self.ended = end is not None
        self.context += tokens if end is None else tokens[: end + 1]
        self.steps += 1


class Decoding:
    """A target, and drafters whose merged trees have one node budget."""

    def __init__(self, runner: ModelRunner, drafters: Sequence[Drafter], plan: DecodingPlan) -> None:
        self._engine = VerifierEngine(runner, plan.rule, EngineLimits(idle_seconds=math.inf))
        self._drafters, self._plan, self._calibration = drafters, plan, Calibration()
        self._features = FeatureFlow(runner, drafters)
        self._top_k = max((drafter.description.target_top_k for drafter in drafters), default=0)

    def run(self, prompts: Sequence[EvaluationPrompt]) -> Result:
        """Decode all prompts in batches; a batch shrinks as requests finish."""
        result = Result()
        for start in range(0, len(prompts), self._plan.batch):
            requests = [
                _Request(p, f"r{i}", Sampling(self._plan.temperature, seed=i), list(p.tokens))
                for i, p in enumerate(prompts[start : start + self._plan.batch], start)
            ]
            started = time.perf_counter()
            running = requests
            while running:
                self._step(running)
                running = [r for r in running if r.new_tokens < self._plan.new_tokens and not r.ended]
            result.seconds += time.perf_counter() - started
            names = [r.name for r in requests]
            self._engine.release(names)
            self._features.forget(names)
            for drafter in self._drafters:
                for name in names:
                    drafter.release(name)
            for r in requests:
                _count(result, r)
        return result

    def _step(self, requests: Sequence[_Request]) -> None:
        """Run a step."""
        trees, drafts = self._draft(requests)
        jobs = [
            VerifyJob(
                *(r.name, r.cached_len, r.context[r.cached_len :], tree, r.sampling),
                top_k=self._top_k,
                features_from=self._features.wanted_from(r.name),
            )
            for r, tree in zip(requests, trees, strict=True)
        ]
        outcomes = self._engine.verify(jobs)
        for i, outcome in enumerate(outcomes):
            tokens = [int(trees[i].token_ids[v]) for v in outcome.accepted]
            tokens.append(outcome.bonus)
            for index, tree in enumerate(drafts[i]):
                self._calibration.observe(index, tree, tokens)
            self._calibration.observe_draws(trees[i], outcome.accepted)
            requests[i].count_guesses(trees[i], tokens)
            requests[i].commit(tokens, self._engine.runner.config.eos_token_ids)
            requests[i].cached_len = outcome.cached_len
            self._features.arrived(requests[i].name, outcome.features_start, outcome.features)
            if self._top_k:
                top_k = np.array(outcome.top_k, np.int64)
                tokens_of_nodes = trees[i].token_ids.astype(np.int64)
                requests[i].target_top_k = TargetTopK(tokens_of_nodes, trees[i].parents, top_k)

    def _draft(self, requests: Sequence[_Request]) -> tuple[list[TokenTree], list[list[TokenTree]]]:
        """Return every request's merged, cut tree, and each drafter's drafts."""
        if not self._drafters:
            return [TokenTree.root_only(r.context[-1]) for r in requests], [[] for _ in requests]
        limits = TreeLimits(self._plan.nodes, self._plan.depth, self._plan.width)
        by_drafter = []
        seen = not any(drafter.description.draws for drafter in self._drafters)
        for index, drafter in enumerate(self._drafters):
            seeds = [draft_seed(r.sampling.seed, index) for r in requests]
            by_drafter.append(
                drafter.draft(
                    [
                        DraftJob(
                            *(r.name, r.context, limits, r.sampling, seed, seen),
                            self._features.take(r.name, index),
                            r.target_top_k,
                        )
                        for r, seed in zip(requests, seeds, strict=True)
                    ]
                )
            )
        drafts: list[list[TokenTree]] = []
        merged = []
        for r, of_request in zip(requests, zip(*by_drafter, strict=True), strict=True):
            trees = []
            for tree in of_request:
                assert isinstance(tree, TokenTree), tree
                trees.append(tree)
            drafts.append(trees)
            correct = self._calibration.correct if self._plan.calibrated else lambda _, tree: tree
            pairs = [(index, correct(index, tree)) for index, tree in enumerate(trees)]
            beliefs = self._calibration.beliefs() if self._plan.calibrated else {}
            root = TokenTree.root_only(r.context[-1])
            merged.append(merge_trees(pairs, limits.nodes + 1, beliefs) if pairs else root)
        return merged, drafts


def _count(result: Result, request: _Request) -> None:
    """Add a finished request to the counts."""
    source = request.prompt.source
    result.per_prompt.append((source, request.steps, request.new_tokens))
    result.answers.append(request.context[len(request.prompt.tokens) :])
    result.first_guesses.update({(source, right): n for right, n in request.first_guesses.items()})


def replay(
    drafters: Sequence[Drafter],
    prompts: Sequence[EvaluationPrompt],
    answers: Sequence[Sequence[int]],
    plan: DecodingPlan,
    encode: Callable[[str], list[int]] = lambda text: [],
) -> Result:
    """Count accepted drafts for known answers, if the drafters of a service need no target.

    `encode` returns the tokens of a prompt's reference.
    """
    result, limits = Result(), TreeLimits(plan.nodes, plan.depth, plan.width)
    engine, calibration = SpeculatorEngine(drafters, idle_seconds=math.inf), Calibration()
    described = [drafter.description for drafter in drafters]
    models = [i for i, each in enumerate(described) if each.model and each.vocab_size]
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        request = _Request(prompt, f"r{i}", GREEDY, list(prompt.tokens))
        references = [encode(text) for text in prompt.references if engine.description.reads_references]
        while request.new_tokens < len(answer):
            read = request.cached_len
            entry = DraftEntry(request.name, read, request.context[read:], limits, request.sampling)
            (outcome,) = engine.draft([entry if read else replace(entry, references=references)])
            assert outcome.status is EntryStatus.OK, outcome.message
            request.cached_len = outcome.cached_len
            drafts = [(n, tree) for n, tree in outcome.drafts if isinstance(tree, TokenTree)]
            parts = [(n, calibration.correct(n, tree) if plan.calibrated else tree) for n, tree in drafts]
            root = TokenTree.root_only(request.context[-1])
            tree = merge_trees(parts, plan.nodes + 1) if parts else root
            rest = answer[request.new_tokens :]
            tokens = rest[: agreed_tokens(tree, rest) + 1]
            for speculator, draft in drafts:
                calibration.observe(speculator, draft, tokens)
            result.without_model[prompt.source] += not any(engine.seconds[n] for n in models)
            request.count_guesses(tree, tokens)
            request.commit(tokens, ())
        engine.release([request.name])
        _count(result, request)
    return result
