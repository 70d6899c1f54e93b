"""The speculator engine: contexts built from deltas, and errors that concern one entry."""

from collections.abc import Sequence
from dataclasses import replace
from math import nan

import pytest

from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.drafters.engine import SpeculatorEngine, combined
from specinfer.drafters.entries import DraftEntry
from specinfer.drafters.ssm import SsmDrafter
from specinfer.errors import IncompatibleError
from specinfer.model.drafting.task import GrowthShape
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import EntryStatus
from specinfer.tree import TokenTree, TreeLimits
from tests.support.oracle import chain
from tests.support.system import ScriptedDrafter
from tests.support.tiny_models import runner_of, tiny_transformers


def entry(name: str, base: int, delta: list[int], nodes: int = 2) -> DraftEntry:
    return DraftEntry(name, base, delta, TreeLimits(nodes, 2), Sampling(temperature=0))


def test_deltas_build_the_context_and_a_gap_asks_for_a_resync() -> None:
    drafter = ScriptedDrafter(lambda job: chain(job.context[-1], [1]))
    engine = SpeculatorEngine([drafter])
    assert engine.draft([entry("r", 0, [5, 6])])[0].cached_len == 2
    assert engine.draft([entry("r", 2, [7])])[0].cached_len == 3
    assert list(drafter.jobs[-1].context) == [5, 6, 7]
    (gap,) = engine.draft([entry("r", 9, [8])])
    assert gap.status is EntryStatus.RESYNC
    (again,) = engine.draft([entry("r", 0, [5, 6, 7, 8])])
    assert (again.status, again.cached_len) == (EntryStatus.OK, 4)


def test_bad_entries_fail_alone() -> None:
    drafter = ScriptedDrafter(lambda job: chain(job.context[-1], [1]))
    drafter.description = DrafterDescription(vocab_size=10)
    engine = SpeculatorEngine([drafter], max_nodes=4)
    limits = [TreeLimits(3, 3, min_path_probability=least) for least in (-0.1, 1.5, nan)]
    entries = [
        entry("empty", 0, []),
        entry("foreign", 0, [5, 11]),
        entry("greedy", 0, [5], nodes=5),
        *(replace(entry(f"sure {i}", 0, [5]), limits=limit) for i, limit in enumerate(limits)),
        entry("good", 0, [5]),
    ]
    outcomes = engine.draft(entries)
    assert [o.status for o in outcomes] == [EntryStatus.ERROR] * 6 + [EntryStatus.OK]
    assert "delta_token_ids: must be a token id from 0 to 9" in outcomes[1].message
    assert "node_budget = 5: must be at most 4" in outcomes[2].message
    for outcome, value in zip(outcomes[3:6], ("-0.1", "1.5", "nan"), strict=True):
        assert f"min_path_probability = {value}: must be between 0 and 1" in outcome.message
    ((speculator, tree),) = outcomes[6].drafts
    assert speculator == 0
    assert isinstance(tree, TokenTree)


def test_references_come_with_the_start_and_stay_until_release() -> None:
    drafter = ScriptedDrafter(lambda job: chain(job.context[-1], [1]))
    drafter.description = DrafterDescription(vocab_size=10, reads_references=True)
    engine = SpeculatorEngine([drafter, ScriptedDrafter(drafter.script)])

    def seen(*entries: DraftEntry) -> list[bool]:
        engine.draft(entries)
        return [job.references is not None for job in drafter.jobs[-len(entries) :]]

    with_them = replace(entry("a", 0, [5]), references=[[5, 6]])
    assert seen(with_them, entry("b", 0, [5])) == [True, False]
    assert seen(entry("a", 1, [6]), entry("b", 1, [6])) == [True, False]
    assert seen(entry("a", 0, [5])) == [False], "it starts over"
    assert seen(with_them) == [True]
    assert seen(entry("b", 2, [7])) == [False], "those of another request"
    engine.release(["a"])
    assert seen(entry("a", 0, [5])) == [False]


