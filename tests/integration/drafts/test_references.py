"""References in a whole system: they speed up answers that copy, and change no token.

Only services that read references get them, once per request; requests keep them when a process dies.
"""

import asyncio
from collections.abc import Callable

import grpc
import pytest

from gateway.store.keys import request_key
from specinfer import AsyncClient
from specinfer.drafters import Drafter, DrafterDescription, DraftJob
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.suffix import SuffixDrafter
from specinfer.text.tokenizer import Tokenizer
from specinfer.tree import TokenTree
from specinfer.v1 import generation_pb2, speculator_pb2
from specinfer.wire.client_ids import request_id_of
from speculator_svc import servicer
from tests.support.forgetting import forget_once
from tests.support.network.http_service import CHAT, http_service
from tests.support.oracle import first, greedy
from tests.support.system import (
    ScriptedDrafter,
    System,
    another_gateway,
    crash,
    request_for,
    running_system,
    text_of,
)

PROMPT = [88, 41, 60, 7, 9, 20, 33]
"""Prompt whose answer repeats too little for n-grams."""
TOKENS = 20
OTHER = "something else, and nothing of it is said here"
METHODS: dict[str, Callable[[], Drafter]] = {"ngram": lambda: NgramDrafter(1, 4, 3), "suffix": SuffixDrafter}


