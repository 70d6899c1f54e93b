"""The speculator engine: contexts follow the invariant, failures concern one entry."""

from specinfer.entry_status import EntryStatus
from specinfer.sampling import SamplingParams
from specinfer.tree import TokenTree, TreeLimits
from speculator_svc.drafters import DrafterDescription, DraftJob
from speculator_svc.engine import DraftEntry, SpeculatorEngine
from tests.oracle import chain
from tests.system import ScriptedDrafter


def entry(name: str, base: int, delta: list[int], nodes: int = 2) -> DraftEntry:
    return DraftEntry(name, base, delta, TreeLimits(nodes, 2), SamplingParams(temperature=0))


def test_deltas_build_the_context_and_a_gap_asks_for_everything() -> None:
    drafter = ScriptedDrafter(lambda job: chain(job.context[-1], [1]))
    engine = SpeculatorEngine(drafter)
    assert engine.draft([entry("r", 0, [5, 6])])[0].held_len == 2
    assert engine.draft([entry("r", 2, [7])])[0].held_len == 3
    assert list(drafter.jobs[-1].context) == [5, 6, 7]
    (gap,) = engine.draft([entry("r", 9, [8])])
    assert gap.status is EntryStatus.RESYNC
    (again,) = engine.draft([entry("r", 0, [5, 6, 7, 8])])
    assert (again.status, again.held_len) == (EntryStatus.OK, 4)


def test_bad_entries_fail_alone() -> None:
    drafter = ScriptedDrafter(lambda job: chain(job.context[-1], [1]))
    drafter.description = DrafterDescription(vocab_size=10, max_context_len=6)
    engine = SpeculatorEngine(drafter, max_nodes=4)
    entries = [
        entry("empty", 0, []),
        entry("foreign", 0, [5, 11]),
        entry("greedy", 0, [5], nodes=5),
        entry("long", 0, [1] * 6),
        entry("good", 0, [5]),
    ]
    outcomes = engine.draft(entries)
    assert [o.status for o in outcomes] == [EntryStatus.ERROR] * 4 + [EntryStatus.OK]
    assert "delta_token_ids = 11: not in the vocabulary of 10" in outcomes[1].message
    assert "node_budget = 5: at most 4" in outcomes[2].message
    assert "context = 8: longer than the 6 served" in outcomes[3].message
    assert outcomes[4].tree is not None


def test_only_the_culprit_fails_when_a_batch_does() -> None:
    def script(job: DraftJob) -> TokenTree:
        if job.request_id == "bad":
            raise RuntimeError("cannot")
        return chain(job.context[-1], [1])

    outcomes = SpeculatorEngine(ScriptedDrafter(script)).draft(
        [entry("a", 0, [3]), entry("bad", 0, [3]), entry("b", 0, [3])]
    )
    assert [o.status for o in outcomes] == [EntryStatus.OK, EntryStatus.ERROR, EntryStatus.OK]


def test_idle_requests_are_forgotten() -> None:
    now = [0.0]
    drafter = ScriptedDrafter(lambda job: chain(job.context[-1], [1]))
    engine = SpeculatorEngine(drafter, idle_seconds=10, clock=lambda: now[0])
    engine.draft([entry("old", 0, [3])])
    now[0] = 11.0
    engine.draft([entry("new", 0, [3])])
    assert drafter.released == ["old"]
    assert engine.held_requests == 1


def test_an_empty_budget_appends_and_drafts_nothing() -> None:
    drafter = ScriptedDrafter(lambda job: chain(job.context[-1], [1]))
    (outcome,) = SpeculatorEngine(drafter).draft([entry("r", 0, [3, 4], nodes=0)])
    assert (outcome.tree, outcome.held_len) == (None, 2)
