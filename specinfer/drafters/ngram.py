"""Prompt lookup: continue the context like earlier occurrences of its last tokens.

    context   ... the cat sat on the mat . the cat ran . the cat
    matches       the cat -> sat on the                the cat -> ran .
    tree      cat-+-ran-.-the
    +-sat-on-the

The request's references are searched, too. The longest match comes first, from any text. No model is needed. Every
proposal is a point (not drawn).
"""

from collections.abc import Sequence

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob
from specinfer.drafters.search import END, Match
from specinfer.errors import SettingError, SpecInferError
from specinfer.tree import TokenTree, TreeBuilder, TreeLimits

_SCORE_BY_LENGTH = {1: 0.2, 2: 0.4, 3: 0.6}
_BEST_SCORE = 0.75
"""Score of a match of four or more tokens."""


class NgramIndex:
    """Index of a growing context: n-gram -> positions after its occurrences."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self.indexed = 0

    def extend(self, context: Sequence[int]) -> None:
        """Index the tokens added since the last call."""
        for end in range(self.indexed + 1, len(context) + 1):
            for length in self._lengths:
                if length <= end:
                    self._ends.setdefault(tuple(context[end - length : end]), []).append(end)
        self.indexed = len(context)

    def matches(self, context: Sequence[int], max_count: int) -> list[tuple[int, int]]:
        """Return matches of the context's end as (end, length), longest first."""
        lengths: dict[int, int] = {}
        for length in self._lengths:
            if length > len(context):
                continue
            for end in reversed(self._ends.get(tuple(context[-length:]), ())):
                if end != len(context):
                    lengths.setdefault(end, length)
                if len(lengths) == max_count:
                    return list(lengths.items())
        return list(lengths.items())


class NgramDrafter:
    """Draft a tree whose branches continue the matches."""

    def __init__(self, shortest: int = 2, longest: int = 4, branches: int = 3) -> None:
        if not 1 <= shortest <= longest:
            raise SettingError("shortest", shortest, f"must be in [1, longest = {longest}]")
        self._shortest, self._longest, self._branches = shortest, longest, branches
        self._indexes: dict[str, NgramIndex] = {}
        self.description = DrafterDescription(reads_references=True)

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "NgramDrafter":
        return cls()

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        return [self._draft(job) for job in jobs]

    def release(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)

    def _draft(self, job: DraftJob) -> TokenTree:
        index = self._indexes.setdefault(job.request_id, NgramIndex(self._shortest, self._longest))
        index.extend(job.context)
        if job.limits.empty:
            return TokenTree.root_only(job.context[-1])
        branches = job.limits.width if job.limits.width is not None else self._branches
        branches = min(branches, self._branches)
        matches = [Match(job.context, *place) for place in index.matches(job.context, branches)]
        if job.references is not None:
            matches += job.references.matches(job.context, self._shortest)
            matches.sort(key=lambda match: -match.length)  # among equal lengths, the request's own text first
        return _tree(job.context[-1], matches[:branches], job.limits)


def _tree(root: int, matches: Sequence[Match], limits: TreeLimits) -> TokenTree:
    builder = TreeBuilder(root)
    for text, end, length in matches:
        path = text[end : end + limits.depth]
        stop = path.index(END) if END in path else len(path)
        builder.add_path(path[:stop], _SCORE_BY_LENGTH.get(length, _BEST_SCORE), limits)
    return builder.points()
