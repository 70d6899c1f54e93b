"""Clients of the services, with one request each, that check every answer."""

from dataclasses import dataclass, field
from random import Random

from specinfer.drafters import Drafter, DraftJob
from specinfer.drafters.ngram import NgramDrafter
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.request.statuses import EntryStatus
from specinfer.tree import TokenTree, TreeLimits, check_tree
from specinfer.v1 import speculator_pb2, verifier_pb2
from specinfer.wire.codec import decode_tree, encode_sampling, encode_tree
from tests.fuzz.table_target import TableTarget
from tests.support.system import VOCABULARY

_LIMITS = TreeLimits(8, 4)
_LONGEST = 60
"""Maximum tokens of a context, after which the request starts again with another prompt."""


@dataclass(slots=True)
class Context:
    """Committed tokens of a request, and the number that the service has cached."""

    name: str
    rng: Random
    sampling: Sampling = GREEDY
    tokens: list[int] = field(default_factory=list)
    cached_len: int = 0

    def __post_init__(self) -> None:
        if self.rng.random() < 0.5:
            self.sampling = Sampling(1.0, seed=self.rng.randrange(2**63))

    def begin(self) -> None:
        """Choose a new prompt if there is none, or the context is long."""
        if not 0 < len(self.tokens) < _LONGEST:
            alphabet = self.rng.sample(range(VOCABULARY), 4)
            self.tokens, self.cached_len = self.rng.choices(alphabet, k=self.rng.choice((1, 3, 8, 20))), 0


class VerifierClient:
    """Client that sends a request's trees to a verifier."""

    def __init__(self, name: str, rng: Random, target: TableTarget, drafter: Drafter) -> None:
        self._context, self._target, self._drafter = Context(name, rng), target, drafter
        self._asked, self._read_limit = 0, 0
        """Length of the context with the last entry's delta; number of its tokens to read, 0 for all."""
        self._tree: TokenTree | None = None

    @property
    def name(self) -> str:
        """The request's id."""
        return self._context.name

    def forget(self) -> None:
        """Assume that the service has cached nothing."""
        self._context.cached_len = 0

    def entry(self) -> verifier_pb2.VerifyEntry:
        """Return the next entry; sometimes only a part of the prompt, without a tree."""
        context = self._context
        context.begin()
        delta = context.tokens[context.cached_len :]
        self._read_limit = 0
        if len(delta) > 4 and context.rng.random() < 0.3:
            if context.rng.random() < 0.5:
                self._read_limit = context.rng.randrange(1, len(delta))
            else:
                delta = delta[: len(delta) // 2]
        self._asked, self._tree = context.cached_len + len(delta), None
        if self._asked == len(context.tokens) and not self._read_limit:
            job = DraftJob(self.name, context.tokens, _LIMITS, context.sampling)
            (tree,) = self._drafter.draft([job])
            self._tree = tree if isinstance(tree, TokenTree) else TokenTree.root_only(delta[-1])
        return verifier_pb2.VerifyEntry(
            request_id=self.name,
            base_len=context.cached_len,
            delta_token_ids=delta,
            tree=encode_tree(self._tree) if self._tree is not None else None,
            sampling=encode_sampling(context.sampling),
            logprobs=context.rng.random() < 0.3,
            return_top_k=context.rng.choice((0, 0, 2)),
            top_logprobs=context.rng.choice((0, 3)),
            read_limit=self._read_limit,
        )

    def check(self, verdict: verifier_pb2.Verdict, disturbed: bool) -> None:
        """Check the answer to an unmutated entry, and append its tokens.

        Args:
            disturbed: whether a mutated entry had this request's id, and may have changed its cache.
        """
        context = self._context
        if disturbed and verdict.status != int(EntryStatus.OK):
            return self.forget()
        assert verdict.status == int(EntryStatus.OK), (
            f"{self.name}: status {verdict.status}: {verdict.message}"
        )
        if self._tree is None:
            if self._read_limit:
                assert context.cached_len < verdict.cached_len < self._asked, (
                    f"{self.name}: {verdict.cached_len}"
                )
            else:
                assert verdict.cached_len == self._asked, (
                    f"{self.name}: {verdict.cached_len}, not {self._asked}"
                )
            context.cached_len = verdict.cached_len
            return None
        accepted = [int(self._tree.token_ids[node]) for node in verdict.accepted_nodes]
        tokens = [*accepted, verdict.bonus_token_id]
        right = self._target.continued(context.tokens, context.sampling, len(tokens))
        assert tokens == right, f"{self.name}: {tokens} instead of {right}"
        assert verdict.cached_len == self._asked + len(accepted), f"{self.name}: held {verdict.cached_len}"
        context.tokens += tokens
        context.cached_len = verdict.cached_len
        return None


class SpeculatorClient:
    """Client of a speculator service whose first drafter is deterministic n-grams."""

    def __init__(self, name: str, rng: Random) -> None:
        self._context, self._complete, self._asked = Context(name, rng), False, 0

    @property
    def name(self) -> str:
        """The request's id."""
        return self._context.name

    def forget(self) -> None:
        """Assume that the service has cached nothing."""
        self._context.cached_len = 0

    def entry(self) -> speculator_pb2.DraftEntry:
        """Return the next entry; sometimes only a part of the prompt, without a draft."""
        context = self._context
        context.begin()
        if context.cached_len == len(context.tokens):
            context.tokens += context.rng.choices(context.tokens, k=context.rng.choice((1, 2, 5)))
        delta = context.tokens[context.cached_len :]
        if len(delta) > 4 and context.rng.random() < 0.3:
            delta = delta[: len(delta) // 2]
        self._asked = context.cached_len + len(delta)
        self._complete = self._asked == len(context.tokens)
        return speculator_pb2.DraftEntry(
            request_id=self.name,
            base_len=context.cached_len,
            delta_token_ids=delta,
            node_budget=_LIMITS.nodes if self._complete else 0,
            max_depth=_LIMITS.depth,
            shape=speculator_pb2.TREE_SHAPE_TREE,
            sampling=encode_sampling(context.sampling, with_seed=context.rng.random() < 0.5),
            min_path_probability=context.rng.choice((0.0, 0.1)),
            draw_seed=context.rng.randrange(2**63),
        )

    def check(self, result: speculator_pb2.DraftResult, disturbed: bool) -> None:
        """Check that all trees are valid, and the n-gram tree is right."""
        if disturbed and result.status != int(EntryStatus.OK):
            return self.forget()
        assert result.status == int(EntryStatus.OK), f"{self.name}: status {result.status}: {result.message}"
        assert result.cached_len == self._asked, f"{self.name}: held {result.cached_len}, not {self._asked}"
        for draft in result.drafts:
            if draft.status == int(EntryStatus.OK):
                check_tree(decode_tree(draft.tree, draft.speculator), VOCABULARY, _LIMITS.nodes + 1)
        trees = [draft.tree for draft in result.drafts if draft.speculator == 0]
        assert trees == self._ngram_trees(), f"{self.name}: {trees}"
        self._context.cached_len = self._asked
        return None

    def _ngram_trees(self) -> list[object]:
        if not self._complete:
            return []
        job = DraftJob(self.name, self._context.tokens, _LIMITS, self._context.sampling)
        (tree,) = NgramDrafter(1, 3).draft([job])
        assert isinstance(tree, TokenTree)
        return [encode_tree(tree)] if len(tree) > 1 else []
