"""Prompt tokens of steps in which requests decode: learned, bounded, planned for the prompt that is read."""

from hypothesis import given
from hypothesis import strategies as st

from specinfer.planning.pass_curve import PassCurve, derive_budget
from specinfer.sampling import GREEDY
from specinfer.scheduling.entries import StepEntry, VerdictEntry
from specinfer.scheduling.limits import NodeBudget, SchedulerLimits
from specinfer.scheduling.reading import PassSize, ReadingPace, pass_size
from specinfer.scheduling.request import GenerationRequest
from specinfer.scheduling.scheduler import Scheduler
from specinfer.statuses import EntryStatus, FinishReason
from specinfer.tree import TokenTree

CHUNK = 64
LINEAR = tuple(0.01 + 0.001 * tokens for tokens in range(2048))
"""Seconds of a pass of one token, of two and so on."""


def request(name: str, prompt: int = 1, new: int = 1000, priority: int = 0) -> GenerationRequest:
    return GenerationRequest(name, (3,) * prompt, new, GREEDY, priority=priority)


def step(s: Scheduler, found: int = 0) -> list[StepEntry]:
    """Plans, and answers; a prompt's first `found` tokens are in the verifier's cache."""
    entries = s.plan(0.0)
    trees = {e.request_id: TokenTree.root_only(e.delta[-1]) for e in entries if e.final}
    verdicts = {}
    for e in entries:
        cached = found if e.base_len == 0 and e.read_limit else 0
        length = e.base_len + cached + e.max_read
        verdicts[e.request_id] = VerdictEntry(
            EntryStatus.OK, bonus=5, cached_len=length, cached_tokens=cached
        )
    s.commit(entries, trees, verdicts, 0.0)
    return entries


@st.composite
def curves(draw: st.DrawFn) -> PassCurve:
    """Measured passes: any sizes, any seconds."""
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
        own = [e for e in entries if e.request_id not in reading]
        assert {e.request_id for e in own} == decoding, "each decodes in each step"
        rows = sum(1 + e.limits.nodes for e in own)
        read = sum(e.max_read for e in entries) - len(own)
        assert read
        assert not rows or read == 1 or curve.at(rows + read) <= 2.000001 * curve.at(rows)


@given(
    curve=curves(),
    slope=st.floats(0, 0.002),
    slower=st.floats(0.5, 3.0),
    rows=st.integers(1, 40),
    context=st.integers(300, 30_000),
)
def test_reading_after_a_long_context_doubles_a_step_at_most_once_it_is_learned(
    curve: PassCurve, slope: float, slower: float, rows: int, context: int
) -> None:
    pace = ReadingPace(derive_budget(curve, 16, 127, 2048).pass_seconds)

    def seconds(read: int) -> float:
        return slower * (curve.at(rows) + (1 + slope * context) * (curve.at(rows + read) - curve.at(rows)))

    for _ in range(40):
        pace.learn(PassSize(rows), seconds(0))
        read = pace.max_tokens(rows, context)
        assert read
        pace.learn(PassSize(rows, read, context), seconds(read))
    read = pace.max_tokens(rows, context)
    assert read
    assert read == 1 or seconds(read) <= 2.05 * seconds(0)
    assert seconds(read + 1) > 1.9 * seconds(0) or rows + read >= 2047, "no fewer than need be"


def seconds_of(size: PassSize, slope: float) -> float:
    """Seconds of a pass on an undisturbed machine."""
    base = LINEAR[size.rows - 1]
    return base + (1 + slope * size.context) * (LINEAR[size.rows + size.read - 1] - base)


def taught(slope: float, context: int) -> ReadingPace:
    """A pace that knows the cost of context."""
    pace = ReadingPace(LINEAR)
    for _ in range(12):
        for size in (PassSize(4), PassSize(4, CHUNK, context)):
            pace.learn(size, seconds_of(size, slope))
    return pace


def reads(pace: ReadingPace) -> list[int | None]:
    """Its limits after contexts of all lengths."""
    return [pace.max_tokens(4, context) for context in (0, 100, 1000, 10_000, 30_000)]


@given(
    slope=st.sampled_from([0.0, 1e-4, 1e-3]),
    context=st.integers(256, 20_000),
    disturbed=st.floats(0.2, 50.0),
    place=st.integers(0, 30_000),
    plain=st.booleans(),
)
def test_one_disturbed_step_changes_no_limit(
    slope: float, context: int, disturbed: float, place: int, plain: bool
) -> None:
    pace = taught(slope, context)
    before = reads(pace)
    size = PassSize(4) if plain else PassSize(4, CHUNK, place)
    pace.learn(size, disturbed * seconds_of(size, slope))
    assert reads(pace) == before


