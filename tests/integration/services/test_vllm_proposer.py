"""The proposer for vLLM with real speculator services; tests/e2e/test_vllm.py runs vLLM."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.errors import IncompatibleError, SettingError
from specinfer.integrations.vllm import SpeculatorProposer
from specinfer.remote.policy import PoolPolicy
from specinfer.tree import TokenTree
from tests.support.oracle import chain
from tests.support.services import speculator_service
from tests.support.system import VOCABULARY, ScriptedDrafter, ascii_tokenizer, until

LONGEST = 64
WIDTH = 4


def follows(token: int) -> int:
    """Return the token that the target of these tests generates after a token."""
    return (5 * token + 3) % VOCABULARY


def continuation(token: int, count: int) -> list[int]:
    """Return the target's next `count` tokens."""
    return [token := follows(token) for _ in range(count)]


def right(score: float = 0.9) -> ScriptedDrafter:
    return ScriptedDrafter(
        lambda job: chain(job.context[-1], continuation(job.context[-1], job.limits.depth), score)
    )


def wrong(score: float = 0.9) -> ScriptedDrafter:
    def script(job: DraftJob) -> TokenTree:
        tokens = [(t + 1) % VOCABULARY for t in continuation(job.context[-1], job.limits.depth)]
        return chain(job.context[-1], tokens, score)

    return ScriptedDrafter(script)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    ascii_tokenizer()._fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return tmp_path


def vllm_config(tokenizer: Path, rank: int = 0) -> Any:
    """Return the fields of vLLM's `VllmConfig` that the proposer reads."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=WIDTH),
        parallel_config=SimpleNamespace(rank=rank, tensor_parallel_size=2, pipeline_parallel_size=1),
        model_config=SimpleNamespace(
            max_model_len=LONGEST,
            tokenizer=str(tokenizer),
            tokenizer_revision=None,
            trust_remote_code=False,
            get_vocab_size=lambda: VOCABULARY,
        ),
    )


class Engine:
    """Replacement for vLLM: has rows of tokens, and accepts the right drafted tokens."""

    def __init__(self, pool: SpeculatorProposer) -> None:
        self._pool = pool

    async def propose(
        self, rows: Sequence[Sequence[int]], new: Sequence[int] | None = None
    ) -> list[list[int]]:
        tokens = np.zeros((len(rows) + 3, LONGEST), np.int32)
        lengths = np.zeros(len(rows) + 3, np.int32)
        for place, row in enumerate(rows):
            tokens[place, : len(row)], lengths[place] = row, len(row)
        counts = new or [1] * len(rows)
        sampled = [list(row[len(row) - n :]) for row, n in zip(rows, counts, strict=True)]
        return await asyncio.to_thread(self._pool.propose, sampled, lengths, tokens)

    async def step(self, rows: Sequence[Sequence[int]], new: Sequence[int]) -> list[list[int]]:
        """Return the rows with their accepted tokens and the target's next token."""
        return [
            [*row, *continuation(row[-1], 1 + agreed(path, row[-1]))]
            for row, path in zip(rows, await self.propose(rows, new), strict=True)
        ]


def agreed(path: Sequence[int], last: int) -> int:
    """Return the number of accepted tokens of a path."""
    hits = [a == b for a, b in zip(path, continuation(last, len(path)), strict=True)]
    return hits.index(False) if False in hits else len(hits)


@asynccontextmanager
async def engine_with(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Path, addresses: str, rank: int = 0, deadline_s: float = 5.0
) -> AsyncIterator[tuple[Engine, SpeculatorProposer]]:
    monkeypatch.setenv("SPECINFER_VLLM_SPECULATORS", addresses)
    policy = partial(PoolPolicy, deadline_s=deadline_s)
    monkeypatch.setattr("specinfer.integrations.vllm.proposer.PoolPolicy", policy)
    pool = await asyncio.to_thread(SpeculatorProposer, vllm_config(tokenizer, rank))
    try:
        yield Engine(pool), pool
    finally:
        await asyncio.to_thread(pool.close)
        assert not pool.counters["faults"]


@asynccontextmanager
async def serving(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Path, *drafters: ScriptedDrafter, deadline_s: float = 5.0
) -> AsyncIterator[tuple[Engine, SpeculatorProposer]]:
    async with AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(speculator_service({f"s{i}": drafter}))
            for i, drafter in enumerate(drafters)
        ]
        addresses = ", ".join(address for address, _ in services)
        yield await stack.enter_async_context(
            engine_with(monkeypatch, tokenizer, addresses, deadline_s=deadline_s)
        )


async def test_rows_get_their_own_continuations_although_they_move_and_end(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Path
) -> None:
    drafter = right()
    async with serving(monkeypatch, tokenizer, drafter) as (engine, pool):
        a, b, c = [7, 1], [7, 2], [7, 1, 3]
        assert await engine.propose([a, b, c]) == [continuation(row[-1], WIDTH) for row in (a, b, c)]
        a, c = [*a, *continuation(1, 2)], [*c, *continuation(3, 5)]
        assert await engine.propose([c, a], [5, 2]) == [continuation(row[-1], WIDTH) for row in (c, a)]
        d = [9, 9]
        a, c = [*a, *continuation(a[-1], 1)], [*c, *continuation(c[-1], 1)]
        assert await engine.propose([d, a, c]) == [continuation(row[-1], WIDTH) for row in (d, a, c)]
        for _ in range(3):
            a, c, d = [[*row, *continuation(row[-1], 1)] for row in (a, c, d)]
            await engine.propose([a, c, d])
        assert pool.outcomes["resync"] == 0
        names = {job.request_id for job in drafter.jobs}
        assert len(names) == 4, "the requests were recognized although they moved"
        assert pool.counters["requests"] == 4
        assert pool.counters["accepted"] == 2 + 4 + 1 + 1 + 3 * 3
        await until(lambda: len(drafter.released) == 1)  # b