def test_bad_references_are_refused() -> None:
    reader, small, blind = (ScriptedDrafter(lambda job: chain(job.context[-1], [1])) for _ in range(3))
    reader.description = DrafterDescription(reads_references=True)
    small.description = DrafterDescription(vocab_size=10, reads_references=True)
    for engine, base, token, reason in (
        (
            SpeculatorEngine([blind]),
            0,
            5,
            "references = 1 texts: must be empty: no speculator of this service reads them",
        ),
        (SpeculatorEngine([reader]), 2, 5, "references = 1 texts: allowed with base_len 0 only, not 2"),
        (
            SpeculatorEngine([reader]),
            0,
            2**31,
            f"references.token_ids: must be a token id from 0 to {2**31 - 1}",
        ),
        (SpeculatorEngine([small]), 0, 10, "references.token_ids: must be a token id from 0 to 9"),
    ):
        bad = replace(entry("r", base, [5]), references=[[token]])
        (outcome,) = engine.draft([bad])
        assert outcome.status is EntryStatus.ERROR
        assert reason in outcome.message


def test_an_error_in_a_batch_fails_only_the_entry_that_causes_it() -> None:
    def script(job: DraftJob) -> TokenTree:
        if job.request_id == "bad":
            raise RuntimeError("cannot")
        return chain(job.context[-1], [1])

    outcomes = SpeculatorEngine([ScriptedDrafter(script)]).draft(
        [entry("a", 0, [3]), entry("bad", 0, [3]), entry("b", 0, [3])]
    )
    drafts = [outcome.drafts[0][1] for outcome in outcomes]
    assert [isinstance(draft, TokenTree) for draft in drafts] == [True, False, True]
    assert "cannot" in str(drafts[1])


def test_each_drafter_of_a_service_drafts_for_the_entries_that_name_it() -> None:
    """The drafters share the context; each draws with its own random numbers."""
    drafters = [ScriptedDrafter(lambda job, t=t: chain(job.context[-1], [t])) for t in (1, 2)]
    engine = SpeculatorEngine(drafters)
    sampling = Sampling(seed=7)
    entries = [
        DraftEntry(name, 0, [5, 6], TreeLimits(2, 2), sampling, asked, draw_seed=3)
        for name, asked in (("all", ()), ("second", [1]), ("first", [0]))
    ]
    outcomes = engine.draft(entries)
    drafts = [{s: tree.token_ids[1] for s, tree in o.drafts if isinstance(tree, TokenTree)} for o in outcomes]
    assert drafts == [{0: 1, 1: 2}, {1: 2}, {0: 1}]
    assert [o.cached_len for o in outcomes] == [2, 2, 2]
    assert {job.sampling.seed for drafter in drafters for job in drafter.jobs} == {7}, "that of the noise"
    first, second = ({job.draw_seed for job in drafter.jobs} for drafter in drafters)
    assert first == {3}
    assert len(second) == 1
    assert second != first
    (later,) = engine.draft([DraftEntry("second", 2, [9], TreeLimits(2, 2), sampling, [0])])
    assert later.status is EntryStatus.OK
    assert drafters[0].jobs[-1].context == [5, 6, 9], "also tokens of entries for other drafters"
    engine.release(["all"])
    assert [drafter.released[-1] for drafter in drafters] == ["all", "all"]
    (bad,) = engine.draft([DraftEntry("r", 0, [5], TreeLimits(2, 2), sampling, [2])])
    assert "speculators = 2: must be numbers from 0 to 1" in bad.message


def test_an_error_of_one_drafter_does_not_affect_the_others() -> None:
    def fail(job: DraftJob) -> TokenTree:
        raise RuntimeError("cannot")

    drafters = [ScriptedDrafter(fail), ScriptedDrafter(lambda job: chain(job.context[-1], [1]))]
    (outcome,) = SpeculatorEngine(drafters).draft([entry("r", 0, [3])])
    (_, error), (_, tree) = outcome.drafts
    assert outcome.status is EntryStatus.OK
    assert "cannot" in str(error)
    assert isinstance(tree, TokenTree)


