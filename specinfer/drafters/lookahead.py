"""Lookahead decoding (arXiv 2402.02057): n-grams from Jacobi iterations in the verifier.

A window has guesses of the next W tokens from each of the last N - 1 iterations (rows; N = 3: two). The verifier's
pass scores the guesses as tree nodes. Row 0 is one path; below each node of row 0 is the rest of its column:

    root - a0 - a1 - a2      row 0, the oldest      The target's predictions at b0, b1, b2 are the next row,
           |    |    |                              c0, c1, c2. (a0 b0 c0), (a1 b1 c1), .. are n-grams.
           b0   b1   b2      row 1

A pool stores these n-grams by first token, with the n-grams of prompt and answer. N-grams that begin with the root are
proposed in addition to the window. The target's predictions (`target_top_k`) are known for the nodes of all
speculators: paths that follow these predictions are n-grams, too. If a limit or the planner cuts the window, fewer
n-grams are found.

Every request has its own pool, since a shared pool would reveal texts by timing. Every proposal is a point (not
drawn), so verification is exact for greedy and sampled requests.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob, TargetTopK
from specinfer.errors import SpecInferError
from specinfer.hub import resolve_model
from specinfer.text.tokenizer import Tokenizer
from specinfer.tree import TokenTree, TreeBuilder

_CANDIDATE_SCORE = 0.4
"""Score of a token from the pool, until calibrated."""
_WINDOW_SCORE = 0.05
"""Score of a guess in the window, until calibrated."""
_MAX_FIRST_TOKENS = 1 << 15
"""Maximum first tokens in a pool; the oldest are dropped."""

Ngram = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LookaheadShape:
    """Parameters of lookahead decoding."""

    window: int
    """Columns of the window (W of the paper)."""
    ngram: int
    """Length of n-grams (N of the paper)."""
    candidates: int
    """Candidates per first token (G of the paper)."""


class NgramPool:
    """Pool of the latest G n-grams of each first token."""

    def __init__(self, candidates: int) -> None:
        self._candidates = candidates
        self._by_first: OrderedDict[int, OrderedDict[Ngram, None]] = OrderedDict()

    def add(self, ngram: Ngram) -> None:
        """Add an n-gram; drop the oldest n-grams above the limits."""
        same = self._by_first.setdefault(ngram[0], OrderedDict())
        self._by_first.move_to_end(ngram[0])
        same[ngram[1:]] = None
        same.move_to_end(ngram[1:])
        if len(same) > self._candidates:
            same.popitem(last=False)
        if len(self._by_first) > _MAX_FIRST_TOKENS:
            self._by_first.popitem(last=False)

    def after(self, first: int) -> list[Ngram]:
        """Return the known continuations of a token, the latest first."""
        return list(reversed(self._by_first.get(first, {})))


class Window:
    """Guesses [N - 1 iterations, W], oldest first."""

    def __init__(self, shape: LookaheadShape, context: Sequence[int]) -> None:
        """Start with arbitrary tokens of the context."""
        self._filler, self.context_len = list(context), len(context)
        self.rows = [self._fill(row, shape.window) for row in range(shape.ngram - 1)]

    def advance(self, predicted: dict[Ngram, int], context_len: int) -> None:
        """Advance the window: add the predictions, remove committed columns.

        Args:
            predicted: the target's next token, by path below the root.
            context_len: number of committed tokens of the request.
        """
        youngest = [predicted.get(path) for path in self.paths()]
        fill = self._fill(len(self.rows), len(youngest))
        fresh = [fill[i] if token is None else token for i, token in enumerate(youngest)]
        # a row is one place further than the previous one, so one committed token needs no move
        moved = max(context_len - self.context_len - 1, 0)
        self.context_len = context_len
        rows = [*self.rows[1:], fresh]
        self.rows = [[*row[moved:], *self._fill(moved, min(moved, len(row)))] for row in rows]

    def ngrams(self, predicted: dict[Ngram, int]) -> Iterator[Ngram]:
        """Yield each verified column's guesses with the target's prediction."""
        for column, path in enumerate(self.paths()):
            if path in predicted:
                yield (*(row[column] for row in self.rows), predicted[path])

    def paths(self) -> Iterator[Ngram]:
        """Yield each column's path from the root to the newest row."""
        for column in range(len(self.rows[0])):
            yield (*self.rows[0][: column + 1], *(row[column] for row in self.rows[1:]))

    def _fill(self, start: int, count: int) -> list[int]:
        """Return `count` arbitrary tokens of the context; `start` varies the choice."""
        return [self._filler[(start * 31 + i * 7) % len(self._filler)] for i in range(count)]


