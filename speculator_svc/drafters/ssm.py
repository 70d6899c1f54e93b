"""A small model (SSM) grows a token tree level by level, one batched pass per level.

Three ways to grow, all in the same loop (paper, section 3; Sequoia and EAGLE-2 for best-first):

- best-first (default, greedy requests): every level expands the `beam` most probable nodes; of all
  candidates the budget's worth with the highest path probability are kept.
- an expansion vector <k1, ..., km>: at depth i every node expands its top k_i tokens.
- sampled (stochastic requests): children are drawn from q, which is first cut to its `q_support` most
  probable tokens and renormalised. How many are drawn is decided before they are: a count that
  depended on the tokens drawn would not be lossless.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from specinfer.errors import ExhaustedError, SettingError, SpecInferError
from specinfer.hub import resolve_model
from specinfer.model.batch import Segment
from specinfer.model.distributions import draw, generator, probabilities
from specinfer.model.draft_checkpoint import is_draft_checkpoint, load_draft, verifier_of
from specinfer.model.kv_cache import KVSequence
from specinfer.model.runner import ModelRunner, RunnerOptions
from specinfer.sampling import StreamDomain
from specinfer.tokenizer import Tokenizer
from specinfer.tree import ExpansionVector, ProposalKind, TokenTree, TreeBuilder, TreeLimits
from specinfer.tree.token_tree import Float32, Int32
from speculator_svc.drafters import DrafterDescription, DrafterOptions, DraftJob

_KINDS = {
    "with_replacement": ProposalKind.WITH_REPLACEMENT,
    "without_replacement": ProposalKind.WITHOUT_REPLACEMENT,
}


@dataclass(frozen=True, slots=True)
class SsmShape:
    """How trees grow."""

    expansion: ExpansionVector | None = None
    beam: int = 4
    """Most nodes expanded per level."""
    kind: ProposalKind = ProposalKind.WITHOUT_REPLACEMENT
    """How stochastic requests are drafted."""
    q_support: int = 64


@dataclass(slots=True)
class _Growth:
    """One tree under construction. Builder node i + 1 is not the cache's node i: see `scored`."""

    job: DraftJob
    sequence: KVSequence
    builder: TreeBuilder
    frontier: list[int] = field(default_factory=lambda: [0])
    """Builder nodes whose next tokens the coming logits predict, in the order of those logits."""
    reach: list[float] = field(default_factory=lambda: [1.0])
    """Per builder node, the draft's probability of its path."""
    scored: dict[int, int] = field(default_factory=lambda: {0: -1})
    """Builder node -> tentative node of the cache; -1 is the context's end."""
    streams: int = 0
    """Random streams used so far at this root."""