@given(
    slope=st.sampled_from([0.0, 1e-4, 1e-3]),
    slower=st.floats(0.3, 5.0),
    context=st.integers(256, 20_000),
    first=st.integers(0, 500),
)
def test_a_slower_machine_does_not_count_as_cost_of_context(
    slope: float, slower: float, context: int, first: int
) -> None:
    """Not even where every step reads a prompt, as one after another arrives."""
    pace = taught(slope, context)
    before = reads(pace)
    for number in range(60):
        size = PassSize(4, CHUNK, first + CHUNK * number)
        pace.learn(size, slower * seconds_of(size, slope))
        assert reads(pace) == before


def test_a_new_process_is_not_misled_by_its_first_steps() -> None:
    pace = ReadingPace(LINEAR)
    before = reads(pace)
    size = PassSize(4, CHUNK, 300.0)
    pace.learn(size, 4 * seconds_of(size, 0.0))
    assert reads(pace) == before
    for context in (364.0, 428.0):
        pace.learn(PassSize(4, CHUNK, context), seconds_of(size, 0.0))
    pace.learn(PassSize(4), LINEAR[3])
    assert reads(pace) == before


def test_the_cost_of_context_is_learned_while_every_step_reads() -> None:
    """At the latest when the next prompt begins."""
    pace, slope = ReadingPace(LINEAR), 1e-3
    for number in (*range(40), 0, 1, 2):
        size = PassSize(4, CHUNK, CHUNK * number)
        pace.learn(size, 1.5 * seconds_of(size, slope))
    assert reads(pace) == reads(taught(slope, 5000))


def learned(slope: float) -> Scheduler:
    """One request decodes, and the cost of context is known."""
    s = Scheduler(
        SchedulerLimits(max_context_len=100_000, kv_capacity_tokens=200_000),
        NodeBudget(0, 0, pass_seconds=LINEAR),
    )
    s._reading = taught(slope, 5000)
    s.submit(request("decoder"), 0.0)
    step(s)
    return s


def read_of(entries: list[StepEntry]) -> dict[str, int]:
    return {e.request_id: e.max_read for e in entries if e.request_id != "decoder"}


def test_a_prompt_that_may_be_cached_is_first_planned_as_if_it_were() -> None:
    """Then its context is known."""
    s = learned(slope=1e-3)
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
    s = learned(slope=2e-4)
    s.submit(request("long", 20_000), 0.0)
    step(s, found=16_000)
    slow = read_of(step(s))["long"]
    s.submit(request("short", 300, priority=1), 0.0)
    fast = read_of(step(s))
    assert fast["short"] > 2 * slow
    assert "long" not in fast


@given(
    slope=st.floats(0, 2e-3),
    prompts=st.lists(
        st.tuples(st.integers(2, 3000), st.integers(0, 20_000), st.integers(0, 1)), min_size=1, max_size=4
    ),
)
def test_prompts_after_different_contexts_double_a_step_together_at_most(
    slope: float, prompts: list[tuple[int, int, int]]
) -> None:
    s = learned(slope)
    for number, (tokens, context, priority) in enumerate(prompts):
        s.submit(request(f"prompt {number}", tokens + context, priority=priority), 0.0).verifier_len = context
    for _ in range(5):
        decoding = {name for name, state in s.states.items() if state.pending == 1}
        entries = s.plan(0.0)
        lengths = [(e.base_len, e.max_read) for e in entries if e.request_id not in decoding]
        if not lengths:
            return
        read = sum(n for _, n in lengths)
        size = PassSize(len(decoding), read, sum(n * (base + n / 2) for base, n in lengths) / read)
        assert read == 1 or seconds_of(size, slope) <= 2.001 * LINEAR[size.rows - 1]
        step(s)


def test_a_step_that_took_tokens_from_the_cache_teaches_nothing() -> None:
    """Its seconds may include reading them from files."""
    s = learned(slope=0.0)
    s.submit(request("cached", 200), 0.0)
    entries = s.plan(0.0)
    trees = {"decoder": TokenTree.root_only(5)}
    decoded = VerdictEntry(EntryStatus.OK, bonus=5, cached_len=2)
    found = VerdictEntry(EntryStatus.OK, cached_len=64, cached_tokens=64)
    assert pass_size(entries, trees, {"decoder": decoded, "cached": found}) == PassSize()
