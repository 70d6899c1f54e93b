"""Chain the sources of a service: copies where they are sure, a model elsewhere.

    text     ... def total(items): return sum(items) ... def total(
    match    at least four tokens, one dominant successor:  items ) : ...   drafts alone, without a pass of the model
    else     the model's tree; its surest leaf is extended by a match of context + path

The choice depends on committed tokens and the time of earlier steps, so it does not bias the output. Shorter matches
are not used: where they differ from the model they are almost never right, whatever their own score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import TypeVar

from specinfer.drafters import Drafter, DraftJob
from specinfer.drafters.search import END, LONGEST, Match, Occurrences, by_next_token, weight_of
from specinfer.tree import TokenTree
from specinfer.tree.builder import point_tree

SHORTEST = 4
"""Minimum tokens of a match."""
_DOMINANT = 0.7
"""Minimum share of a successor in the matches' weights."""
_TRUST, _MAX_TRUST = (0.75, 0.8, 0.8, 0.85, 0.88, 0.88, 0.88), 0.96
"""Probability of an only successor by length of the match, from `SHORTEST` on; longer ones."""
_SAVED = 1.5
"""Tokens of a step in the time of a model's drafts, before both are known."""
_USUAL, _PRIOR, _FADE = 1.2, 4.0, 0.95
"""Accepted tokens of a model's tree at first, their weight, and the fading of a tree."""

K = TypeVar("K")
Copy = list[tuple[int, float]]
"""Tokens, each with its probability if the one before it is accepted."""


def dominant_copy(matches: Sequence[Match], tokens: int, least: float = 0.0) -> Copy:
    """Return the continuation that most matches share, of at most `tokens` tokens.

    It ends where no successor dominates, or the path's probability is below `least`.
    """
    copy: Copy = []
    path_probability = 1.0
    for depth in range(tokens):
        followers = by_next_token(matches, depth + 1)
        weights = {token: weight_of(group) for token, group in followers.items()}
        best = max(weights, key=lambda token: weights[token], default=END)
        if best == END or (share := weights[best] / sum(weights.values())) < _DOMINANT:
            break
        matches = followers[best]
        further = max([match.length for match in matches]) + depth - SHORTEST
        chance = share * (_TRUST[further] if further < len(_TRUST) else _MAX_TRUST)
        path_probability *= chance
        if path_probability < least:
            break
        copy.append((best, chance))
    return copy


def expected_tokens(copy: Copy) -> float:
    """Return the accepted tokens that a copy promises."""
    return float(sum(accumulate([chance for _, chance in copy], mul)))


def drafting_alone(copies: Mapping[K, Copy], usual: Mapping[K, float], saved: float) -> set[K]:
    """Return the requests whose copies draft without a model.

    A copy does if it promises at least what the model's trees yield. If no request needs the model, its time is saved,
    too.

    Args:
        copies: copies of all requests that would ask the model.
        usual: accepted tokens of a request's tree by the model.
        saved: tokens of the whole step in the time of the model's drafts.
    """
    gains = {one: expected_tokens(copy) - usual[one] for one, copy in copies.items()}
    if all(copies.values()) and sum(gains.values()) + saved >= 0:
        return set(copies)
    return {one for one, gain in gains.items() if copies[one] and gain >= 0}


@dataclass(slots=True)
class _Text:
    """A request's text, and what a model's trees for it yielded."""

    occurrences: Occurrences = field(default_factory=lambda: Occurrences(SHORTEST))
    indexed: int = 0
    drafted: TokenTree | None = None
    """The model's tree for the first `indexed` tokens, until it is counted."""
    accepted: float = 0.0
    trees: float = 0.0

    @property
    def usual(self) -> float:
        """Accepted tokens of a tree by the model.

        It is 0 before the first tree, for which the model reads the whole prompt.
        """
        return (self.accepted + _PRIOR * _USUAL) / (self.trees + _PRIOR) if self.trees else 0.0

    def read(self, context: Sequence[int]) -> None:
        """Index new tokens; count those in the model's tree as accepted."""
        if self.drafted is not None and self.indexed < len(context):
            self.accepted = _FADE * self.accepted + agreed_tokens(self.drafted, context[self.indexed :])
            self.trees = _FADE * self.trees + 1
            self.drafted = None
        self.occurrences.file(context, self.indexed)
        self.indexed = len(context)


