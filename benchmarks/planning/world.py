"""Simulate a verifier, two speculators and texts of all kinds, for planners.

Costs are those of the default weights on two cores (Zen 5, blocks of Q4_1): passes, drafts by requested nodes, and
overhead of services. The machine's speed drifts by a fifth, the cost of nodes drifts independently, one pass in a
hundred is disturbed, sometimes a hundred successive steps take 1.5 times as long, and the first steps of a process are
cold. A text is described by the probability that a speculator's first guess is correct. Requests have 128 tokens. One
speculator is accurate and slow, the other inaccurate and fast; both overestimate their accuracy. The target has all
prompts cached; the speculators' service must read them, and all tokens that it missed.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import exp, log2
from typing import TypeAlias

from specinfer.planning.calibration import Calibration
from specinfer.planning.choice import Choice
from specinfer.planning.pass_curve import PassCurve, derive_budget
from specinfer.planning.step_report import DraftTime, StepPlanner, StepReport, tokens_read
from specinfer.scheduling.limits import NodeBudget
from specinfer.tree import TokenTree, TreeBuilder, cut_trees, merge_trees

PASSES = ((1, 2.6), (2, 2.6), (4, 2.7), (8, 3.4), (16, 4.9), (32, 10.4), (64, 20.5))
"""(tokens, milliseconds) of passes."""


def draft_s(speculator: int, nodes: int) -> float:
    """Return the seconds of drafting for one request, by nodes."""
    return (0.0006 + 0.0002 * log2(1 + nodes) + 0.00008 * nodes) if speculator == 0 else 0.0002


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of a machine and its models."""

    passes: Sequence[tuple[int, float]] = PASSES
    """(tokens, milliseconds)."""
    drafts: Callable[[int, int], float] = draft_s
    """(speculator, nodes) -> seconds of drafting for one request."""
    plain_s: float = 0.0017
    trees_s: float = 0.0020
    """Seconds of a step in addition to pass and drafts."""
    wire_s: float = 0.0009
    read_s: float = 0.00006
    """Seconds that speculators need to read a token."""
    ngrams: bool = False
    """True if the fast speculator drafts only in self-copying, predictable text."""
    speed_change: float = 0.0
    """Probability per step of a change between usual and half speed."""

    @cached_property
    def curve(self) -> PassCurve:
        """Seconds of passes."""
        return PassCurve([(tokens, ms / 1000) for tokens, ms in self.passes])


USUAL = Costs()
BOTH = frozenset({0, 1})
TOKENS, PROMPT = 128, 170
"""Tokens of an answer, and average tokens of a prompt."""
COLD_S = (0.016, 0.026, 0.002)
"""Extra seconds of the first three steps with trees, in reverse order.

With reading the prompt, these steps take 20, 35, 25 ms at batch 1. Plain steps take a fifth of the extra time.
"""
OFTEN, DISTURBED = 0.01, 4.0
"""Share of disturbed passes, and their relative time."""
GUESSES = (0.25, 0.5, 0.7, 0.9)
COPIES_BEGIN, COPIES_END, COPIED = 0.01, 0.15, 0.98
"""Probabilities that self-copying begins or ends; first-guess accuracy meanwhile."""
ALARMS = 0.1
"""Share of steps with useless drafts of n-grams."""
ROOT = 0


@dataclass
class SimulatedRequest:
    """A simulated request."""

    name: str
    guess: float
    """Probability that the good speculator's first guess is right."""
    left: int = TOKENS
    lacking: int = PROMPT
    """Tokens that the speculators have not read."""
    copying: bool = False
    alarm: bool = False
    """True if n-grams draft although the text copies nothing."""


