"""Typical acceptance (Medusa, arXiv 2401.10774, section 3.3.1). Lossy.

    a child v of u is accepted if  P(t_v|u) > min(epsilon, delta * exp(-H(P(.|u))))

epsilon limits the threshold; the entropy H, in nats, lowers it where the target is uncertain. The longest path of
accepted nodes wins; of several longest paths, the most probable. The bonus is the target's most probable token, so
a step without accepted nodes decodes greedily.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from specinfer.tree import TokenTree
from specinfer.verification.acceptance import Acceptance, Float64, Randomness, Target


@dataclass(frozen=True, slots=True)
class TypicalAcceptance:
    """Typical acceptance with one request's epsilon and delta."""

    epsilon: float
    delta: float

    def __call__(self, tree: TokenTree, target: Target, randomness: Randomness) -> Acceptance:
        """Return the verdict; `randomness` is not used."""
        children: dict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(tree.parents.tolist()):
            if node:
                children[parent].append(node)
        paths: dict[int, tuple[int, ...]] = {0: ()}
        best = (0, 0.0, 0)  # length, log-probability, node
        reached = [(0, 0.0)]
        for node, logp in reached:  # the loop appends accepted children
            if node not in children:
                continue
            p = np.asarray(target.probabilities(node))
            least = self.threshold(p)
            for child in children[node]:
                probability = float(p[int(tree.token_ids[child])])
                if probability > least:
                    paths[child] = (*paths[node], child)
                    reached.append((child, logp + math.log(probability)))
                    best = max(best, (len(paths[child]), reached[-1][1], child))
        last = best[2]
        return Acceptance(paths[last], target.best(last))

    def threshold(self, p: Float64) -> float:
        """Return the threshold for tokens' probabilities, given p [V]."""
        some = p[p > 0]
        entropy = float(-(some * np.log(some)).sum())
        return min(self.epsilon, self.delta * math.exp(-entropy))
