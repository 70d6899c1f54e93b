"""A simulated verifier, two speculators and texts of every kind, for the planner.

Passes take what a CPU's take (stairs of six tokens), at a pace that wanders by a fifth and a price of nodes
that wanders by itself; one pass in a hundred is disturbed. A text is known by the probability that the first
guess of a speculator is right; requests of 64 tokens begin and end. One speculator is good and slow, one
poor and quick; both believe more of themselves than is true. The target finds prompts in its cache, the
speculators' service reads them, and whatever came while nobody asked it.
"""

import heapq
import random
from dataclasses import dataclass
from math import exp

from gateway.clients.draft_round import tokens_read
from gateway.planning.acceptance import AcceptanceModel
from gateway.planning.budget import derive_budget
from gateway.planning.latency import DraftTime
from gateway.planning.pass_times import PassCurve
from gateway.planning.planner import Choice, Planner, StepReport
from specinfer.speculators.calibration import Calibration
from specinfer.tree import TokenTree, TreeBuilder, cut_trees, merge_trees

CURVE = PassCurve(
    [
        (1, 0.0095),
        (6, 0.0102),
        (7, 0.0112),
        (12, 0.0128),
        (13, 0.0145),
        (18, 0.0165),
        (32, 0.026),
        (64, 0.052),
    ]
)
"""Measured with AVX-512 in halves."""
BOTH = frozenset({0, 1})
OWN_S = {0: 0.0018, 1: 0.0002}
"""What drafting takes for one request."""
OVERHEAD_S, WIRE_S, TOKENS = 0.0015, 0.0004, 64
PROMPT, READ_S = 170, 0.00006
"""Tokens of a prompt, as the evaluation prompts have on average; what reading one takes the shipped SSM."""
ROOT = 0


@dataclass
class Text:
    """One request."""

    name: str
    guess: float
    """Probability that the good speculator's first guess is right."""
    left: int = TOKENS
    lacking: int = PROMPT
    """Tokens that the speculators have not read."""