class SourceChain:
    """Copies of requests' texts and references, for a service that also has a model."""

    def __init__(self, copier: int, models: frozenset[int]) -> None:
        """Start without texts; the arguments are numbers of speculators."""
        self.copier, self.models = copier, models
        self._texts: dict[str, _Text] = {}

    @classmethod
    def of(cls, drafters: Sequence[Drafter]) -> "SourceChain | None":
        """Return the chain of a service's drafters; None without a copier or a model.

        A copier that learns from finished requests drafts on its own.
        """
        described = [drafter.description for drafter in drafters]
        learning = [getattr(drafter, "learns", False) for drafter in drafters]
        copiers = [i for i, it in enumerate(described) if it.reads_references and not learning[i]]
        models = frozenset(i for i, it in enumerate(described) if it.model and it.vocab_size)
        return cls(copiers[0], models) if copiers and models else None

    def draft_alone(self, jobs: Mapping[K, DraftJob], seconds: float) -> dict[K, TokenTree]:
        """Return the trees of the copies that draft alone.

        Args:
            jobs: all jobs that ask the copier and a model.
            seconds: seconds of the model's latest drafts; 0: unknown.
        """
        copies: dict[K, Copy] = {}
        usual: dict[K, float] = {}
        for one, job in jobs.items():
            text = self._texts.setdefault(job.request_id, _Text())
            text.read(job.context)
            copies[one], usual[one] = self._copy(job), text.usual
        speed = max([job.limits.tokens_per_second for job in jobs.values()], default=0.0)
        trees: dict[K, TokenTree] = {}
        for one in drafting_alone(copies, usual, speed * seconds or _SAVED):
            tokens, scores = zip((jobs[one].context[-1], 1.0), *copies[one], strict=True)
            trees[one] = point_tree(tokens, range(-1, len(copies[one])), scores, range(1, len(tokens)))
        return trees

    def extend(self, speculator: int, job: DraftJob, tree: TokenTree) -> TokenTree:
        """Return a speculator's tree; a copy extends the surest leaf of a model's tree.

        A copied node replaces only nodes of lower path probability. Trees with draws are returned unchanged.
        """
        if speculator not in self.models or tree.has_draws or len(tree) == 1:
            return tree
        tokens, parents, scores = tree.token_ids.tolist(), tree.parents.tolist(), tree.scores.tolist()
        chances = [1.0]
        for node in range(1, len(tree)):
            chances.append(chances[parents[node]] * scores[node])
        leaf = max(set(range(len(tree))) - set(parents), key=lambda node: chances[node])
        path = [tokens[node] for node in tree.path_to(leaf)]
        for token, score in self._copy(job, path, chances[leaf]):
            chances.append(chances[leaf] * score)
            tokens.append(token)
            parents.append(leaf)
            scores.append(score)
            leaf = len(tokens) - 1
        if len(tokens) > len(tree):
            best = sorted(range(1, len(tokens)), key=lambda node: -chances[node])[: job.limits.nodes]
            tree = point_tree(tokens, parents, scores, sorted(best))
        self._texts[job.request_id].drafted = tree
        return tree

    def release(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    def _copy(self, job: DraftJob, path: Sequence[int] = (), path_probability: float = 1.0) -> Copy:
        """Return a copy after context and path, within the job's limits."""
        limits, end = job.limits, [*job.context[-LONGEST:], *path]
        matches = list(self._texts[job.request_id].occurrences.matches(end))
        if job.references is not None:
            matches += job.references.matches(end, SHORTEST)
        room = min(limits.nodes, limits.depth) - len(path)
        return dominant_copy(matches, room, limits.min_path_probability / max(path_probability, 1e-9))


def agreed_tokens(tree: TokenTree, tokens: Sequence[int]) -> int:
    """Return the number of first tokens on a path of a tree."""
    nodes = {
        edge: i for i, edge in enumerate(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True))
    }
    node = 0
    for count, token in enumerate(tokens):
        if (node := nodes.get((node, token), -1)) < 0:
            return count
    return len(tokens)