class LookaheadDrafter:
    """Draft with a window and a pool per request."""

    def __init__(self, description: DrafterDescription, shape: LookaheadShape) -> None:
        self.description, self._shape = description, shape
        self._windows: dict[str, Window] = {}
        self._pools: dict[str, NgramPool] = {}

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "LookaheadDrafter":
        tokenizer = Tokenizer.load(resolve_model(options.model))
        shape = LookaheadShape(window=5, ngram=3, candidates=4)
        fingerprint = tokenizer.fingerprint()
        return cls(
            DrafterDescription("", tokenizer.vocab_size, fingerprint, target_top_k=1),
            shape,
        )

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        """Record all jobs' predictions, then draft one tree per job."""
        for job in jobs:
            self._learn(job)
        return [self._tree(job) for job in jobs]

    def release(self, request_id: str) -> None:
        self._windows.pop(request_id, None)
        self._pools.pop(request_id, None)

    def _pool(self, request_id: str) -> NgramPool:
        return self._pools.setdefault(request_id, NgramPool(self._shape.candidates))

    def _learn(self, job: DraftJob) -> None:
        window, pool, ngram = self._windows.get(job.request_id), self._pool(job.request_id), self._shape.ngram
        seen = window.context_len if window is not None else 0
        for start in range(max(seen - ngram + 1, 0), len(job.context) - ngram + 1):
            pool.add(tuple(job.context[start : start + ngram]))
        if window is None:
            self._windows[job.request_id] = Window(self._shape, job.context)
            return
        predicted = predictions(job.target_top_k) if job.target_top_k is not None else {}
        ngrams = written(job.target_top_k, ngram) if job.target_top_k is not None else ()
        for gram in (*window.ngrams(predicted), *ngrams):
            pool.add(gram)
        window.advance(predicted, len(job.context))

    def _tree(self, job: DraftJob) -> TokenTree:
        """Return a tree of known n-grams, then the window, within the limits."""
        builder = TreeBuilder(job.context[-1])
        for ngram in self._pool(job.request_id).after(job.context[-1]):
            builder.add_path(ngram, _CANDIDATE_SCORE, job.limits)
        if job.limits.width is None:
            for path in self._windows[job.request_id].paths():
                builder.add_path(path, _WINDOW_SCORE, job.limits)
        return builder.points()


def predictions(top_k: TargetTopK) -> dict[Ngram, int]:
    """Return the target's best next token by path below the root."""
    paths: list[Ngram] = []
    for token, parent in zip(top_k.token_ids.tolist(), top_k.parents.tolist(), strict=True):
        paths.append((*paths[parent], token) if parent >= 0 else ())
    return dict(zip(paths, top_k.top_k[:, 0].tolist(), strict=True))


def written(top_k: TargetTopK, ngram: int) -> Iterator[Ngram]:
    """Yield n-grams of a node's token and the target's predictions after it."""
    tokens, choices = top_k.token_ids.tolist(), top_k.top_k[:, 0].tolist()
    edges = zip(top_k.parents.tolist(), tokens, strict=True)
    children = {edge: node for node, edge in enumerate(edges)}
    for start, token in enumerate(tokens):
        text = [token]
        node: int | None = start
        while node is not None and len(text) < ngram:
            text.append(choices[node])
            node = children.get((node, choices[node]))
        if len(text) == ngram:
            yield tuple(text)
