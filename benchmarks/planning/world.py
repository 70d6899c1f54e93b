"""Simulate a verifier, two speculators and texts of all kinds, for planners.

Answers have 128 tokens. One speculator is accurate and slow, the other inaccurate and fast; both overestimate their
accuracy. The target has all prompts cached; the speculators' service must read them, and all tokens that it missed.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.planning.machine import DISTURBED, OFTEN, USUAL, Costs, Machine
from benchmarks.planning.texts import (
    PROMPT,
    ROOT,
    TOKENS,
    SimulatedRequest,
    accepted_path,
    copied_chain,
    drafted_tree,
    expected_accepted,
    first_guess,
)
from specinfer.planning.calibration import Calibration
from specinfer.planning.choice import Choice, SpeculatorSet
from specinfer.planning.pass_curve import PassCurve, derive_budget
from specinfer.planning.step_report import DraftTime, StepPlanner, StepReport, tokens_read
from specinfer.scheduling.limits import NodeBudget
from specinfer.tree import TokenTree, cut_trees, merge_trees

BOTH = frozenset({0, 1})
GUESSES = (0.25, 0.5, 0.7, 0.9)
"""Probabilities of a correct first guess, by kind of text."""
COPIES_BEGIN, COPIES_END = 0.01, 0.15
"""Probabilities per step of the start and of the end of copying."""
ALARMS = 0.1
"""Share of steps with useless drafts of n-grams."""


@dataclass
class Ran:
    """Tokens and seconds of steps, at the normal speed of the machine."""

    tokens: float = 0.0
    seconds: float = 0.0
    expected_s: float = 0.0
    """Seconds that the planner expected, summed over the steps with an expectation."""
    counted_s: float = 0.0
    """Actual seconds of the same steps."""
    steps: int = 0

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


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

    def close(self) -> None:
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
        max_batch: int = 16,
        guesses: Sequence[float] = GUESSES,
    ) -> None:
        """Create a world.

        Args:
            seed: seed of texts and machine.
            batch: number of requests at once.
            choose: nodes of every tree, 0 for plain decoding, or a factory of planners from curve and budget.
            costs: costs of the machine.
            trace: passes as measured by the verifier; None: the true times.
            max_batch: maximum requests at once, over the whole run.
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
            else choose(curve, derive_budget(curve, max_batch, 127, 2048))
        )
        self.planner.enrol([BOTH])
        self._calibration = Calibration()
        self._begun = 0
        self._texts = [self._begin() for _ in range(batch)]
        self.by_nodes: defaultdict[int, Ran] = defaultdict(Ran)
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
            text.name: (tree, accepted_path(text, tree, self._rng))
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
        new_tokens = [1 + len(accepted) for _, accepted in outcomes.values()]
        expected = self._batch + sum(
            [
                expected_accepted(text, outcomes[text.name][0])
                for text in self._texts
                if len(outcomes[text.name][0]) > 1
            ]
        )
        for counts in (ran, self.by_nodes[choice.nodes]):
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
        self._advance(new_tokens)

    def _advance(self, tokens: list[int]) -> None:
        for i, count in enumerate(tokens):
            self._texts[i].left -= count
            self._texts[i].context += count
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
        read = self._read(choice.speculators)
        for s in own_s:
            own_s[s] += self.machine.slowed(self.costs.read_s * self._share(s) * read[s])
        wire_s = self.machine.slowed(self.services * self.costs.wire_s)
        return [DraftTime(BOTH, own_s, wire_s, max(read.values()))]

    def _share(self, speculator: int) -> float:
        """Return the part of the cost of reading: copies read at no cost."""
        return 0.5 if not self.costs.ngrams else float(speculator == 0)

    def _read(self, speculators: SpeculatorSet) -> dict[int, int]:
        """Return the tokens that each speculator reads before drafting."""
        read = {}
        for one in speculators:
            read[one] = tokens_read([text.context - text.read.get(one, 0) for text in self._texts])
            for text in self._texts:
                text.read[one] = text.context
        return read

    def _drafts(self, text: SimulatedRequest, choice: Choice) -> list[tuple[int, TokenTree]]:
        drafts: list[tuple[int, TokenTree]] = []
        for s in sorted(choice.speculators) if choice.nodes else ():
            if s == 0 or not self.costs.ngrams:
                drafts.append((s, drafted_tree(first_guess(text, s), choice.nodes, s)))
            elif text.copying or text.alarm:
                drafts.append((s, copied_chain(0 if text.copying else 1, choice.nodes)))
        return drafts