class World:
    """Time, texts and machine, all of one seed."""

    def __init__(
        self, seed: int, batch: int, speculates: bool = True, acceptance: AcceptanceModel | None = None
    ) -> None:
        """`acceptance`: the planner's policy; None: the measured one."""
        self._rng, self._machine, self._batch = random.Random(seed), random.Random(seed + 1), batch
        self._planner = Planner(CURVE, derive_budget(CURVE, 16, 127, 2048), True, acceptance)
        self._planner.enrol([BOTH] if speculates else [])
        self._calibration = Calibration()
        self._texts = [self._begin(i) for i in range(batch)]
        self._begun = batch
        self._pace = self._slope = 0.0

    def run(self, steps: int) -> float:
        """Tokens per second over so many steps."""
        tokens, seconds = 0, 0.0
        for _ in range(steps):
            brought, took = self._step()
            tokens, seconds = tokens + brought, seconds + took
        return tokens / seconds

    def _begin(self, number: int) -> Text:
        return Text(f"r{number}", self._rng.choice((0.25, 0.5, 0.7, 0.9)))

    def _step(self) -> tuple[int, float]:
        contexts = {text.name: PROMPT + TOKENS - text.left for text in self._texts}
        choice = self._planner.choose(self._batch, contexts)
        drafts = [self._drafts(text, choice) for text in self._texts]
        corrected = [[(s, self._calibration.correct(s, tree)) for s, tree in found] for found in drafts]
        merged = [merge_trees(found) if found else TokenTree.root_only(ROOT) for found in corrected]
        trees = cut_trees(merged, [choice.nodes + 1] * self._batch, keeps=choice.keeps)
        outcomes = {
            text.name: (tree, self._accepted(text, tree))
            for text, tree in zip(self._texts, trees, strict=True)
        }
        in_pass = sum(len(tree) for tree in trees)
        pass_s, drafted = self._pass_s(in_pass), self._draft_times(choice)
        draft_s = max((time.total_s for time in drafted), default=0.0)
        seconds = pass_s + draft_s + OVERHEAD_S
        self._planner.observe(
            StepReport(
                *(choice, self._batch, in_pass, pass_s, drafted, OVERHEAD_S, outcomes), contexts=contexts
            )
        )
        for found, (tree, accepted) in zip(drafts, outcomes.values(), strict=True):
            told = [int(tree.token_ids[node]) for node in accepted] + [-1]
            for speculator, draft in found:
                self._calibration.observe(speculator, draft, told)
        brought = sum(1 + len(accepted) for _, accepted in outcomes.values())
        self._go_on([1 + len(accepted) for _, accepted in outcomes.values()])
        return brought, seconds

    def _go_on(self, tokens: list[int]) -> None:
        for i, count in enumerate(tokens):
            self._texts[i].left -= count
            self._texts[i].lacking += count
            if self._texts[i].left <= 0:
                self._texts[i] = self._begin(self._begun)
                self._begun += 1

    def _pass_s(self, tokens: int) -> float:
        self._pace = 0.97 * self._pace + self._machine.gauss(0, 0.05)
        self._slope = 0.97 * self._slope + self._machine.gauss(0, 0.05)
        base = CURVE.at(self._batch)
        added = exp(self._slope) * (CURVE.at(tokens) - base)
        disturbed = 4.0 if self._machine.random() < 0.01 else 1.0
        return exp(self._pace) * (base + added) * self._machine.lognormvariate(0, 0.06) * disturbed

    def _draft_times(self, choice: Choice) -> list[DraftTime]:
        if not choice.speculators:
            return []
        scale = exp(self._pace) * self._batch**0.35
        own_s = {s: OWN_S[s] * scale for s in sorted(choice.speculators)}
        read = self._read()
        return [DraftTime(BOTH, own_s, WIRE_S * scale + exp(self._pace) * READ_S * read, read)]

    def _read(self) -> int:
        """How many tokens the speculators have to read before they draft, if more than in every step."""
        lacking = [text.lacking for text in self._texts]
        for text in self._texts:
            text.lacking = 0
        return tokens_read(lacking)

    def _drafts(self, text: Text, choice: Choice) -> list[tuple[int, TokenTree]]:
        return [
            (s, _tree(_guess(text, s), choice.nodes, s)) for s in sorted(choice.speculators) if choice.nodes
        ]

    def _accepted(self, text: Text, tree: TokenTree) -> list[int]:
        """A walk: the children of a node are right with the probabilities of their places."""
        kids: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents.tolist()):
            kids.setdefault(parent, []).append(node)
        path, node = [], 0
        while node in kids:
            at, chosen = self._rng.random(), None
            for child in kids[node]:
                token = int(tree.token_ids[child])
                at -= _right(_guess(text, token % 2), token // 2, token % 2)
                if at < 0:
                    chosen = child
                    break
            if chosen is None:
                return path
            path.append(chosen)
            node = chosen
        return path


def _guess(text: Text, speculator: int) -> float:
    return text.guess if speculator == 0 else text.guess**2


def _right(guess: float, place: int, speculator: int) -> float:
    """Probability that the guess at this place is right; those of both speculators sum up to less than 1."""
    return float((0.85 if speculator == 0 else 0.15) * guess * (1 - guess) ** place)


def _tree(guess: float, nodes: int, speculator: int) -> TokenTree:
    """Best-first; token 2 * place + speculator. Scores are too high."""
    builder = TreeBuilder(ROOT)
    heap = [(-_right(guess, 0, speculator), 0, 0)]  # minus path probability, parent, place
    while heap and len(builder) <= nodes:
        negated, parent, place = heapq.heappop(heap)
        own = _right(guess, place, speculator)
        (node,) = builder.propose_points(parent, [2 * place + speculator], [own**0.7], speculator=speculator)
        heapq.heappush(heap, (negated / own * _right(guess, place + 1, speculator), parent, place + 1))
        heapq.heappush(heap, (negated * _right(guess, 0, speculator), node, 0))
    return builder.build()
