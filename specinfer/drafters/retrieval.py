"""Draft from a datastore of texts: the paper's "knowledge base" (LLMA, REST).

    known texts   ... press the red button twice. | ... press the red lever, then ...
    context       To start it, press the red
    tree          red-+-button-twice      children ranked by how often they followed
                      +-lever-,-then

The texts are files read at start into a suffix array, which needs little memory, so they may be large. To draft from
finished requests, use `suffix`. Every proposal is a point (not drawn).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob
from specinfer.drafters.search import END, SuffixArray
from specinfer.errors import InvalidInputError, SettingError, SpecInferError
from specinfer.hub import resolve_model
from specinfer.text.prompts import read_lines, read_text
from specinfer.text.tokenizer import Tokenizer
from specinfer.tree import TokenTree, TreeBuilder, TreeLimits

_MAX_MATCHES = 64
"""Maximum occurrences whose continuations are counted."""
_SCORE_BY_LENGTH = {1: 0.2, 2: 0.35, 3: 0.5, 4: 0.6}
_BEST_SCORE = 0.75
"""Score after a match of maximum length, until calibrated."""


class RetrievalDrafter:
    """Draft continuations of the context's end found in a datastore."""

    def __init__(
        self, texts: Sequence[Sequence[int]], description: DrafterDescription, least: int = 3
    ) -> None:
        self._array = SuffixArray(texts)
        self.description, self._least = description, least

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "RetrievalDrafter":
        """Read the datastore."""
        if not options.datastore:
            raise SettingError(
                "datastore", options.datastore, "must name files, separated by colons, for drafter retrieval"
            )
        tokenizer = Tokenizer.load(resolve_model(options.model))
        texts = list(read_datastore(options.datastore, tokenizer))
        description = DrafterDescription("", tokenizer.vocab_size, tokenizer.fingerprint())
        return cls(texts, description)

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        return [self._draft(job) for job in jobs]

    def release(self, request_id: str) -> None:
        """Do nothing: the drafter stores no state of requests."""

    def _draft(self, job: DraftJob) -> TokenTree:
        if job.limits.empty:
            return TokenTree.root_only(job.context[-1])
        length, ends = self._array.longest_match(job.context, self._least)
        step = max(1, len(ends) // _MAX_MATCHES)
        depth = job.limits.depth
        continuations = [
            self._array.tokens[end : end + depth].tolist() for end in ends[::step][:_MAX_MATCHES]
        ]
        prior = _SCORE_BY_LENGTH.get(length, _BEST_SCORE)
        return likely_tree(job.context[-1], continuations, job.limits, prior)


def likely_tree(
    root: int, continuations: Iterable[Sequence[int]], limits: TreeLimits, prior: float
) -> TokenTree:
    """Return a tree of the most frequent paths of some continuations.

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
    for path in ranked:  # a parent comes first: it is at least as frequent, and shorter
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
    """Read token sequences of files separated by colons.

    Files are text, or JSONL with `text`, or with token ids of prompt (`p`) and output (`o`).
    """
    for name in filter(None, (part.strip() for part in paths.split(":"))):
        path = Path(name)
        if not path.is_file():
            raise SettingError("datastore", name, "no such file; give files, separated by colons")
        if ".jsonl" not in path.suffixes:
            yield tokenizer.encode(read_text("datastore", path))
            continue
        for number, line in read_lines("datastore", path):
            try:
                row = json.loads(line)
                yield tokenizer.encode(row["text"]) if "text" in row else [*row["p"], *row["o"]]
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise InvalidInputError(
                    f"{path}:{number}", line[:60], "must be a JSON object with `text`, or with `p` and `o`"
                ) from error