@dataclass
class Ran:
    """Actual and expected tokens and seconds of steps, at normal speed."""

    tokens: float = 0.0
    seconds: float = 0.0
    expected_s: float = 0.0
    """Expected seconds of steps with an expectation; `counted_s`: actual seconds."""
    counted_s: float = 0.0
    steps: int = 0

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class Machine:
    """Random times of passes and drafts."""

    def __init__(self, seed: int, costs: Costs = USUAL) -> None:
        self._rng, self._drift, self.costs = random.Random(seed), random.Random(-seed), costs
        self.pace = self._slope = 0.0
        self.slowness = 1.0
        """Factor of all times, relative to the measured machine."""
        self._neighbour = 0
        self._cold = {True: list(COLD_S), False: [seconds / 5 for seconds in COLD_S]}

    def turn(self) -> None:
        """Start the next step: update drift and disturbances."""
        self.pace = 0.97 * self.pace + self._drift.gauss(0, 0.03)
        self._slope = 0.97 * self._slope + self._drift.gauss(0, 0.03)
        self._neighbour = self._neighbour - 1 if self._neighbour else 100 * (self._drift.random() < 0.0005)
        if self.costs.speed_change and self._drift.random() < self.costs.speed_change:
            self.slowness = 2.0 if self.slowness == 1.0 else 1.0

    def slowed(self, seconds: float) -> float:
        """Return the current time of work of `seconds`."""
        return self.steadily(seconds) * self._rng.lognormvariate(0, 0.06)

    def steadily(self, seconds: float) -> float:
        """Return the current time of work, without disturbances."""
        return seconds * exp(self.pace) * self.slowness * (1.5 if self._neighbour else 1.0)

    def pass_s(self, batch: int, tokens: int) -> float:
        """Return the seconds of a pass."""
        curve = self.costs.curve
        base = curve.at(batch)
        disturbed = DISTURBED if self._rng.random() < OFTEN else 1.0
        return self.slowed(base + exp(self._slope) * (curve.at(tokens) - base)) * disturbed

    def cold_s(self, trees: bool) -> float:
        """Return the extra seconds of a cold step."""
        return self._cold[trees].pop() if self._cold[trees] else 0.0


@dataclass
class Constant:
    """Planner with a constant number of nodes."""

    nodes: int
    everybody: frozenset[int] = frozenset()

    def enrol(self, services: Sequence[frozenset[int]]) -> None:
        """Draft with all speculators."""
        self.everybody = frozenset().union(*services)

    def choose(self, batch: int, contexts: Mapping[str, int]) -> Choice:
        """Return the choice."""
        return Choice(self.everybody, self.nodes, self.nodes * len(contexts)) if self.nodes else Choice()

    def observe(self, report: StepReport) -> None:
        """Do nothing."""


Choose: TypeAlias = int | Callable[[PassCurve, NodeBudget], StepPlanner]


