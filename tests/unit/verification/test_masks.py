"""Masks of constraints beside the steps: who waits for them, who does not, and the text, which is the same.

Fakes hold masks back until a test lets them through, so what waits is counted, not timed.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import pytest

from specinfer.constraints.constraint import Constraint, ConstraintKind
from specinfer.constraints.masks import MaskState, MaskThreads
from specinfer.llm import LLM, SamplingParams
from specinfer.sampling import GREEDY, Sampling
from specinfer.statuses import EntryStatus
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob, VerifyOutcome
from tests.support.constraints.gated import GatedCompiler
from tests.support.local import tiny_engine
from tests.support.oracle import always, chain, greedy
from tests.support.system import ScriptedDrafter, ascii_tokenizer
from tests.support.tiny_models import runner_of, tiny_transformers

PROMPT = [5, 17, 3, 88]
SLOW = Constraint(ConstraintKind.REGEX, "[a-f]{12}")
QUICK = Constraint(ConstraintKind.REGEX, "[g-l]{12}")
DRAWN = Sampling(temperature=1.2, seed=7)


class Requests:
    """Requests of an engine, with the text that each has so far."""

    def __init__(self, engine: VerifierEngine, constraints: Mapping[str, Constraint | None]) -> None:
        self.engine, self.constraints = engine, constraints
        self.tokens: dict[str, list[int]] = {name: [] for name in constraints}
        self.held = dict.fromkeys(constraints, 0)
        self.finished: set[str] = set()

    def step(
        self, trees: Mapping[str, Sequence[int]] | None = None, sampling: Sampling = GREEDY
    ) -> dict[str, VerifyOutcome]:
        """Verify a tree of one branch, or only the root, for each; return the outcomes."""
        jobs = []
        for name in [name for name in self.tokens if name not in self.finished]:
            context, cached_len = [*PROMPT, *self.tokens[name]], self.held[name]
            tree = chain(context[-1], (trees or {}).get(name, ()))
            constraint, length = (None, 0) if cached_len else (self.constraints[name], len(PROMPT))
            jobs.append(
                VerifyJob(
                    name,
                    cached_len,
                    context[cached_len:],
                    tree,
                    sampling,
                    prompt_len=length,
                    constraint=constraint,
                )
            )
        outcomes = {outcome.request_id: outcome for outcome in self.engine.verify(jobs)}
        for job in jobs:
            self._take(job, outcomes[job.request_id])
        return outcomes

    def _take(self, job: VerifyJob, outcome: VerifyOutcome) -> None:
        self.held[job.request_id] = outcome.cached_len
        if outcome.verdict is not None:
            assert job.tree is not None
            accepted = job.tree.token_ids[list(outcome.verdict.accepted)].tolist()
            self.tokens[job.request_id] += [*accepted, outcome.verdict.bonus]
        if outcome.finished:
            self.finished.add(job.request_id)


def engine_of(compiler: GatedCompiler | None = None, masks: MaskThreads | None = None) -> VerifierEngine:
    compiler = compiler or GatedCompiler(SLOW)
    return VerifierEngine(runner_of(tiny_transformers("llama")), compiler=compiler, masks=masks)


def plain_text(constraint: Constraint, sampling: Sampling = GREEDY) -> list[int]:
    """The text of a constraint, alone, without drafts and gates."""
    compiler = GatedCompiler(SLOW)
    compiler.gates.open()
    requests = Requests(engine_of(compiler), {"r": constraint})
    while "r" not in requests.finished:
        requests.step(sampling=sampling)
    return requests.tokens["r"]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
@pytest.mark.parametrize("drafts", [False, True])
def test_a_request_whose_masks_take_long_waits_alone(drafts: bool, sampling: Sampling) -> None:
    """The others decode, constrained or not, with the text that they have without it; then it gets its own."""
    compiler = GatedCompiler(SLOW)
    requests = Requests(engine_of(compiler), {"slow": SLOW, "quick": QUICK, "free": None})
    texts = {"slow": plain_text(SLOW, sampling), "quick": plain_text(QUICK, sampling)}

    def trees() -> dict[str, list[int]]:
        next_drafts = {name: text[len(requests.tokens[name]) :][:3] for name, text in texts.items()}
        return next_drafts if drafts else {}

    steps = masked = 0
    while "quick" not in requests.finished:
        outcome = requests.step(trees(), sampling)["slow"]
        assert outcome.status is EntryStatus.EXHAUSTED
        assert outcome.message in (
            "the constraint's next mask is being computed",
            "the constraint is being compiled",
        )
        steps += 1
        masked += outcome.message == "the constraint's next mask is being computed"
        assert steps < 50
    assert requests.tokens["quick"] == texts["quick"]
    assert len(requests.tokens["free"]) == steps
    assert requests.engine.masks.deferred >= masked > 0
    compiler.gates.open()
    while "slow" not in requests.finished:
        requests.step(trees(), sampling)
    assert requests.tokens["slow"] == texts["slow"]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_a_verdict_ends_before_a_node_whose_mask_is_late(sampling: Sampling) -> None:
    """Its token comes as the bonus token, and the text goes on behind it as without a tree."""
    compiler, text = GatedCompiler(SLOW), plain_text(SLOW, sampling)
    requests = Requests(engine_of(compiler), {"slow": SLOW, "free": None})
    while "slow" not in requests.finished:
        known = len(requests.tokens["slow"])
        compiler.gates.open(known + 1)  # of the root and its child
        outcome = requests.step({"slow": text[known:][:3]}, sampling)["slow"]
        assert outcome.status in (EntryStatus.OK, EntryStatus.EXHAUSTED), outcome.message
        if outcome.verdict is not None and known + 2 < len(text):
            assert outcome.verdict.accepted in ((), (1,)), "the child's own mask may be late, too"
            assert outcome.verdict.bonus == text[known + len(outcome.verdict.accepted)]
    assert requests.tokens["slow"] == text
    assert requests.engine.masks.cut >= 5


def test_a_mask_made_ahead_fails_its_node_alone() -> None:
    """A draft that is forbidden costs nothing but itself, though its mask is asked for."""
    text = plain_text(QUICK)
    requests = Requests(engine_of(), {"quick": QUICK})
    forbidden = [text[0], 3, 3]
    outcome = requests.step({"quick": forbidden})["quick"]
    assert outcome.status is EntryStatus.OK
    while "quick" not in requests.finished:
        assert requests.step()["quick"].status is not EntryStatus.INVALID
    assert requests.tokens["quick"] == text


def test_dear_masks_take_turns_beside_the_others() -> None:
    """Without any budget all constrained requests are dear: a step takes one of them, and all end."""
    texts = {name: plain_text(QUICK) for name in ("a", "b", "c")}
    requests = Requests(
        engine_of(masks=MaskThreads(budget_s=0.0)), {**dict.fromkeys(texts, QUICK), "free": None}
    )
    requests.step()
    order = []
    while not requests.finished >= set(texts):
        outcomes = requests.step()
        taken = [name for name in texts if name in outcomes and outcomes[name].status is EntryStatus.OK]
        assert len(taken) <= 1
        order += taken
    assert {name: requests.tokens[name] for name in texts} == texts
    assert max(order[:9].count(name) for name in texts) < 9, "nobody keeps the turn"


class HeldBack(MaskThreads):
    """Threads that make the first masks only; the others wait for a thread without end."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.masks: list[Future[MaskState | None]] = []
        self._most = most

    def submit(self, expensive: bool, work: Callable[[], MaskState | None]) -> "Future[MaskState | None]":
        made = len(self.masks) < self._most
        self.masks.append(super().submit(expensive, work) if made else Future())
        return self.masks[-1]