def test_the_description_of_a_service_combines_those_of_its_drafters() -> None:
    description = combined(
        [
            DrafterDescription(vocab_size=10, tokenizer_fingerprint="a", max_context_len=6),
            DrafterDescription(vocab_size=8),
            DrafterDescription(tokenizer_fingerprint="a", max_context_len=9),
        ]
    )
    assert (description.vocab_size, description.tokenizer_fingerprint) == (8, "a")
    with pytest.raises(IncompatibleError, match="need the same tokenizer: x: b, y: a"):
        combined(
            [DrafterDescription(name, tokenizer_fingerprint=mark) for name, mark in (("x", "b"), ("y", "a"))]
        )


def test_no_drafter_drafts_beyond_its_positions() -> None:
    """A drafter with too few positions for the context is skipped; the other drafters of the service continue."""
    drafters = [ScriptedDrafter(lambda job: chain(job.context[-1], [1] * job.limits.depth)) for _ in range(3)]
    for drafter, positions in zip(drafters, (6, 0, 9), strict=True):
        drafter.description = DrafterDescription(max_context_len=positions)
    engine = SpeculatorEngine(drafters)
    asked = DraftEntry("r", 0, [3] * 4, TreeLimits(8, 4), Sampling(temperature=0))
    depths = []
    for cached_len in range(4, 11):
        (outcome,) = engine.draft([asked])
        assert outcome.status is EntryStatus.OK
        depths.append({s: len(tree) - 1 for s, tree in outcome.drafts if isinstance(tree, TokenTree)})
        asked = replace(asked, base_len=cached_len, delta=[3])
    whole = [{0: 2, 1: 4, 2: 4}, {0: 1, 1: 4, 2: 4}, {1: 4, 2: 3}, {1: 4, 2: 2}, {1: 4, 2: 1}, {1: 4}, {1: 4}]
    assert depths == whole
    assert drafters[0].released == ["r"] * 4, "the cache of a context too long for it is of no use"


def test_an_ssm_drafts_up_to_its_last_position() -> None:
    model = tiny_transformers("opt", max_position_embeddings=12)
    drafter = SsmDrafter(runner_of(model), DrafterDescription("tiny", 97, "", 12), GrowthShape())
    engine = SpeculatorEngine([drafter])
    for length in range(4, 16):
        asked = DraftEntry("r", 0, list(range(5, 5 + length)), TreeLimits(6, 4), Sampling(temperature=0))
        (outcome,) = engine.draft([asked])
        assert outcome.status is EntryStatus.OK
        assert [type(draft) for _, draft in outcome.drafts] == [TokenTree] * (length < 12), length
    assert drafter._runner.cache.free_tokens == drafter._runner.cache.capacity_tokens


@pytest.mark.parametrize(("positions", "longest"), [((6, 9), 9), ((6, 0), 0), ((), 0)])
def test_the_context_limit_of_a_service_is_the_largest_of_its_drafters(
    positions: Sequence[int], longest: int
) -> None:
    descriptions = [DrafterDescription(max_context_len=position) for position in positions]
    assert combined(descriptions).max_context_len == longest


def test_idle_requests_are_forgotten() -> None:
    now = [0.0]
    drafter = ScriptedDrafter(lambda job: chain(job.context[-1], [1]))
    engine = SpeculatorEngine([drafter], idle_seconds=10, clock=lambda: now[0])
    engine.draft([entry("old", 0, [3])])
    now[0] = 11.0
    engine.draft([entry("new", 0, [3])])
    assert drafter.released == ["old"]
    assert engine.cached_requests == 1


def test_an_empty_budget_appends_and_drafts_nothing() -> None:
    drafter = ScriptedDrafter(lambda job: chain(job.context[-1], [1]))
    (outcome,) = SpeculatorEngine([drafter]).draft([entry("r", 0, [3, 4], nodes=0)])
    assert (outcome.drafts, outcome.cached_len) == ((), 2)
