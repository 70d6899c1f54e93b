"""The learned policy: accepted tokens predicted from a request's text and its steps so far. Pure.

    accepted(S, n) = sum over requests r of  x(r, S) . W(S) . (log2(1 + m), m / (1 + m)),   m = n / requests

x are the features (`features`), W(S) the weights of a speculator set, trained from recorded steps
(`specinfer train scheduler`) and refined with every tree that was verified (`linear`). A set without trained
weights begins with those that make it the measured policy.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from math import log2

import numpy as np

from specinfer.planning.acceptance import NO_CONTEXTS, AcceptanceModel, Expected, Outcomes
from specinfer.planning.by_nodes import sizes_up_to
from specinfer.planning.features import Floats, Text, features_of
from specinfer.planning.latency import SpeculatorSet
from specinfer.planning.linear import LinearModel, functions_of, rows_of
from specinfer.planning.subtrees import nodes_needed
from specinfer.planning.weights import set_name
from specinfer.tree import TokenTree

Matches = Callable[[Mapping[str, int]], Sequence[int]]
"""Requests with the tokens of their contexts -> how long a stretch at the end of each stands in it before
(`repeats`)."""


_USUAL = (2, 4, 8)
"""Sizes of usual trees."""
_MOST_BEGUN = 64
"""Steps of a request that may wait to be learnt from; as many as may wait for the store."""


class LearnedAcceptance(AcceptanceModel):
    """Predicts, and learns from what came."""

    def __init__(self, trained: Mapping[str, LinearModel], names: Sequence[str], matches: Matches) -> None:
        """`trained` are weights by the names of sets, `names` those of the speculators by number, which the
        pool goes on filling."""
        super().__init__()
        self._trained, self._names, self._matches = trained, names, matches
        self._steps, self._refined = 0, dict[SpeculatorSet, int]()
        """Steps so far, and the latest of each set that it was refined with."""
        self._models: dict[SpeculatorSet, LinearModel] = {}
        self._texts: dict[str, Text] = {}
        self._begun: dict[str, dict[int, dict[SpeculatorSet, Floats]]] = {}
        """By request and its context: the features of steps that were not learnt from yet."""

    def follow(self, contexts: Mapping[str, int]) -> None:
        """From now on these requests, with so many tokens each, want drafts; others are forgotten."""
        super().follow(contexts)
        known, begun = self._texts, self._begun
        self._texts = {
            name: known.get(name) or Text.new(context, self.usual_text) for name, context in contexts.items()
        }
        self._begun = {name: begun.get(name, {}) for name in contexts}
        for name, context in contexts.items():
            self._texts[name].grow(context)

    def expect(self, batch: int, sizes: Sequence[int]) -> Expected:
        """As the measured policy, but with predicted tokens."""
        usual = super().expect(batch, sizes)
        known = self._features()
        self._steps += 1
        for i, (name, text) in enumerate(self._texts.items()):
            self._begun[name][text.context] = dict(zip(self.sets, known[i], strict=True))
            if len(self._begun[name]) > _MOST_BEGUN:
                del self._begun[name][min(self._begun[name])]
        weights = np.array([self.model(asked).weights for asked in self.sets])
        of_functions = (known.sum(axis=0)[:, None] @ weights)[:, 0]
        nodes = np.array(sizes, float)
        tokens = np.clip(of_functions @ functions_of(nodes), 0.0, len(self._texts) * nodes)
        return Expected(dict(zip(self.sets, tokens.tolist(), strict=True)), usual.kept)

    def chosen(self, asked: SpeculatorSet, nodes: int) -> None:
        """What the step does, with so many nodes for each followed request."""
        doublings = np.log2(1 + nodes) * self.share(asked)
        for text in self._texts.values():
            text.planned = float(doublings)

    def observe(
        self,
        batch: int,
        asked: SpeculatorSet,
        nodes: int,
        outcomes: Outcomes,
        merged: bool = True,
        contexts: Mapping[str, int] = NO_CONTEXTS,
    ) -> None:
        """Counts one step; see the measured policy's."""
        super().observe(batch, asked, nodes, outcomes, merged)
        for one, found in self.lessons(asked, nodes, outcomes, contexts).items() if merged else ():
            self.model(one).refine(*found, self._steps - self._refined.get(one, 0))
            self._refined[one] = self._steps

    def lessons(
        self, asked: SpeculatorSet, nodes: int, outcomes: Outcomes, contexts: Mapping[str, int]
    ) -> dict[SpeculatorSet, tuple[Floats, Floats]]:
        """By speculator set: rows, and the tokens that came. A tree tells of every set that was asked in
        it."""
        sizes = np.array(sizes_up_to(nodes))
        found: dict[SpeculatorSet, tuple[list[Floats], list[int]]] = {}
        for tree, accepted, known in self._known(outcomes, contexts):
            for one, own in known.items():
                if one <= asked:
                    rows, came = found.setdefault(one, ([], []))
                    needed = nodes_needed(tree, accepted, one)
                    rows.append(rows_of(own, sizes))
                    came.extend([bisect_right(needed, size) for size in sizes])
        return {one: (np.concatenate(rows), np.array(came, float)) for one, (rows, came) in found.items()}

    def model(self, asked: SpeculatorSet) -> LinearModel:
        """The weights of a set."""
        if asked not in self._models:
            name = set_name(self._names[speculator] for speculator in asked)
            self._models[asked] = deepcopy(self._trained.get(name)) or LinearModel.usual()
        return self._models[asked]

    @property
    def usual_text(self) -> float:
        """Accepted tokens of a usual text for every doubling of its trees."""
        return self.usual(1).expect(_USUAL)[-1].accepted / log2(1 + _USUAL[-1])

    def _features(self) -> Floats:
        """[requests, sets, features]."""
        own = np.array([self.usual_text * self.ratio(name) for name in self._texts])
        usual = np.outer(own, [self.share(asked) for asked in self.sets])
        contexts = {name: text.context for name, text in self._texts.items()}
        return features_of(list(self._texts.values()), self._matches(contexts), usual)

    def _known(
        self, outcomes: Outcomes, contexts: Mapping[str, int]
    ) -> Iterator[tuple[TokenTree, Sequence[int], Mapping[SpeculatorSet, Floats]]]:
        """Tree, accepted nodes and features of the requests that were chosen for, which are forgotten."""
        for name, (tree, accepted) in outcomes.items():
            begun = self._begun.get(name, {})
            known = begun.get(contexts.get(name, -1))
            for old in [context for context in begun if context <= contexts.get(name, -1)]:
                del begun[old]
            if known is not None:
                yield tree, accepted, known