class Reader(ScriptedDrafter):
    """Drafter with one right token per tree; records references."""

    def __init__(self) -> None:
        super().__init__(self._tree)
        self.description = DrafterDescription(reads_references=True)
        self.texts: dict[str, set[tuple[int, ...]]] = {}
        """Tokens of all references, by request."""

    def _tree(self, job: DraftJob) -> TokenTree:
        tokens = tuple(job.references._tokens) if job.references is not None else ()
        self.texts.setdefault(request_id_of(job.request_id), set()).add(tokens)
        return first(1)(job)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Request id, base_len and number of references of every entry at a speculator service."""
    entries: list[tuple[str, int, int]] = []
    decode = servicer._decode

    def recording(client: str, entry: speculator_pb2.DraftEntry, twice: bool) -> object:
        entries.append((entry.request_id, entry.base_len, len(entry.references)))
        return decode(client, entry, twice)

    monkeypatch.setattr(servicer, "_decode", recording)
    return entries


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """References that a gateway tokenizes."""
    texts: list[str] = []
    encode = Tokenizer.encode_part

    def recording(self: Tokenizer, text: str) -> list[int]:
        texts.append(text)
        return encode(self, text)

    monkeypatch.setattr(Tokenizer, "encode_part", recording)
    return texts


async def steps(system: System, expected: list[int], **fields: object) -> int:
    replies = await system.generate(PROMPT, max_new_tokens=TOKENS, **fields)
    assert [token for reply in replies for token in reply.token_ids] == expected
    return replies[-1].summary.stats.steps


@pytest.mark.parametrize("method", METHODS)
async def test_an_answer_that_copies_takes_fewer_steps_and_is_the_same(method: str, redis_url: str) -> None:
    async with running_system(redis_url, {method: METHODS[method]()}) as system:
        answer = greedy(PROMPT, TOKENS)
        copied = [OTHER, text_of([*PROMPT[-2:], *answer]), OTHER[::-1]]
        without = await steps(system, answer)
        assert await steps(system, answer, references=copied) <= 6 < without, "four tokens a step"
        assert await steps(system, answer, references=[OTHER]) >= without - 2
        with_seed = {"temperature": 1.0, "seed": 3, "ignore_eos": True}
        sampled_tokens = await system.tokens(PROMPT, max_new_tokens=TOKENS, speculation=3, **with_seed)
        without = await steps(system, sampled_tokens, **with_seed)
        assert await steps(system, sampled_tokens, references=[text_of(sampled_tokens)], **with_seed) < min(
            10, without
        )


async def test_a_request_sees_its_own_references_only(redis_url: str) -> None:
    drafter, suffix = Reader(), SuffixDrafter()
    async with running_system(redis_url, {"reader": drafter, "suffix": suffix}, one_service=True) as system:
        answer = greedy(PROMPT, TOKENS)
        alone = await steps(system, answer, request_id="alone")
        with_them, plain_steps = await asyncio.gather(
            steps(system, answer, request_id="with", references=[text_of(answer)]),
            steps(system, answer, request_id="beside"),
        )
        assert with_them < alone
        assert plain_steps == alone
    end = -1
    assert drafter.texts == {"alone": {()}, "with": {(*answer, end)}, "beside": {()}}


async def test_references_are_sent_once_and_again_to_a_service_that_lost_them(
    redis_url: str, sent: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_once(monkeypatch)
    drafter = Reader()
    async with running_system(redis_url, {"reader": drafter}) as system:
        answer = await system.tokens(PROMPT, request_id="r", references=["abc", "de"])
        assert answer == greedy(PROMPT, 16)
    starts = [index for index, (_, base, _) in enumerate(sent) if base == 0]
    assert len(starts) == 2
    assert starts[1] >= 4
    assert [count for _, _, count in sent] == [2 if index in starts else 0 for index in range(len(sent))]
    assert len(drafter.texts["r"]) == 1, "the same after it started over"


@pytest.mark.parametrize("reads", [False, True])
async def test_references_are_tokenized_stored_and_sent_only_for_readers(
    reads: bool, redis_url: str, sent: list[tuple[str, int, int]], tokenized: list[str]
) -> None:
    drafters = {"blind": ScriptedDrafter(first(1))} | ({"reader": Reader()} if reads else {})
    async with running_system(redis_url, drafters) as system:
        for name, speculation in (("off", 3), ("tree", 1)):
            fields = {"request_id": name, "speculation": speculation, "references": ["abc"]}
            assert await system.tokens(PROMPT, **fields) == greedy(PROMPT, 16)
        content = [
            await system.store._connection.redis.hget(request_key(name), "content")
            for name in ("off", "tree")
        ]
        with pytest.raises(grpc.aio.AioRpcError, match="references = '':"):
            await system.tokens(PROMPT, references=["abc", ""])
    assert tokenized == ["abc"] * reads
    assert ["references" in text for text in content] == [False, reads]
    assert [entry for entry in sent if entry[2]] == [("tree", 0, 1)] * reads
    assert {name for name, _, _ in sent} == {"tree"}


async def test_a_gateway_that_continues_a_request_has_its_references(redis_url: str) -> None:
    """The first gateway accepts the request, tokenizes its references, and dies."""
    drafter = Reader()
    async with (
        running_system(redis_url, {"reader": drafter}, lease_s=0.6, linger_seconds=5.0) as system,
        another_gateway(system.gateway.settings) as (other, stub, _),
    ):
        request = request_for(PROMPT, max_new_tokens=100, request_id="r", references=["abc", "de"])
        call = system.stub.Generate(request)
        seen = [token for _ in range(2) for token in (await call.read()).token_ids]
        await crash(system.gateway)
        system.gateway = other
        drafter.texts.clear()
        attach = generation_pb2.AttachRequest(request_id="r", from_token=len(seen))
        rest = [token async for reply in stub.Attach(attach) for token in reply.token_ids]
        assert seen + rest == greedy(PROMPT, 100)
        assert drafter.texts == {"r": {(67, 68, 69, -1, 70, 71, -1)}}


async def test_the_client_and_the_http_service_forward_references(
    redis_url: str, tokenized: list[str]
) -> None:
    async with (
        running_system(redis_url, {"ngram": NgramDrafter()}) as system,
        AsyncClient(system.address) as client,
        http_service(system.address) as http,
        http.openai() as openai,
    ):
        plain = await client.generate("hi", max_new_tokens=12)
        assert (await client.generate("hi", max_new_tokens=12, references="one text")).text == plain.text
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
        answer = await openai.chat.completions.create(
            **body, max_tokens=12, extra_body={"references": ["first", "second"]}
        )
        assert answer.choices[0].message.content == plain.text
        refused = await http.plain.post(CHAT, json={**body, "references": ["x" * 131073]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "references")
        assert "references = 131073 bytes: at most 131072 together" in refused.json()["error"]["message"]
    assert tokenized == ["one text", "first", "second"]
