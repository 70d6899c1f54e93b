"""Plan steps by a linear model of accepted tokens: the learned policy.

    accepted(S, n) = log2(1 + n) * sum over requests r of  x(r, S) . w(S)

x are the features (`NAMES`), w(S) the weights of a speculator set: fitted to recorded steps
(`specinfer train scheduler`) and refined with every verified tree. A set without fitted weights starts with
weights that reproduce the table. A Kalman filter follows the weights as a random walk. Each row of R is a
request's features times log2(1 + n), y are the accepted tokens, V is a constant matrix and P is the
covariance of w divided by the variance of y:

    P += (V - P) / 2000                            for every step, with rows or without
    w += G clip(y - R w),  P -= G R P              G = P R' (R P R' + 1)^-1

So weights without recent observations are the least certain, and P and V limit each change of w.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from specinfer.errors import SettingError
from specinfer.planning.choice import SpeculatorSet, batch_size_class
from specinfer.planning.costs import SIZES, Floats
from specinfer.planning.gains import TreeGains, nodes_needed, ranked_nodes
from specinfer.planning.step_report import StepReport

Rows = tuple[Floats, Floats]
"""[N, features] rows, and [N] accepted tokens."""
Matches = Callable[[Mapping[str, int]], Sequence[int]]
"""Function from context lengths by request id to `Repeats.match` of each."""

MAX_REPEAT = 8
"""Maximum length of a match, in tokens."""
_LENGTHS = (2, 4, MAX_REPEAT)
NAMES = ("one", "usual", *(f"match {length}" for length in _LENGTHS))
"""Features of a request and a speculator set.

In this order: 1; the table's expected accepted tokens per log2(1 + n); and, for each k in `_LENGTHS`, 1 if
the last k tokens occur earlier in the text, else 0.
"""
_FORMAT = 2
_USUAL_NODES = 8
"""Tree nodes at which the table's accepted tokens become the feature `usual`."""
_MAX_WAITING = 64
"""Maximum steps of a request that wait for their outcome."""
_INITIAL_VARIANCE = 0.1
"""Diagonal of V, and of the initial P without trained weights."""
_TRAINED_VARIANCE = 0.25
"""Diagonal of the initial P of weights trained on other texts."""
_RELAXATION = 2000.0
"""Steps after which P's distance from V has fallen to 1/e."""
_MAX_ERROR = 4.0
"""Maximum absolute error of a row, in tokens; larger errors are clipped."""
_TOKENS = 2.0
"""Variance of the accepted tokens of a tree."""


class Repeats:
    """Finds earlier occurrences of a context's last tokens, as n-gram drafters do."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], int] = {}
        """Two consecutive tokens -> latest position of the second, except the last."""
        self._read = 1

    def match(self, tokens: Sequence[int], length: int) -> int:
        """Return how many last tokens occurred before, at most `MAX_REPEAT`.

        The context is tokens[:length]. It is compared with the latest earlier occurrence of its last two
        tokens; the result is 0 if there is none. `length` must not fall between calls.
        """
        for position in range(self._read, length - 1):
            self._latest[tokens[position - 1], tokens[position]] = position
        self._read = max(self._read, length - 1)
        earlier = self._latest.get((tokens[length - 2], tokens[length - 1])) if length > 1 else None
        if earlier is None:
            return 0
        max_length = min(MAX_REPEAT, earlier + 1)
        return next(
            (k for k in range(max_length) if tokens[earlier - k] != tokens[length - 1 - k]), max_length
        )


class TextMatches:
    """Matches each request's last tokens; forgets requests absent from a call."""

    def __init__(self, tokens_of: Callable[[str], Sequence[int]]) -> None:
        self._tokens_of = tokens_of
        self._repeats: dict[str, Repeats] = {}

    def __call__(self, contexts: Mapping[str, int]) -> list[int]:
        """Return `Repeats.match` of each request, given its context length."""
        self._repeats = {request_id: self._repeats.get(request_id) or Repeats() for request_id in contexts}
        return [
            self._repeats[request_id].match(self._tokens_of(request_id), length)
            for request_id, length in contexts.items()
        ]


class LinearModel:
    """Weights of one speculator set and their covariance."""

    def __init__(self, weights: Floats, variance: float = _TRAINED_VARIANCE) -> None:
        self.weights = weights
        self._variance = variance * np.eye(len(weights))
        """The matrix P, [features, features]."""
        self._refined = 0
        """Number of the latest step that refined the weights."""

    @classmethod
    def usual(cls) -> "LinearModel":
        return cls(np.array([float(name == "usual") for name in NAMES]), _INITIAL_VARIANCE)

    def refine(self, rows: Floats, accepted: Floats, step: int) -> None:
        """Update the weights with [N, features] rows and [N] accepted tokens."""
        spread, self._refined = self._spread(step), step
        errors = np.clip(accepted - rows @ self.weights, -_MAX_ERROR, _MAX_ERROR)
        across = rows @ spread
        gain = np.linalg.solve(across @ rows.T + np.eye(len(rows)), across).T
        self.weights = self.weights + gain @ errors
        spread = spread - gain @ across
        self._variance = (spread + spread.T) / 2

    def variance(self, features: Floats, step: int) -> float:
        return _TOKENS * float(features @ self._spread(step) @ features)

    def _spread(self, step: int) -> Floats:
        """Return the matrix P at a step."""
        kept = (1 - 1 / _RELAXATION) ** (step - self._refined)
        return kept * self._variance + (1 - kept) * _INITIAL_VARIANCE * np.eye(len(NAMES))


