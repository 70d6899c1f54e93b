"""Chain the sources of a service: copies where they are sure, a model elsewhere.

    text     ... def total(items): return sum(items) ... def total(
    match    at least four tokens, one dominant successor:  items ) : ...   drafts alone, without a pass of a model
    else     the model's tree; its surest leaf is extended by a match of context + path

The choice depends on committed tokens only, so it does not bias the output.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.drafters.search import END, LONGEST, Match, Occurrences
from specinfer.tree import TokenTree
from specinfer.tree.builder import point_tree

SHORTEST = 4
"""Minimum tokens of a match."""
_DOMINANT = 0.7
"""Minimum share of a successor in the matches' weights."""
_WEIGHT = 4.0
"""Factor by which each matching token increases a match's weight."""
_TRUST = {4: 0.75, 5: 0.8, 6: 0.85, 7: 0.85}
"""Probability of the only successor by length of the match; `_MAX_TRUST` for longer matches."""
_MAX_TRUST = 0.95
_ALONE = 0.7
"""Minimum probability of the first token of a copy that drafts alone."""

Copy = list[tuple[int, float]]
"""Tokens, each with its probability if the one before it is accepted."""


def dominant_copy(matches: Sequence[Match], tokens: int) -> Copy:
    """Return the continuation that most matches share, of at most `tokens` tokens.

    It ends where no successor dominates. A match weighs four times as much for each of its tokens.
    """
    copy: Copy = []
    for depth in range(tokens):
        weights: dict[int, float] = {}
        for match in matches:
            place = match.end + depth
            token = match.text[place] if place < len(match.text) else END
            weights[token] = weights.get(token, 0.0) + _WEIGHT**match.length
        best = max(weights, key=lambda token: weights[token], default=END)
        if best == END or (share := weights[best] / sum(weights.values())) < _DOMINANT:
            break
        matches = [
            match for match in matches if match.text[match.end + depth : match.end + depth + 1] == [best]
        ]
        longest = max([match.length for match in matches]) + depth
        copy.append((best, share * _TRUST.get(longest, _MAX_TRUST)))
    return copy


def drafts_alone(copy: Copy) -> bool:
    """Return whether a copy drafts without a model."""
    return bool(copy) and copy[0][1] >= _ALONE


@dataclass(slots=True)
class _Text:
    """Index of a request's text."""

    occurrences: Occurrences = field(default_factory=lambda: Occurrences(SHORTEST))
    indexed: int = 0


class SourceChain:
    """Copies of requests' texts and references, for a service that also has a model."""

    def __init__(self, copier: int, models: frozenset[int]) -> None:
        """Start without texts; `copier` is the number of the speculator that copies, `models` those with a model."""
        self.copier, self.models = copier, models
        self._texts: dict[str, _Text] = {}

    @classmethod
    def of(cls, descriptions: Sequence[DrafterDescription]) -> "SourceChain | None":
        """Return the chain of a service's speculators; None without a copier or a model."""
        copiers = [i for i, it in enumerate(descriptions) if it.reads_references and not it.vocab_size]
        models = frozenset(i for i, it in enumerate(descriptions) if it.model and it.vocab_size)
        return cls(copiers[0], models) if copiers and models else None

    def draft_alone(self, job: DraftJob) -> TokenTree | None:
        """Return the chain of a sure copy; None if a model should draft."""
        copy = [] if job.limits.empty else self._copy(job, [], min(job.limits.nodes, job.limits.depth))
        if not drafts_alone(copy):
            return None
        tokens, scores = zip(*copy, strict=True)
        size = len(copy)
        return point_tree([job.context[-1], *tokens], range(-1, size), [1.0, *scores], range(1, size + 1))

    def extend(self, speculator: int, job: DraftJob, tree: TokenTree) -> TokenTree:
        """Return a tree of a speculator, a model's with its surest leaf extended by a copy.

        A copied node replaces only nodes of lower path probability. Trees with draws are returned unchanged.
        """
        if speculator not in self.models or tree.has_draws or len(tree) == 1:
            return tree
        tokens, parents, scores = tree.token_ids.tolist(), tree.parents.tolist(), tree.scores.tolist()
        chances = [1.0]
        for node in range(1, len(tree)):
            chances.append(chances[parents[node]] * scores[node])
        leaf = max(set(range(len(tree))) - set(parents), key=lambda node: chances[node])
        path = tree.path_to(leaf)
        room = min(job.limits.nodes, job.limits.depth) - len(path)
        for token, score in self._copy(job, [tokens[node] for node in path], room):
            chances.append(chances[leaf] * score)
            if chances[-1] < job.limits.min_path_probability:
                break
            tokens.append(token)
            parents.append(leaf)
            scores.append(score)
            leaf = len(tokens) - 1
        if len(tokens) == len(tree):
            return tree
        best = sorted(range(1, len(tokens)), key=lambda node: -chances[node])[: job.limits.nodes]
        return point_tree(tokens, parents, scores, sorted(best))

    def release(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    def _copy(self, job: DraftJob, path: Sequence[int], tokens: int) -> Copy:
        text = self._texts.setdefault(job.request_id, _Text())
        text.occurrences.file(job.context, text.indexed)
        text.indexed = len(job.context)
        end = [*job.context[-LONGEST:], *path]
        matches = list(text.occurrences.matches(end))
        if job.references is not None:
            matches += job.references.matches(end, SHORTEST)
        return dominant_copy(matches, tokens)