class SsmDrafter:
    """Drafts with a small model of the same tokenizer."""

    def __init__(
        self,
        runner: ModelRunner,
        description: DrafterDescription,
        shape: SsmShape,
        token_ids: torch.Tensor | None = None,
    ) -> None:
        self._runner, self._description, self._shape = runner, description, shape
        self._token_ids = token_ids if token_ids is not None else torch.arange(runner.config.vocab_size)
        self._sequences: dict[str, KVSequence] = {}

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "SsmDrafter":
        """Loads the model; `layers` keeps only its first ones.

        Raises:
            SettingError: naming the bad option.
        """
        shape = shape_of(options)
        directory = resolve_model(options.model)
        if is_draft_checkpoint(directory):
            return cls._trained(directory, options, shape)
        runner = ModelRunner.load(directory, _runner_options(options))
        name = f"{options.model}[:{options.layers}]" if options.layers else options.model
        description = DrafterDescription(
            name,
            runner.config.vocab_size,
            Tokenizer.load(directory).fingerprint(),
            runner.config.max_positions,
        )
        return cls(runner, description, shape)

    @classmethod
    def _trained(cls, directory: Path, options: DrafterOptions, shape: SsmShape) -> "SsmDrafter":
        """Loads a trained SSM: a reduced head, the target's embeddings and tokenizer."""
        target = resolve_model(verifier_of(directory))
        draft = load_draft(directory, target)
        runner = ModelRunner.build(draft.config, draft.weights, _runner_options(options))
        tokenizer = Tokenizer.load(target)
        description = DrafterDescription(
            options.model, tokenizer.vocab_size, tokenizer.fingerprint(), runner.config.max_positions
        )
        return cls(runner, description, shape, draft.token_ids)

    @property
    def description(self) -> DrafterDescription:
        """What it is."""
        return self._description

    def release(self, request_id: str) -> None:
        """See `Drafter.release`."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._runner.cache.release(sequence)

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        """See `Drafter.draft`."""
        results: dict[int, TokenTree | SpecInferError] = {}
        growths: dict[int, _Growth] = {}
        for index, job in enumerate(jobs):
            try:
                growths[index] = self._begin(job)
            except ExhaustedError as error:
                self.release(job.request_id)
                results[index] = error
        try:
            self._grow(list(growths.values()))
        finally:
            for growth in growths.values():
                self._runner.cache.commit(growth.sequence, ())
        for index, growth in growths.items():
            results[index] = self._finish(growth)
        return [results[index] for index in range(len(jobs))]

    def _begin(self, job: DraftJob) -> _Growth:
        """Finds the request's cache and reserves room for its new context and every node of its tree."""
        sequence = self._sequences.get(job.request_id)
        if sequence is None or sequence.length >= len(job.context):
            self.release(job.request_id)
            sequence = self._sequences[job.request_id] = self._runner.open()
        scored = self._shape.beam * max(job.limits.depth, 1) + job.limits.nodes
        self._runner.cache.reserve(sequence, len(job.context) - sequence.length + scored)
        return _Growth(job, sequence, TreeBuilder(job.context[-1]))

    def _grow(self, growths: list[_Growth]) -> None:
        """Reads the new context, then alternates: expand the frontier, score the next one."""
        segments = [
            Segment(g.sequence, g.job.context[g.sequence.length :], want_last=not g.job.limits.empty)
            for g in growths
        ]
        logits = self._runner.forward(segments) if segments else []
        active = [(g, rows) for g, rows in zip(growths, logits, strict=True) if not g.job.limits.empty]
        depth = 0
        while active:
            for growth, rows in active:
                self._expand(growth, rows, depth)
            depth += 1
            going = [g for g, _ in active if g.frontier and depth < g.job.limits.depth]
            active = list(zip(going, self._score(going), strict=True))

    def _score(self, growths: list[_Growth]) -> list[torch.Tensor]:
        """Runs the frontier nodes of all trees in one pass."""
        if not growths:
            return []
        segments = []
        for g in growths:
            first = g.sequence.nodes
            tokens = [g.builder.token_ids[node] for node in g.frontier]
            parents = [g.scored[g.builder.parents[node]] for node in g.frontier]
            g.scored.update({node: first + i for i, node in enumerate(g.frontier)})
            segments.append(Segment(g.sequence, (), tokens, parents))
        return self._runner.forward(segments)

    def _expand(self, growth: _Growth, rows: torch.Tensor, depth: int) -> None:
        """Adds children to every frontier node and chooses the next frontier among them."""
        if growth.job.sampling.greedy:
            added = self._expand_best(growth, rows, depth)
        else:
            added = self._expand_sampled(growth, rows, depth)
        if self._shape.expansion is None:
            added = sorted(added, key=lambda node: -growth.reach[node])[: self._shape.beam]
        growth.frontier = added

    def _expand_best(self, growth: _Growth, rows: torch.Tensor, depth: int) -> list[int]:
        """Each frontier node gets its most probable children."""
        limits = growth.job.limits
        width = self._width(limits, depth)
        if width == 0:
            return []
        top = rows.softmax(-1).topk(width, dim=-1)
        scores, ids = top.values.numpy(), self._token_ids[top.indices].tolist()
        reach = np.array([growth.reach[node] for node in growth.frontier])[:, None] * scores
        # a candidate that is not among the level's `nodes` best cannot be among the tree's
        least = 0.0
        if self._shape.expansion is None and reach.size > limits.nodes:
            least = float(np.partition(reach, -limits.nodes, axis=None)[-limits.nodes])
        added: list[int] = []
        for row, node in enumerate(growth.frontier):
            count = int((reach[row] >= least).sum())  # a row falls, so these are its first ones
            added += growth.builder.propose_points(node, ids[row][:count], scores[row, :count].tolist())
            growth.reach.extend(reach[row, :count].tolist())
        if self._shape.expansion is not None:
            return added
        return _within_budget(growth.reach, added, limits.nodes)

    def _expand_sampled(self, growth: _Growth, rows: torch.Tensor, depth: int) -> list[int]:
        """Each frontier node gets children drawn from q; the counts are fixed beforehand."""
        job = growth.job
        added: list[int] = []
        counts = self._draw_counts(growth, depth)
        for node, row, count in zip(growth.frontier, rows, counts, strict=True):
            room = job.limits.nodes - (len(growth.builder) - 1)
            if min(count, room) <= 0:
                continue
            draft_ids, p = draft_distribution(row, job, self._shape.q_support)
            q = self._token_ids.numpy()[draft_ids].astype(np.int32), p
            rng = generator(job.sampling, len(job.context), StreamDomain.DRAFT, growth.streams)
            growth.streams += 1
            draws = _draw(q, min(count, room), self._shape.kind, rng)
            before = len(growth.builder)
            growth.builder.propose_samples(node, self._shape.kind, draws, q)
            new = range(before, len(growth.builder))
            growth.reach.extend(growth.reach[node] * growth.builder.scores[kid] for kid in new)
            added.extend(new)
        return added

    def _width(self, limits: TreeLimits, depth: int) -> int:
        """Children per node at this depth, for deterministic trees."""
        width = min(limits.nodes, self._runner.config.vocab_size)
        if self._shape.expansion is not None:
            widths = self._shape.expansion.widths
            width = min(width, widths[depth]) if depth < len(widths) else 0
        return min(width, limits.width) if limits.width is not None else width

    def _draw_counts(self, growth: _Growth, depth: int) -> list[int]:
        """Draws per frontier node: the level's share of the budget, split by path probability."""
        limits, frontier = growth.job.limits, growth.frontier
        if limits.width == 1:
            return [1] * len(frontier)
        if self._shape.expansion is not None:
            return [self._width(limits, depth)] * len(frontier)
        left = limits.nodes - (len(growth.builder) - 1)
        share = left / (limits.depth - depth)
        total = sum(growth.reach[node] for node in frontier) or 1.0
        return [max(1, round(share * growth.reach[node] / total)) for node in frontier]

    def _finish(self, growth: _Growth) -> TokenTree:
        """The tree, a deterministic one cut to its most probable nodes."""
        tree = growth.builder
        most = growth.job.limits.nodes
        if growth.job.sampling.greedy and len(tree) - 1 > most:
            return _keep_most_probable(tree, growth.reach, most)
        return tree.build()