def set_name(names: Iterable[str]) -> str:
    """Return the name of a speculator set in the weights file."""
    return "+".join(sorted(names))


def save_weights(path: Path, models: Mapping[str, LinearModel], trained: Mapping[str, Any]) -> None:
    """Write models by set names, with a description of their training."""
    sets = {name: model.weights.tolist() for name, model in models.items()}
    content = {"format": _FORMAT, "features": list(NAMES), "trained": trained, "sets": sets}
    try:
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingError("out", str(path), f"cannot be written: {error.strerror or error}") from error


def load_weights(setting: str, path: Path) -> dict[str, LinearModel]:
    """Return the models of a file."""
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != _FORMAT or tuple(content["features"]) != NAMES:
            raise ValueError(f"its format is {content['format']} of features {content['features']}")
        return {str(name): _model_of(weights) for name, weights in content["sets"].items()}
    except OSError as error:
        raise SettingError(setting, str(path), f"cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        reason = f"must be a file of `specinfer train scheduler`: {what}"
        raise SettingError(setting, str(path), reason) from error


def _model_of(content: Sequence[float]) -> LinearModel:
    weights = np.array(content, float)
    if weights.shape != (len(NAMES),) or not np.isfinite(weights).all():
        raise ValueError(f"each set must be {len(NAMES)} finite weights, one has the shape {weights.shape}")
    return LinearModel(weights)


class LearnedGains(TreeGains):
    """Predicts accepted tokens from features of texts; refines the weights with every tree."""

    steady = False

    def __init__(self, trained: Mapping[str, LinearModel], names: Sequence[str], matches: Matches) -> None:
        """Start with trained weights.

        Args:
            trained: weights by set name.
            names: names of the speculators by number; the pool extends this list.
            matches: returns, by request, how many of its last tokens also occur earlier in its text.
        """
        super().__init__()
        self._trained, self._names, self._matches = trained, names, matches
        self._models: dict[SpeculatorSet, LinearModel] = {}
        self._planned = 0
        """Number of the current step."""
        self._matched: Mapping[str, Floats] = {}
        """Features of the matches, by request id."""
        self._waiting: dict[tuple[str, int], Floats] = {}
        """The same without an outcome yet, by request id and context tokens; oldest first."""

    def follow(self, contexts: Mapping[str, int]) -> None:
        """Set the requests that want drafts, and compute their features."""
        super().follow(contexts)
        self._planned += 1
        matched = np.array(self._matches(contexts))[:, None] >= _LENGTHS
        self._matched = dict(zip(contexts, matched.astype(float), strict=True))
        for at, row in zip(contexts.items(), self._matched.values(), strict=True):
            self._waiting[at] = row
        for at in list(self._waiting)[: max(len(self._waiting) - _MAX_WAITING * len(contexts), 0)]:
            del self._waiting[at]

    def expected(
        self, speculators: SpeculatorSet, batch_class: int, sizes: int
    ) -> tuple[Floats, Floats, Floats]:
        """Return predicted tokens and their variance, and the counted nodes."""
        _, _, nodes = super().expected(speculators, batch_class, sizes)
        model, doublings = self.model(speculators), np.log2(1.0 + np.array(SIZES[:sizes]))
        features = np.zeros(len(NAMES))
        for name, matched in self._matched.items():
            features += self._features(name, matched, speculators, batch_class)
        tokens = float(features @ model.weights) * doublings
        variance = model.variance(features, self._planned) * doublings**2
        return np.clip(tokens, 0.0, len(self._matched) * np.array(SIZES[:sizes])), variance, nodes

    def observe(self, reports: Sequence[StepReport]) -> None:
        """Count the trees of some steps, and refine the weights of every set that drafted."""
        for report in reports:
            for speculators, lesson in self.lessons(report).items():
                self.model(speculators).refine(*lesson, self._planned)
        super().observe(reports)

    def lessons(self, report: StepReport) -> dict[SpeculatorSet, Rows]:
        """Return training rows and accepted tokens by speculator set.

        A verified tree yields a row for every subset of its speculators and every size.
        """
        drafted, sizes = report.choice.speculators, SIZES[: bisect_right(SIZES, report.choice.nodes)]
        lessons: dict[SpeculatorSet, tuple[list[Floats], list[int]]] = {}
        for name, (tree, accepted) in report.outcomes.items() if drafted and sizes else ():
            matched = self._waiting.pop((name, report.contexts.get(name, -1)), None)
            if matched is None:
                continue
            for one in self.sets:
                if one <= drafted:
                    features = self._features(name, matched, one, batch_size_class(report.batch))
                    rows, came = lessons.setdefault(one, ([], []))
                    rows += [log2(1 + size) * features for size in sizes]
                    needed = nodes_needed(accepted, ranked_nodes(tree, None if one == drafted else one))
                    came += [bisect_left(needed, size) for size in sizes]
        return {one: (np.array(rows), np.array(came, float)) for one, (rows, came) in lessons.items()}

    def model(self, speculators: SpeculatorSet) -> LinearModel:
        """Return the weights of a set."""
        if speculators not in self._models:
            name = set_name(self._names[speculator] for speculator in speculators)
            self._models[speculators] = deepcopy(self._trained.get(name)) or LinearModel.usual()
        return self._models[speculators]

    def _features(self, name: str, matched: Floats, speculators: SpeculatorSet, batch_class: int) -> Floats:
        """Return a request's features, as in `NAMES`."""
        usual = self.average(speculators, batch_class, bisect_right(SIZES, _USUAL_NODES))
        return np.array([1.0, self.ratio(name, speculators) * usual / log2(1 + _USUAL_NODES), *matched])