class World:
    """Simulation of time, texts and machine, from one seed."""

    def __init__(
        self,
        seed: int,
        batch: int,
        choose: Choose,
        costs: Costs = USUAL,
        trace: Sequence[tuple[int, float]] | None = None,
        most: int = 16,
        guesses: Sequence[float] = GUESSES,
    ) -> None:
        """Create a world.

        Args:
            seed: seed of texts and machine.
            batch: number of requests at once.
            choose: nodes of every tree, 0 for plain decoding, or a factory of planners from curve and budget.
            costs: costs of the machine.
            trace: passes as measured by the verifier; None: the true times.
            most: maximum requests at once, over the whole run.
        """
        self._rng, self.machine, self._batch = random.Random(seed), Machine(seed + 1, costs), batch
        self.costs = costs
        self.guesses = guesses
        """First-guess probabilities of new texts."""
        self._shuffled = random.Random(seed + 2)
        self._phases = random.Random(seed + 3)
        self._kinds: list[float] = []
        self._kinds_of: Sequence[float] = ()
        self.services = 1.0
        """Factor of the services' times, for a network between them."""
        curve = costs.curve if trace is None else PassCurve(trace)
        self.planner: StepPlanner = (
            Constant(choose)
            if isinstance(choose, int)
            else choose(curve, derive_budget(curve, most, 127, 2048))
        )
        self.planner.enrol([BOTH])
        self._calibration = Calibration()
        self._begun = 0
        self._texts = [self._begin() for _ in range(batch)]
        self.by_choice: defaultdict[int, Ran] = defaultdict(Ran)
        """Counts of steps by planned nodes per request."""

    @property
    def batch(self) -> int:
        """Number of requests at once; setting it adds or removes requests."""
        return self._batch

    @batch.setter
    def batch(self, batch: int) -> None:
        self._batch, kept = batch, self._texts[:batch]
        self._texts = kept + [self._begin() for _ in range(batch - len(kept))]

    def plain_s(self, tokens: float) -> float:
        """Return the seconds of plain decoding for these tokens now."""
        step_s = (
            self.costs.curve.at(self._batch) * (1 + OFTEN * (DISTURBED - 1))
            + self.services * self.costs.plain_s
        )
        return self.machine.steadily(step_s) * tokens / self._batch

    def run(self, steps: int) -> float:
        """Run `steps` steps; return tokens per second."""
        ran = Ran()
        for _ in range(steps):
            self.step(ran)
        return ran.speed

    def answer(self, prompts: int) -> Ran:
        """Answer `prompts` prompts with a full batch."""
        ran, last = Ran(), self._begun - self._batch + prompts
        while self._begun - self._batch < last:
            self.step(ran)
        return ran

    def _begin(self) -> SimulatedRequest:
        self._begun += 1
        if self._kinds_of != self.guesses or not self._kinds:
            self._kinds_of, self._kinds = self.guesses, self._shuffled.sample(self.guesses, len(self.guesses))
        return SimulatedRequest(f"r{self._begun}", self._kinds.pop())

    def step(self, ran: Ran) -> None:
        """Run one step, and count it."""
        self.machine.turn()
        contexts = {text.name: PROMPT + TOKENS - text.left for text in self._texts}
        choice = self.planner.choose(self._batch, contexts)
        for text in self._texts if self.costs.ngrams else ():
            text.copying = (
                self._phases.random() > COPIES_END if text.copying else self._phases.random() < COPIES_BEGIN
            )
            text.alarm = self._phases.random() < ALARMS
        drafts = [self._drafts(text, choice) for text in self._texts]
        corrected = [
            [(s, self._calibration.correct(s, tree)) for s, tree in of_request] for of_request in drafts
        ]
        merged = [
            merge_trees(of_request) if of_request else TokenTree.root_only(ROOT) for of_request in corrected
        ]
        trees = cut_trees(merged, [choice.nodes + 1] * self._batch, keeps=choice.keeps)
        outcomes = {
            text.name: (tree, self._accepted(text, tree))
            for text, tree in zip(self._texts, trees, strict=True)
        }
        in_pass = sum(len(tree) for tree in trees)
        pass_s, drafted = self.machine.pass_s(self._batch, in_pass), self._draft_times(choice)
        draft_s = max((time.total_s for time in drafted), default=0.0)
        rest_s = self.machine.slowed(self.services * (self.costs.trees_s if drafted else self.costs.plain_s))
        rest_s += self.machine.cold_s(bool(drafted))
        seconds = pass_s + draft_s + rest_s
        report = StepReport(
            *(choice, self._batch, in_pass, pass_s, drafted, rest_s, outcomes),
            contexts=contexts,
            seconds=seconds,
        )
        self.planner.observe(report)
        for of_request, (tree, accepted) in zip(drafts, outcomes.values(), strict=True):
            tokens = [int(tree.token_ids[node]) for node in accepted] + [-1]
            for speculator, draft in of_request:
                self._calibration.observe(speculator, draft, tokens)
        brought = [1 + len(accepted) for _, accepted in outcomes.values()]
        expected = self._batch + sum(
            [
                _expected(text, outcomes[text.name][0])
                for text in self._texts
                if len(outcomes[text.name][0]) > 1
            ]
        )
        for counts in (ran, self.by_choice[choice.nodes]):
            counts.tokens, counts.seconds, counts.steps = (
                counts.tokens + expected,
                counts.seconds + seconds / self.machine.steadily(1.0),
                counts.steps + 1,
            )
            if choice.seconds and not any(time.read for time in drafted):
                counts.expected_s, counts.counted_s = (
                    counts.expected_s + choice.seconds,
                    counts.counted_s + seconds,
                )
        self._go_on(brought)

    def _go_on(self, tokens: list[int]) -> None:
        for i, count in enumerate(tokens):
            self._texts[i].left -= count
            self._texts[i].lacking += count
            if self._texts[i].left <= 0:
                self._texts[i] = self._begin()

    def _draft_times(self, choice: Choice) -> list[DraftTime]:
        if not choice.speculators:
            return []
        scale = self._batch**0.35
        own_s = {
            s: self.machine.slowed(self.costs.drafts(s, choice.nodes) * scale)
            for s in sorted(choice.speculators)
        }
        read = self._read()
        wire_s = self.machine.slowed(self.services * self.costs.wire_s + self.costs.read_s * read)
        return [DraftTime(BOTH, own_s, wire_s, read)]

    def _read(self) -> int:
        """Return the number of tokens that speculators read before drafting."""
        lacking = [text.lacking for text in self._texts]
        for text in self._texts:
            text.lacking = 0
        return tokens_read(lacking)

    def _drafts(self, text: SimulatedRequest, choice: Choice) -> list[tuple[int, TokenTree]]:
        drafts: list[tuple[int, TokenTree]] = []
        for s in sorted(choice.speculators) if choice.nodes else ():
            if s == 0 or not self.costs.ngrams:
                drafts.append((s, _tree(_guess(text, s), choice.nodes, s)))
            elif text.copying or text.alarm:
                drafts.append((s, _chain(0 if text.copying else 1, choice.nodes)))
        return drafts

    def _accepted(self, text: SimulatedRequest, tree: TokenTree) -> list[int]:
        """Return a random accepted path, by the probabilities of depths."""
        kids: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents.tolist()):
            kids.setdefault(parent, []).append(node)
        path, node = list[int](), 0
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