async def test_rows_without_tokens_of_this_step_get_none(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Path
) -> None:
    drafter = right()
    async with serving(monkeypatch, tokenizer, drafter) as (engine, _):
        assert await engine.propose([[5, 6], [5, 7]], [0, 1]) == [[], continuation(7, WIDTH)]
        assert len(drafter.jobs) == 1


async def test_nothing_is_proposed_beyond_the_longest_context(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Path
) -> None:
    rows = [[3] * (LONGEST - left) for left in (1, 2, 3, 9)]
    async with serving(monkeypatch, tokenizer, right()) as (engine, _):
        assert [len(path) for path in await engine.propose(rows)] == [0, 1, 2, WIDTH]


async def test_long_prompts_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch, tokenizer: Path) -> None:
    monkeypatch.setattr("specinfer.engine.draft_group.CONTEXT_CHUNK", 10)
    async with serving(monkeypatch, tokenizer, right()) as (engine, pool):
        row = [1] * 25
        lengths = []
        for _ in range(4):
            (path,) = await engine.propose([row])
            lengths.append(len(path))
            row = [*row, *continuation(row[-1], 1)]
        assert lengths == [0, 0, WIDTH, WIDTH]
        assert pool.outcomes["resync"] == 0


async def test_trees_are_merged_and_measured_acceptance_decides(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Path
) -> None:
    """At first, the wrong drafter's high scores win; then its measured acceptance counts."""
    async with serving(monkeypatch, tokenizer, wrong(0.95), right(0.6)) as (engine, pool):
        rows, new = [[11], [12], [13]], [1, 1, 1]
        accepted = []
        for _ in range(10):
            before = pool.counters["accepted"]
            grown = await engine.step(rows, new)
            new = [len(after) - len(row) for row, after in zip(rows, grown, strict=True)]
            rows = grown
            accepted.append(pool.counters["accepted"] - before)
        assert accepted[0] == accepted[1] == 0
        assert accepted[-1] == 3 * WIDTH


async def test_only_the_first_rank_of_a_tensor_parallel_group_requests_drafts(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Path
) -> None:
    drafter = right()
    async with speculator_service({"a": drafter}) as (address, _):
        for rank, asks in ((0, True), (1, False), (2, True)):
            async with engine_with(monkeypatch, tokenizer, address, rank) as (engine, _):
                assert bool((await engine.propose([[5]]))[0]) is asks


async def test_another_tokenizer_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Path
) -> None:
    ours, theirs = ascii_tokenizer().fingerprint(), ascii_tokenizer(swap=True).fingerprint()
    async with (
        speculator_service({"a": right()}, tokenizer_fingerprint=ours) as (address, _),
        engine_with(monkeypatch, tokenizer, address) as (engine, _),
    ):
        assert await engine.propose([[5]]) == [continuation(5, WIDTH)]
    async with speculator_service({"a": right()}, tokenizer_fingerprint=theirs) as (address, _):
        with pytest.raises(IncompatibleError, match=f"have tokenizer {theirs}, but the target has {ours}"):
            async with engine_with(monkeypatch, tokenizer, address):
                pass
    assert "specinfer-speculators" not in {thread.name for thread in threading.enumerate()}


async def test_a_service_that_reads_hidden_states_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Path
) -> None:
    drafter = ScriptedDrafter(right().script)
    drafter.description = DrafterDescription(feature_layers=(1,), feature_size=8)
    async with speculator_service({"a": drafter}) as (address, _):
        with pytest.raises(IncompatibleError, match="hidden states"):
            async with engine_with(monkeypatch, tokenizer, address):
                pass


async def test_a_fault_of_ours_costs_drafts_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(monkeypatch, tokenizer, right()) as (engine, pool):
        with monkeypatch.context() as broken, caplog.at_level(logging.ERROR):
            broken.setattr("specinfer.integrations.vllm.proposer.best_path", _fails)
            assert await engine.propose([[5], [6]]) == [[], []]
        assert pool.counters.pop("faults") == 1
        assert "proposing tokens failed: 2 rows get no drafts" in caplog.text
        assert await engine.propose([[5, 28], [6, 33]]) == [continuation(28, WIDTH), continuation(33, WIDTH)]


def _fails(*_: object) -> list[int]:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "SPECINFER_VLLM_SPECULATORS = None:"),
        (
            {"SPECULATORS": "a:1", "DEADLINE": "5"},
            "SPECINFER_VLLM_DEADLINE = '5':",
        ),
        ({"SPECULATORS": "a:1", "TLS_KEY": "k.pem"}, "specinfer_vllm_tls_ca = None:"),
    ],
)
def test_bad_settings_are_named(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, tokenizer: Path
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"SPECINFER_VLLM_{name}", value)
    with pytest.raises(SettingError, match=message):
        SpeculatorProposer(vllm_config(tokenizer))
