"""Drafts of every drafter change no token: in `LLM`, as a service, and in the verifier's process.

Requests are greedy and sampled, with trees and sequences. If drafts are not drawn, a seed gives the text of plain
decoding. If they are drawn, seed and request id give the same text in every process.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from specinfer.drafters import Drafter, DraftJob
from specinfer.llm import LLM, SamplingParams
from specinfer.tree import TokenTree
from tests.support.local import tiny_llm
from tests.support.models.drafters import PROMPT, ROWS, THOROUGH, Row
from tests.support.oracle import greedy
from tests.support.system import System, running_system, until
from tests.support.tiny_models import tiny_transformers

MODES = {"off": 3, "sequence": 2, "tree": 1}
PROMPTS = [PROMPT * 3, PROMPT, PROMPT[::-1]]
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0.9, "seed": 11, "top_k": 30},
    {"temperature": 1.2, "seed": 5, "top_p": 0.9},
]
TOKENS = 16


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    mode: str
    sampling: dict[str, Any]
    request_id: str = ""


Answer: TypeAlias = Callable[[Sequence[Request]], Awaitable[list[list[int]]]]


def recorded(drafter: Drafter) -> list[int]:
    """Return a list that gets the number of nodes of each tree the drafter proposes."""
    draft, sizes = drafter.draft, list[int]()

    def noting(jobs: Sequence[DraftJob]) -> Any:
        trees = draft(jobs)
        sizes.extend(len(tree) - 1 for tree in trees if isinstance(tree, TokenTree))
        return trees

    drafter.draft = noting  # type: ignore[method-assign]
    return sizes


def in_process(llm: LLM) -> Answer:
    """Return a function that answers requests by `LLM`; those without ids in one batch."""

    async def answer(requests: Sequence[Request]) -> list[list[int]]:
        params = [
            SamplingParams(max_tokens=TOKENS, ignore_eos=True, speculation=request.mode, **request.sampling)
            for request in requests
        ]
        if not requests[0].request_id:
            outputs = llm.generate([request.prompt for request in requests], params)
            return [output.outputs[0].token_ids for output in outputs]
        streams = [
            llm.stream(request.prompt, sampling, request_id=request.request_id)
            for request, sampling in zip(requests, params, strict=True)
        ]
        return [[token for delta in stream for token in delta.token_ids] for stream in streams]

    return answer


def through(system: System) -> Answer:
    """Return a function that answers requests by a system, in one batch."""

    async def answer(requests: Sequence[Request]) -> list[list[int]]:
        fields = [
            {"max_new_tokens": TOKENS, "speculation": MODES[request.mode], **request.sampling}
            | ({"request_id": request.request_id} if request.request_id else {})
            for request in requests
        ]
        tokens = [
            system.tokens(request.prompt, **params) for request, params in zip(requests, fields, strict=True)
        ]
        return await asyncio.gather(*tokens)

    return answer


@asynccontextmanager
async def host(kind: str, row: Row, drafter: Drafter, redis_url: str) -> AsyncIterator[Answer]:
    """Yield a function that answers requests with the drafter run as `kind`."""
    model = tiny_transformers(row.family)
    if kind == "LLM":
        yield in_process(tiny_llm({"it": drafter}, model, max_num_seqs=16))
    else:
        resident = kind == "resident"
        async with running_system(
            redis_url, {"it": drafter}, model=model, resident=resident, max_batch=16
        ) as system:
            yield through(system)
            (service,) = system.loop.pool.records
            assert not service.faults.malformed


async def assert_greedy_is_plain(row: Row, answer: Answer) -> None:
    """Check that the greedy answers of all modes are equal, in one batch."""
    actual = await answer(
        [Request(prompt, mode, {"temperature": 0.0}) for prompt in PROMPTS for mode in MODES]
    )
    for place, prompt in enumerate(PROMPTS):
        plain, *others = actual[place * len(MODES) :][: len(MODES)]
        assert row.family != "llama" or plain == greedy(prompt, TOKENS)
        assert others == [plain] * len(others), prompt


async def assert_a_seed_gives_the_plain_text(answer: Answer) -> None:
    """Check that a seed gives the same text in all modes; the noise fixes the target's choices."""
    actual = await answer([Request(PROMPT, mode, sampling) for sampling in SAMPLED for mode in MODES])
    plain = [actual[0], actual[len(MODES)]]
    assert actual == [text for text in plain for _ in MODES]
    assert greedy(PROMPT, TOKENS) not in plain


async def assert_an_id_gives_a_text(answer: Answer, elsewhere: Answer) -> None:
    """Check that another process gives the same text for the same id, and not for another id."""
    same, other = [Request(PROMPT, "tree", SAMPLED[0], name) for name in ("same", "other")]
    (drawn,) = await answer([same])
    assert await elsewhere([same]) == [drawn]
    assert await elsewhere([other]) != [drawn]


def marks(name: str) -> list[pytest.MarkDecorator]:
    thorough = [pytest.mark.thorough] if name in THOROUGH else []
    return [pytest.mark.native, *thorough] if "native" in name else thorough


@pytest.mark.parametrize("kind", ["LLM", "service", "resident"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in ROWS])
async def test_drafts_change_no_token(redis_url: str, tmp_path: Path, name: str, kind: str) -> None:
    row = ROWS[name]
    drafter = row.make(tmp_path)
    sizes = recorded(drafter)
    async with host(kind, row, drafter, redis_url) as answer:
        await assert_greedy_is_plain(row, answer)
        assert sum(sizes) >= row.drafted * len(PROMPTS)
        sizes.clear()
        if row.draws:
            again = tiny_llm({"it": row.make(tmp_path)}, tiny_transformers(row.family))
            await assert_an_id_gives_a_text(answer, in_process(again))
            assert sum(sizes) >= row.drafted
        else:
            await assert_a_seed_gives_the_plain_text(answer)
    await until(lambda: not any(getattr(drafter, name, None) for name in ("_cached", "_requests")))
    cache = getattr(getattr(drafter, "_runner", None), "cache", None)
    if cache is not None:
        cache.check()