def _runner_options(options: DrafterOptions) -> RunnerOptions:
    return RunnerOptions(
        dtype=options.dtype,
        device=options.device,
        executor=options.executor,
        attention=options.attention,
        kv_tokens=options.kv_tokens,
        layers=options.layers or None,
    )


def shape_of(options: DrafterOptions) -> SsmShape:
    """Reads the growth options.

    Raises:
        SettingError: naming the bad one.
    """
    if options.proposal not in _KINDS:
        raise SettingError("proposal", options.proposal, f"must be one of {', '.join(_KINDS)}")
    expansion = ExpansionVector.parse(options.expansion) if options.expansion else None
    return SsmShape(expansion, options.beam, _KINDS[options.proposal], options.q_support)


def draft_distribution(logits: torch.Tensor, job: DraftJob, support: int) -> tuple[Int32, Float32]:
    """q': the draft's distribution under the request's sampling, cut to its top tokens, renormalised.

    It is cut *before* anything is drawn; what is sent is what was sampled from.
    """
    values, ids = probabilities(logits, job.sampling).topk(min(support, logits.shape[-1]))
    keep = values > 0
    q = (values[keep] / values[keep].sum()).float()
    return ids[keep].int().cpu().numpy(), q.cpu().numpy()


def _draw(q: tuple[Int32, Float32], count: int, kind: ProposalKind, rng: np.random.Generator) -> list[int]:
    """Tokens in draw order."""
    ids, p = q[0], q[1].astype(np.float64)
    draws: list[int] = []
    while len(draws) < count and p.any():
        index = draw(p, rng)
        draws.append(int(ids[index]))
        if kind is ProposalKind.WITHOUT_REPLACEMENT:
            p[index] = 0.0
    return draws


def _within_budget(reach: Sequence[float], added: list[int], budget: int) -> list[int]:
    """Those of the added nodes that are among the `budget` most probable nodes so far."""
    if len(reach) - 1 <= budget:
        return added
    smallest = sorted(reach[1:], reverse=True)[budget - 1]
    return [node for node in added if reach[node] >= smallest]


def _keep_most_probable(full: TreeBuilder, reach: Sequence[float], most: int) -> TokenTree:
    """The `most` nodes of highest path probability; a parent is never less probable than its child."""
    ranked = sorted(range(1, len(full)), key=lambda node: (-reach[node], node))[:most]
    builder, place = TreeBuilder(full.token_ids[0]), {0: 0}
    kids: dict[int, list[int]] = {}
    for node in sorted(ranked):
        kids.setdefault(full.parents[node], []).append(node)
    for parent, nodes in kids.items():
        tokens = [full.token_ids[node] for node in nodes]
        placed = builder.propose_points(place[parent], tokens, [full.scores[node] for node in nodes])
        place.update(zip(nodes, placed, strict=True))
    return builder.build()
