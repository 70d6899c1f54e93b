"""Continues the context as known texts continue it: the paper's "knowledge base" speculator (LLMA, REST).

    known texts   ... press the red button twice. | ... press the red lever, then ...
    context       To start it, press the red
    tree          red-+-button-twice      children ranked by how often they followed
                      +-lever-,-then

The texts are files given at the start, and, if `retrieval_learn` is set, the service's own finished
requests. Learning lets one user's text come back as another's *draft*; the output never changes, but its
timing can tell, so it is off by default. Every proposal is a point.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from specinfer.errors import InvalidInputError, SettingError, SpecInferError
from specinfer.hub import resolve_model
from specinfer.tokenizer import Tokenizer
from specinfer.tree import TokenTree, TreeBuilder, TreeLimits
from speculator_svc.drafters import DrafterDescription, DrafterOptions, DraftJob
from speculator_svc.drafters.suffix_array import END, SuffixArray

_MOST_MATCHES = 64
"""Occurrences whose continuations are counted."""
_SCORE_BY_LENGTH = {1: 0.2, 2: 0.35, 3: 0.5, 4: 0.6}
_BEST_SCORE = 0.75
"""Priors of a match by its length, until the gateway has measured them."""
_LEAST_NEW = 4096
_MOST_LEARNT = 1 << 18


class LearntTexts:
    """Finished requests, the latest of them searchable.

    The array is rebuilt when a quarter has been added, so that a token is sorted about five times in all.
    """

    def __init__(self) -> None:
        self._texts: list[list[int]] = []
        self._new = 0
        self.array = SuffixArray([])

    def add(self, tokens: list[int]) -> None:
        """Takes in one finished request; the oldest are forgotten."""
        self._texts.append(tokens)
        self._new += len(tokens)
        if self._new < max(_LEAST_NEW, len(self.array) // 4):
            return
        held = sum(map(len, self._texts))
        while held > _MOST_LEARNT and len(self._texts) > 1:
            held -= len(self._texts.pop(0))
        self.array, self._new = SuffixArray(self._texts), 0


class RetrievalDrafter:
    """Looks the end of the context up in a datastore."""

    def __init__(
        self, texts: Sequence[Sequence[int]], description: DrafterDescription, least: int, learn: bool
    ) -> None:
        self._given = SuffixArray(texts)
        self._learnt = LearntTexts() if learn else None
        self._description, self._least = description, least
        self._contexts: dict[str, Sequence[int]] = {}

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "RetrievalDrafter":
        """Reads the datastore.

        Raises:
            SettingError: if there is neither a datastore nor permission to learn.
        """
        if not options.datastore and not options.retrieval_learn:
            raise SettingError("datastore", options.datastore, "retrieval needs files, or retrieval-learn")
        tokenizer = Tokenizer.load(resolve_model(options.model))
        texts = list(read_datastore(options.datastore, tokenizer))
        description = DrafterDescription("", tokenizer.vocab_size, tokenizer.fingerprint())
        return cls(texts, description, options.retrieval_min, options.retrieval_learn)

    @property
    def description(self) -> DrafterDescription:
        """Bound to the tokenizer its texts were read with."""
        return self._description

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        """See `Drafter.draft`."""
        return [self._draft(job) for job in jobs]

    def release(self, request_id: str) -> None:
        """See `Drafter.release`; what was said is learnt now."""
        context = self._contexts.pop(request_id, None)
        if self._learnt is not None and context is not None:
            self._learnt.add(list(context))

    def _draft(self, job: DraftJob) -> TokenTree:
        if self._learnt is not None:
            self._contexts[job.request_id] = job.context
        if job.limits.empty:
            return TokenTree.root_only(job.context[-1])
        arrays = [self._given] if self._learnt is None else [self._given, self._learnt.array]
        found = [(array, *array.longest_match(job.context, self._least)) for array in arrays]
        array, length, ends = max(found, key=lambda match: match[1])
        step = max(1, len(ends) // _MOST_MATCHES)
        depth = job.limits.depth
        continuations = [array.tokens[end : end + depth].tolist() for end in ends[::step][:_MOST_MATCHES]]
        prior = _SCORE_BY_LENGTH.get(length, _BEST_SCORE)
        return likely_tree(job.context[-1], continuations, job.limits, prior)


def likely_tree(
    root: int, continuations: Iterable[Sequence[int]], limits: TreeLimits, prior: float
) -> TokenTree:
    """The most frequent paths of some continuations.

    A node's score is the share of its parent's continuations that go through it, times the prior.
    """
    counts: dict[tuple[int, ...], int] = {}
    for continuation in continuations:
        stop = continuation.index(END) if END in continuation else len(continuation)
        for end in range(stop + 1):
            path = tuple(continuation[:end])
            counts[path] = counts.get(path, 0) + 1
    ranked = sorted((path for path in counts if path), key=lambda path: (-counts[path], len(path), path))
    builder = TreeBuilder(root)
    kids: dict[tuple[int, ...], list[int]] = {}
    chosen = 0
    for path in ranked:  # a path never comes before its parent: that occurs as often and is shorter
        siblings = kids.setdefault(path[:-1], [])
        narrow = limits.width is not None and len(siblings) >= limits.width
        if chosen == limits.nodes or narrow or not (len(path) == 1 or path[:-1][-1] in kids[path[:-2]]):
            continue
        siblings.append(path[-1])
        chosen += 1
    place: dict[tuple[int, ...], int] = {(): 0}
    for parent in sorted(kids, key=len):
        tokens = kids[parent]
        scores = [prior * counts[(*parent, token)] / counts[parent] for token in tokens]
        nodes = builder.propose_points(place[parent], tokens, scores) if tokens else []
        place.update({(*parent, token): node for token, node in zip(tokens, nodes, strict=True)})
    return builder.build()


def read_datastore(paths: str, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Token sequences of files separated by colons: text, or JSONL of `text` or of token ids `p` and `o`.

    Raises:
        SettingError: if a file does not exist.
        InvalidInputError: naming file and line.
    """
    for name in filter(None, (part.strip() for part in paths.split(":"))):
        path = Path(name)
        if not path.is_file():
            raise SettingError("datastore", name, "no such file")
        if ".jsonl" not in path.suffixes:
            yield tokenizer.encode(path.read_text())
            continue
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for number, line in enumerate(lines, 1):
                try:
                    row = json.loads(line)
                    yield tokenizer.encode(row["text"]) if "text" in row else [*row["p"], *row["o"]]
                except (json.JSONDecodeError, KeyError, TypeError) as error:
                    raise InvalidInputError(
                        f"{path}:{number}", line[:60], "needs `text`, or `p` and `o`"
                    ) from error