@pytest.mark.parametrize("made", [0, 1])
def test_masks_of_a_request_that_leaves_are_not_made(made: int) -> None:
    """Neither that of its root, before a step has taken it, nor that behind its first verdict."""
    masks = HeldBack(made)
    requests = Requests(engine_of(masks=masks), {"quick": QUICK})
    while requests.step()["quick"].status is EntryStatus.EXHAUSTED and made:
        pass
    assert len(masks.masks) == made + 1
    requests.engine.release(["quick"])
    assert masks.masks[-1].cancelled()


def test_masks_that_are_over_dear_for_long_end_their_request() -> None:
    """With an error that names the constraint and the budget; the others go on."""
    masks = MaskThreads(budget_s=0.0, max_over_s=0.0)
    requests = Requests(engine_of(masks=masks), {"quick": QUICK, "free": None})
    statuses = []
    for _ in range(50):
        outcomes = requests.step()
        assert outcomes["free"].status is EntryStatus.OK
        statuses.append(outcomes["quick"].status)
        if statuses[-1] is not EntryStatus.EXHAUSTED:
            break
    assert statuses[-1] is EntryStatus.INVALID
    assert outcomes["quick"].message.startswith("constraint.regex: too complex: its masks took 0 s")
    assert "budget of 0 ms in each step" in outcomes["quick"].message


@pytest.mark.parametrize("drafter", [{}, {"always": ScriptedDrafter(always)}])
def test_in_one_process_others_do_not_wait_either(drafter: Mapping[str, ScriptedDrafter]) -> None:
    """`LLM` steps the same engine: a free request ends while a constrained one waits for its masks."""
    engine, compiler = tiny_engine(drafter), GatedCompiler(SLOW)
    engine.host.verifier = VerifierEngine(
        engine.verifier.runner, limits=engine.verifier.limits, compiler=compiler
    )
    with LLM.of(engine, ascii_tokenizer()) as llm:
        driver = llm._driver
        slow = driver.submit(PROMPT, SamplingParams(temperature=0, max_tokens=16, constraint=SLOW))
        free = driver.submit(PROMPT, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
        while not free.finished:
            driver.step()
        assert not slow.answers[0].output.token_ids
        compiler.gates.open()
        while not slow.finished:
            driver.step()
    assert list(free.answers[0].output.token_ids) == greedy(PROMPT, 16)
    assert list(slow.answers[0].output.token_ids) == plain_text(SLOW)