def _expected(text: SimulatedRequest, tree: TokenTree) -> float:
    """Return the expected number of accepted nodes."""
    chances, tokens = [1.0], tree.token_ids.tolist()
    for node, parent in enumerate(tree.parents.tolist()[1:], 1):
        place, speculator = divmod(tokens[node], 2)
        chances.append(chances[parent] * _right(_guess(text, speculator), place, speculator))
    return sum(chances) - 1


def _guess(text: SimulatedRequest, speculator: int) -> float:
    if text.copying:
        return COPIED if speculator == 0 else 0.0
    return text.guess if speculator == 0 else text.guess**2


def _right(guess: float, place: int, speculator: int) -> float:
    """Return a guess's probability; the speculators' sum is below 1."""
    return float((0.85 if speculator == 0 else 0.15) * guess * (1 - guess) ** place)


@lru_cache(maxsize=64)
def _chain(token: int, nodes: int) -> TokenTree:
    """Return a chain of one token."""
    builder, node = TreeBuilder(ROOT), 0
    for _ in range(nodes):
        (node,) = builder.propose_points(node, [token], [0.7], speculator=1)
    return builder.build()


@lru_cache(maxsize=1024)
def _tree(guess: float, nodes: int, speculator: int) -> TokenTree:
    """Return a best-first tree with overestimated scores; tokens 2 * place + speculator."""
    builder = TreeBuilder(ROOT)
    heap = [(-_right(guess, 0, speculator), 0, 0)]  # minus path probability, parent, place
    while heap and len(builder) <= nodes:
        negated, parent, place = heapq.heappop(heap)
        probability = _right(guess, place, speculator)
        (node,) = builder.propose_points(
            parent, [2 * place + speculator], [probability**0.7], speculator=speculator
        )
        heapq.heappush(
            heap, (negated / probability * _right(guess, place + 1, speculator), parent, place + 1)
        )
        heapq.heappush(heap, (negated * _right(guess, 0, speculator), node, 0))
    return builder.build()
