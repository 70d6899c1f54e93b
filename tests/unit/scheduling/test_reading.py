"""Prompt tokens per step while other requests decode: bounded, depending on the context of the prompt."""

from hypothesis import given
from hypothesis import strategies as st

from specinfer.planning.pass_curve import PassCurve, derive_budget
from specinfer.request.sampling import GREEDY
from specinfer.request.statuses import EntryStatus, FinishReason
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.limits import NodeBudget, SchedulerLimits
from specinfer.scheduling.reading import ReadingPace
from specinfer.scheduling.request import GenerationRequest
from specinfer.scheduling.scheduler import Scheduler
from specinfer.tree import TokenTree

LINEAR = tuple(0.01 + 0.001 * tokens for tokens in range(2048))
"""Seconds of a pass, by its number of tokens minus one."""


def request(name: str, prompt: int = 1, new: int = 1000, priority: int = 0) -> GenerationRequest:
    return GenerationRequest(name, (3,) * prompt, new, GREEDY, priority=priority)


def step(s: Scheduler, found: int = 0) -> list[StepEntry]:
    """Plan a step and commit it; the first `found` tokens of a new prompt are in the verifier's cache."""
    entries = s.plan(0.0)
    trees = {e.request_id: TokenTree.root_only(e.delta[-1]) for e in entries if e.final}
    verdicts = {}
    for e in entries:
        cached = found if e.base_len == 0 and e.read_limit else 0
        length = e.base_len + cached + e.max_read
        verdicts[e.request_id] = Verdict(EntryStatus.OK, bonus=5, cached_len=length, cached_tokens=cached)
    s.commit(entries, trees, verdicts, 0.0)
    return entries


@st.composite
def curves(draw: st.DrawFn) -> PassCurve:
    """Draw measured passes of any sizes and seconds."""
    sizes = draw(st.sets(st.sampled_from([1, 2, 4, 8, 16, 32, 64, 256, 512]), min_size=1))
    return PassCurve((size, draw(st.floats(1e-4, 2.0))) for size in sizes)


@given(
    curve=curves(), decoders=st.integers(0, 6), prompts=st.lists(st.integers(2, 900), min_size=1, max_size=3)
)
def test_reading_at_most_doubles_the_seconds_of_a_decoding_step(
    curve: PassCurve, decoders: int, prompts: list[int]
) -> None:
    limits = SchedulerLimits(kv_capacity_tokens=100_000)
    budget = derive_budget(curve, limits.max_batch, limits.max_tree_nodes, limits.max_step_tokens)
    s = Scheduler(limits, budget)
    for number in range(decoders):
        s.submit(request(f"decoder {number}"), 0.0)
    if decoders:
        step(s)
    for number, tokens in enumerate(prompts):
        s.submit(request(f"prompt {number}", tokens), 0.0)
    while reading := {name for name, state in s.states.items() if state.pending > 1}:
        decoding = s.states.keys() - reading
        entries = step(s)
        decoders_of = [e for e in entries if e.request_id not in reading]
        assert {e.request_id for e in decoders_of} == decoding, "each decodes in each step"
        rows = sum(1 + e.limits.nodes for e in decoders_of)
        read = sum(e.max_read for e in entries) - len(decoders_of)
        assert read
        assert not rows or read == 1 or curve.at(rows + read) <= 2.000001 * curve.at(rows)


@given(
    curve=curves(),
    context_s=st.floats(0, 1e-5),
    rows=st.integers(1, 40),
    context=st.integers(0, 30_000),
)
def test_reading_after_a_long_context_doubles_a_step_at_most(
    curve: PassCurve, context_s: float, rows: int, context: int
) -> None:
    budget = derive_budget(curve, 16, 127, 2048, context_s=context_s)
    read = ReadingPace(budget.pass_seconds, budget.context_s).max_tokens(rows, context)

    def seconds(read: int) -> float:
        return curve.at(rows + read) + read * context_s * context

    assert read
    assert read == 1 or seconds(read) <= 2.000001 * curve.at(rows)
    assert seconds(read + 1) > 1.999999 * curve.at(rows) or rows + read >= 2047, "as many as possible"


def seconds_of(rows: int, read: int, context: float, context_s: float) -> float:
    """Return the seconds of a pass of `LINEAR` with `read` prompt tokens after `context` tokens."""
    return LINEAR[rows + read - 1] + read * context_s * context


def with_a_decoder(context_s: float) -> Scheduler:
    s = Scheduler(
        SchedulerLimits(max_context_len=100_000, kv_capacity_tokens=200_000),
        NodeBudget(0, 0, pass_seconds=LINEAR, context_s=context_s),
    )
    s.submit(request("decoder"), 0.0)
    step(s)
    return s


def read_of(entries: list[StepEntry]) -> dict[str, int]:
    return {e.request_id: e.max_read for e in entries if e.request_id != "decoder"}


def test_a_prompt_that_may_be_cached_is_first_planned_as_if_it_were() -> None:
    """From the second step on its context is known."""
    s = with_a_decoder(1e-6)
    short, long = (s._reading.max_tokens(1, context) for context in (0, 20_000))
    assert short is not None
    assert long is not None
    assert 1 <= long < short / 2
    s.submit(request("cached", 20_000), 0.0)
    assert read_of(step(s, found=16_000))["cached"] <= 2 * long
    assert read_of(step(s))["cached"] == s._reading.max_tokens(1, 16_000)
    s.finish(s.states["cached"], FinishReason.CANCELLED, 0.0)
    s.submit(request("new", 20_000), 0.0)
    assert read_of(step(s))["new"] < short
    after = read_of(step(s))["new"]
    assert short / 2 < after <= short


def test_a_prompt_that_waits_does_not_shorten_the_chunk_of_another() -> None:
    s = with_a_decoder(2e-7)
    s.submit(request("long", 20_000), 0.0)
    step(s, found=16_000)
    slow = read_of(step(s))["long"]
    s.submit(request("short", 300, priority=1), 0.0)
    fast = read_of(step(s))
    assert fast["short"] > 2 * slow
    assert "long" not in fast


@given(
    context_s=st.floats(0, 2e-6),
    prompts=st.lists(
        st.tuples(st.integers(2, 3000), st.integers(0, 20_000), st.integers(0, 1)), min_size=1, max_size=4
    ),
)
def test_prompts_after_different_contexts_double_a_step_together_at_most(
    context_s: float, prompts: list[tuple[int, int, int]]
) -> None:
    s = with_a_decoder(context_s)
    for number, (tokens, context, priority) in enumerate(prompts):
        s.submit(request(f"prompt {number}", tokens + context, priority=priority), 0.0).verifier_len = context
    for _ in range(5):
        decoding = {name for name, state in s.states.items() if state.pending == 1}
        entries = s.plan(0.0)
        lengths = [(e.base_len, e.max_read) for e in entries if e.request_id not in decoding]
        if not lengths:
            return
        read = sum(n for _, n in lengths)
        context = sum(n * (base + n / 2) for base, n in lengths) / read
        rows = len(decoding)
        assert read == 1 or seconds_of(rows, read, context, context_s) <= 2.001 * LINEAR[rows - 1]
        step(s)
