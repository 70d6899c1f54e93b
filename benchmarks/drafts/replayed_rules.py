"""Several acceptance rules on the same trees: what each accepts, over many repetitions of its own randomness."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specinfer.sampling import split_mix
from specinfer.tree import TokenTree
from specinfer.verification.acceptance import RULES, Randomness, RequestRandomness, Target, Verdict, find_rule

REPLAYED = "replayed"
COMPARED = ("naive", "multi_step", "traversal")
REPETITIONS = 4


@dataclass
class ReplayedRules:
    """Verifies as `COMPARED[-1]`, and counts the tokens that every rule would have brought."""

    tokens: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    """Mean tokens of every step, by rule and by the seed of the request."""

    def __call__(self, tree: TokenTree, target: Target, randomness: Randomness) -> Verdict:
        """Return the verdict of the last rule with the request's own randomness."""
        assert isinstance(randomness, RequestRandomness)
        own = randomness.sampling.seed
        again = [
            replace(randomness, sampling=replace(randomness.sampling, seed=split_mix(own, 2**40 + number)))
            for number in range(REPETITIONS)
        ]
        for name in COMPARED:
            rule = find_rule(name)
            found = [1 + len(rule(tree, target, other).accepted) for other in again]
            steps = self.tokens.setdefault(name, defaultdict(list))
            steps[own].append(float(np.mean(found)))
        return find_rule(COMPARED[-1])(tree, target, randomness)

    def tokens_per_step(self, name: str, requests: Sequence[int] | None = None) -> tuple[float, float]:
        """Return mean and jackknife error over requests (all, or those of some seeds) of a rule's tokens per step."""
        steps = self._steps(name, requests)
        return _jackknife(
            [sum(of_request) for of_request in steps], [len(of_request) for of_request in steps]
        )

    def over(self, name: str, other: str, requests: Sequence[int] | None = None) -> tuple[float, float]:
        """Return how many times the tokens of another rule one brings, with the jackknife error."""
        above, below = self._steps(name, requests), self._steps(other, requests)
        return _jackknife([sum(steps) for steps in above], [sum(steps) for steps in below])

    def _steps(self, name: str, requests: Sequence[int] | None) -> list[list[float]]:
        found = self.tokens[name]
        return [found[seed] for seed in (found if requests is None else requests)]


def _jackknife(of_requests: Sequence[float], over: Sequence[float]) -> tuple[float, float]:
    """Return the ratio of two sums and its error, each request left out once."""
    above, below = np.array(of_requests), np.array(over, float)
    without = (above.sum() - above) / (below.sum() - below)
    return float(above.sum() / below.sum()), float(np.sqrt((len(above) - 1) * without.var()))


replayed = ReplayedRules()


def replay() -> ReplayedRules:
    """Make `REPLAYED` a rule of this process, with nothing counted yet."""
    RULES[REPLAYED] = f"{__name__}:replayed"
    replayed.tokens.clear()
    return replayed
