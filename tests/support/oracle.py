"""Plain greedy decoding of the default target, and drafters that know the result."""

from collections.abc import Callable, Sequence
from functools import cache
from threading import RLock
from typing import Any

from specinfer.drafters import DraftJob
from specinfer.tree import TokenTree, TreeBuilder
from tests.support.tiny_llama import TinyLlama
from tests.support.tiny_models import tiny_transformers

_LOCK = RLock()
"""Lock for scripted drafters in several threads: building a model seeds torch's global generator."""


@cache
def _default_target() -> Any:
    return tiny_transformers("llama")


def default_target() -> Any:
    """Return the tiny model that `running_system` serves by default."""
    with _LOCK:
        return _default_target()


@cache
def _oracle() -> TinyLlama:
    return TinyLlama(default_target())


def greedy(prompt: Sequence[int], count: int) -> list[int]:
    """Return the first `count` greedy tokens of the default target after a prompt."""
    with _LOCK:
        return _oracle().greedy(prompt, count)


def chain(root: int, tokens: Sequence[int], score: float = 0.9) -> TokenTree:
    builder, node = TreeBuilder(root), 0
    for token in tokens:
        (node,) = builder.propose_points(node, [token], [score])
    return builder.build()


def always(job: DraftJob) -> TokenTree:
    """Propose exactly the target's next tokens."""
    count = min(job.limits.nodes, job.limits.depth)
    return chain(job.context[-1], greedy(job.context, count))


def never(job: DraftJob) -> TokenTree:
    """Propose only tokens that the target will not choose."""
    count = min(job.limits.nodes, job.limits.depth)
    return chain(job.context[-1], [(t + 1) % 97 for t in greedy(job.context, count)])


def first(correct: int) -> Callable[[DraftJob], TokenTree]:
    """Return a drafter that proposes `correct` right tokens, then wrong ones."""

    def script(job: DraftJob) -> TokenTree:
        count = min(job.limits.nodes, job.limits.depth)
        tokens = greedy(job.context, count)
        return chain(job.context[-1], [t if i < correct else (t + 1) % 97 for i, t in enumerate(tokens)])

    return script
