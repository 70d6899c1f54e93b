"""Masks of constraints are computed in threads: only requests without a mask wait, and texts do not change.

Fake compilers block masks until a test opens a gate, so that waiting is counted, not timed.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import pytest

from specinfer.llm import LLM, SamplingParams
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.request.statuses import EntryStatus
from specinfer.request.verdict import Verdict
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.text.constraints.masks import MaskState, MaskThreads
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob
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
    """Requests of an engine, with the text of each so far."""

    def __init__(self, engine: VerifierEngine, constraints: Mapping[str, Constraint | None]) -> None:
        self.engine, self.constraints = engine, constraints
        self.tokens: dict[str, list[int]] = {name: [] for name in constraints}
        self.cached_lens = dict.fromkeys(constraints, 0)
        self.finished: set[str] = set()

    def step(
        self, trees: Mapping[str, Sequence[int]] | None = None, sampling: Sampling = GREEDY
    ) -> dict[str, Verdict]:
        """Verify a chain, or only the root, for each request; return the outcomes."""
        jobs = []
        for name in [name for name in self.tokens if name not in self.finished]:
            context, cached_len = [*PROMPT, *self.tokens[name]], self.cached_lens[name]
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
        outcomes = dict(zip([job.request_id for job in jobs], self.engine.verify(jobs), strict=True))
        for job in jobs:
            self._take(job, outcomes[job.request_id])
        return outcomes

    def _take(self, job: VerifyJob, outcome: Verdict) -> None:
        self.cached_lens[job.request_id] = outcome.cached_len
        if outcome.status is EntryStatus.OK:
            assert job.tree is not None
            accepted = job.tree.token_ids[list(outcome.accepted)].tolist()
            self.tokens[job.request_id] += [*accepted, outcome.bonus]
        if outcome.finished:
            self.finished.add(job.request_id)


def engine_of(compiler: GatedCompiler | None = None, masks: MaskThreads | None = None) -> VerifierEngine:
    compiler = compiler or GatedCompiler(SLOW)
    return VerifierEngine(runner_of(tiny_transformers("llama")), compiler=compiler, masks=masks)


def plain_text(constraint: Constraint, sampling: Sampling = GREEDY) -> list[int]:
    """Return the text of a constraint decoded alone, without drafts and gates."""
    compiler = GatedCompiler(SLOW)
    compiler.gates.open()
    requests = Requests(engine_of(compiler), {"r": constraint})
    while "r" not in requests.finished:
        requests.step(sampling=sampling)
    return requests.tokens["r"]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
@pytest.mark.parametrize("drafts", [False, True])
def test_a_request_whose_masks_take_long_waits_alone(drafts: bool, sampling: Sampling) -> None:
    """Other requests decode the same text as without it; the slow one gets its own text later."""
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
    """Its token becomes the bonus token, and the text continues as without a tree."""
    compiler, text = GatedCompiler(SLOW), plain_text(SLOW, sampling)
    requests = Requests(engine_of(compiler), {"slow": SLOW, "free": None})
    while "slow" not in requests.finished:
        known = len(requests.tokens["slow"])
        compiler.gates.open(known + 1)  # masks of the root and its child
        outcome = requests.step({"slow": text[known:][:3]}, sampling)["slow"]
        assert outcome.status in (EntryStatus.OK, EntryStatus.EXHAUSTED), outcome.message
        if outcome.status is EntryStatus.OK and known + 2 < len(text):
            assert outcome.accepted in ((), (1,)), "the child's own mask may be late, too"
            assert outcome.bonus == text[known + len(outcome.accepted)]
    assert requests.tokens["slow"] == text
    assert requests.engine.shortened >= 5


def test_a_mask_computed_ahead_fails_only_its_node() -> None:
    """A forbidden draft has no effect on other nodes, although its mask is requested."""
    text = plain_text(QUICK)
    requests = Requests(engine_of(), {"quick": QUICK})
    forbidden = [text[0], 3, 3]
    outcome = requests.step({"quick": forbidden})["quick"]
    assert outcome.status is EntryStatus.OK
    while "quick" not in requests.finished:
        assert requests.step()["quick"].status is not EntryStatus.INVALID
    assert requests.tokens["quick"] == text


def test_requests_with_expensive_masks_take_turns() -> None:
    """Without a budget all masks are expensive: a step serves one constrained request, and all finish."""
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
    assert max(order[:9].count(name) for name in texts) < 9, "no request has all turns"


class LimitedMaskThreads(MaskThreads):
    """Threads that compute only the first `made` masks; others wait forever."""

    def __init__(self, made: int) -> None:
        super().__init__()
        self.masks: list[Future[MaskState | None]] = []
        self._made = made

    def submit(self, expensive: bool, work: Callable[[], MaskState | None]) -> "Future[MaskState | None]":
        works = len(self.masks) < self._made
        self.masks.append(super().submit(expensive, work) if works else Future())
        return self.masks[-1]


@pytest.mark.parametrize("made", [0, 1])
def test_masks_of_a_released_request_are_cancelled(made: int) -> None:
    """Neither the mask of its root before a step has used it, nor the one after its first verdict."""
    masks = LimitedMaskThreads(made)
    requests = Requests(engine_of(masks=masks), {"quick": QUICK})
    while requests.step()["quick"].status is EntryStatus.EXHAUSTED and made:
        pass
    assert len(masks.masks) == made + 1
    requests.engine.release(["quick"])
    assert masks.masks[-1].cancelled()


def test_masks_that_exceed_the_budget_for_long_end_their_request() -> None:
    """The error names the constraint and the budget; the other request continues."""
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
def test_in_one_process_other_requests_do_not_wait_either(drafter: Mapping[str, ScriptedDrafter]) -> None:
    """`LLM` uses the same engine: an unconstrained request finishes while a constrained one waits for masks."""
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
