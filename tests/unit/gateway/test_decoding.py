"""Messages of callers become requests, or errors that name the field and its limit."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from gateway.api.callers import ANYBODY, Caller
from gateway.api.conversation import texts_of
from gateway.api.decode import RequestDecoder, RequestLimits
from specinfer.errors import DeniedError, IncompatibleError, InvalidInputError
from specinfer.scheduling.request import GenerationRequest, Speculation
from specinfer.text.constraints.constraint import Constraint
from specinfer.text.tokenizer import Tokenizer
from specinfer.v1 import common_pb2, generation_pb2
from tests.support.system import EOS, VOCABULARY, ascii_tokenizer, text_of

CONTEXT = 512
TOKENIZER = ascii_tokenizer()


def decoder(tokenizer: Tokenizer = TOKENIZER, **limits: int) -> RequestDecoder:
    return RequestDecoder(tokenizer, VOCABULARY, CONTEXT, [EOS], RequestLimits(**limits))


async def decoded(caller: Caller = ANYBODY, **fields: Any) -> GenerationRequest:
    if not {"text", "chat", "tokens"} & fields.keys():
        fields["tokens"] = generation_pb2.TokenIds(ids=[5, 17, 3])
    return await decoder().decode(generation_pb2.GenerateRequest(**fields), caller)


def chat(*messages: tuple[str, str]) -> generation_pb2.ChatMessages:
    turns = [generation_pb2.ChatMessage(role=role, content=content) for role, content in messages]
    return generation_pb2.ChatMessages(messages=turns)


async def test_defaults_are_filled_in() -> None:
    request = await decoded()
    assert (request.prompt, request.max_new_tokens) == ((5, 17, 3), 128)
    assert (request.speculation, request.stop_token_ids) == (Speculation.TREE, {EOS})
    assert (request.priority, request.caller, request.deadline_s) == (0, "", None)
    assert request.sampling.temperature == 1.0
    other = await decoded()
    assert request.request_id != other.request_id
    assert request.sampling.seed != other.sampling.seed


async def test_every_field_arrives() -> None:
    request = await decoded(
        Caller("alice", max_priority=3),
        request_id="mine",
        max_new_tokens=7,
        stop_strings=["."],
        stop_token_ids=[9],
        ignore_eos=True,
        priority=3,
        speculation=2,
        logprobs=True,
        deadline_seconds=1.5,
    )
    assert (request.request_id, request.max_new_tokens, request.stop_strings) == ("mine", 7, (".",))
    assert (request.stop_token_ids, request.priority, request.caller) == ({9}, 3, "alice")
    assert (request.speculation, request.logprobs, request.deadline_s) == (Speculation.SEQUENCE, True, 1.5)


@pytest.mark.parametrize("length", [3, 400])
async def test_text_and_conversations_are_tokenized(length: int) -> None:
    """Short texts are tokenized directly, long ones in a thread."""
    text = "hi! " * (length // 4) + "hi!"
    tokenizing = decoder(inline_bytes=100)
    message = generation_pb2.GenerateRequest(text=text, max_new_tokens=1)
    assert text_of((await tokenizing.decode(message, ANYBODY)).prompt) == text
    turns = chat(("system", "be"), ("user", text))
    message = generation_pb2.GenerateRequest(chat=turns, max_new_tokens=1)
    assert text_of((await tokenizing.decode(message, ANYBODY)).prompt) == f"s:be;u:{text};a:"


async def test_a_gap_has_the_models_tokens_and_ends() -> None:
    fast = FastTokenizer.from_str(TOKENIZER.to_json())
    marks = [AddedToken(f"<|fim_{name}|>", special=True) for name in ("prefix", "suffix", "middle", "pad")]
    fast.add_special_tokens(marks)
    before, between, after, pad = (fast.token_to_id(mark.content) for mark in marks)
    decoding = RequestDecoder(Tokenizer(fast, "", {}), VOCABULARY + 4, CONTEXT, [EOS], RequestLimits())
    gap = generation_pb2.Infill(prefix="a", suffix="b", begun="c")
    request = await decoding.decode(generation_pb2.GenerateRequest(infill=gap), ANYBODY)
    a, b, c = TOKENIZER.encode("abc")
    assert request.prompt == (before, a, between, b, after, c)
    assert request.stop_token_ids == {EOS, before, between, after, pad}
    endless = generation_pb2.GenerateRequest(infill=gap, ignore_eos=True)
    assert (await decoding.decode(endless, ANYBODY)).stop_token_ids == set()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "long text": (
        {"text": "x" * 16385},
        "text = 16385 bytes: at most 16384 (32 per token of the context of 512)",
    ),
    "bytes, not characters": ({"text": "\u20ac" * 5462}, "text = 16386 bytes"),
    "long conversation": (
        {"chat": chat(("user", "x" * 9000), ("assistant", "x" * 9000))},
        "chat.messages = 18000 bytes: at most 16384",
    ),
    "many messages": ({"chat": chat(*[("user", "")] * 1025)}, "chat.messages = 1025 entries: at most 1024"),
    "unknown role": (
        {"chat": chat(("user", "hi"), ("robot", "hi"))},
        "chat.messages[1].role = 'robot': must be one of system, user, assistant",
    ),
    "no messages": ({"chat": chat()}, "chat.messages = []: must not be empty"),
    "many tokens": (
        {"tokens": generation_pb2.TokenIds(ids=[5] * 513)},
        "tokens.ids = 513 entries: at most 512",
    ),
    "over the context": (
        {"text": "x" * 500, "max_new_tokens": 13},
        "prompt + max_new_tokens = '500 + 13': over the context of 512",
    ),
    "foreign token": (
        {"tokens": generation_pb2.TokenIds(ids=[5, 97])},
        "prompt = 97: must be a token id from 0 to 96",
    ),
    "foreign stop token": (
        {"stop_token_ids": [4000]},
        "stop_token_ids = 4000: must be a token id from 0 to 96",
    ),
    "stop strings": ({"stop_strings": ["x"] * 17}, "stop_strings = 17 entries: at most 16"),
    "a long stop string": (
        {"stop_strings": ["x", "x" * 257]},
        "stop_strings = 257 characters: at most 256 in one string",
    ),
    "stop token ids": ({"stop_token_ids": [5] * 257}, "stop_token_ids = 257 entries: at most 256"),
    "long id": ({"request_id": "x" * 257}, "longer than 256 characters"),
    "id with a line break": (
        {"request_id": "a\nERROR all is lost"},
        r"request_id = 'a\nERROR all is lost': must be printable",
    ),
    "id that hides text": ({"request_id": "a\u202eb"}, r"request_id = 'a\u202eb': must be printable"),
    "priority": ({"priority": 1001}, "priority = 1001: must be in [-1000, 1000]"),
    "low priority": ({"priority": -1001}, "priority = -1001: must be in [-1000, 1000]"),
    "speculation": ({"speculation": 9}, "speculation = 9: must be 0 to 4"),
    "no time": ({"deadline_seconds": 0.0}, "deadline_seconds = 0.0: must be a finite number > 0"),
    "endless time": ({"deadline_seconds": float("inf")}, "deadline_seconds = inf: must be a finite number"),
    "NaN time": ({"deadline_seconds": float("nan")}, "deadline_seconds = nan: must be a finite number"),
    "no new tokens": ({"max_new_tokens": -1}, "max_new_tokens = -1: must be positive"),
    "references": ({"references": ["x"] * 65}, "references = 65 entries: at most 64"),
    "an empty reference": ({"references": ["x", ""]}, "references = '': every reference must have text"),
    "long references": (
        {"references": ["x" * 100_000, "\u20ac" * 10_358]},
        "references = 131074 bytes: at most 131072 together",
    ),
    "top_p": ({"sampling": {"top_p": 0.0}}, "top_p = 0.0"),
}


@pytest.mark.parametrize("name", BAD)
async def test_every_bound_is_named(name: str) -> None:
    fields, message = BAD[name]
    with pytest.raises(InvalidInputError) as caught:
        await decoded(**fields)
    assert message in str(caught.value)


def test_every_text_of_a_conversation_counts() -> None:
    """A new field of the message is counted, or named here; roles are few words."""
    fields = [*generation_pb2.ChatMessage.DESCRIPTOR.fields, *generation_pb2.ToolCall.DESCRIPTOR.fields]
    texts: dict[str, Any] = {
        field.name: f"<{field.full_name}>" for field in fields if field.type == field.TYPE_STRING
    }
    own = {field.name for field in generation_pb2.ToolCall.DESCRIPTOR.fields}
    call = generation_pb2.ToolCall(**{name: text for name, text in texts.items() if name in own})
    message = generation_pb2.ChatMessage(**{name: text for name, text in texts.items() if name not in own})
    message.tool_calls.append(call)
    counted = "".join(texts_of(generation_pb2.ChatMessages(messages=[message])))
    assert [name for name, text in texts.items() if text not in counted] == ["role"]


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "x" * 511, "max_new_tokens": 1},
        {"tokens": generation_pb2.TokenIds(ids=[5] * 511), "max_new_tokens": 1},
        {"chat": chat(*[("user", "")] * 100), "max_new_tokens": 1},
        {"stop_strings": ["x" * 256] * 16, "stop_token_ids": [5] * 256},
        {"request_id": "é" * 256, "priority": -1000},
        {"deadline_seconds": 1e-9},
        {"references": ["x" * 2048] * 64},
    ],
    ids=["text", "tokens", "chat", "stops", "id", "deadline", "references"],
)
async def test_values_at_the_limits_are_accepted(fields: dict[str, Any]) -> None:
    await decoded(**fields)


@pytest.mark.parametrize("length", [3, 4000])
async def test_references_are_tokenized_separately(length: int) -> None:
    """Short texts are tokenized directly, long ones in a thread."""
    texts = ["hi! " * (length // 4) + "hi!", "so long"]
    request = await decoded(references=texts)
    assert [text_of(tokens) for tokens in request.references] == texts
    assert (await decoded(references=texts, speculation=3)).references == (), "no drafts are made for it"


async def test_no_prompt_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="prompt = None:"):
        await decoder().decode(generation_pb2.GenerateRequest(), ANYBODY)
    with pytest.raises(InvalidInputError, match="prompt = '':"):
        await decoded(text="")


async def test_a_callers_priority_is_capped() -> None:
    caller = Caller("batch-jobs", max_priority=-1)
    assert (await decoded(caller, priority=-1)).priority == -1
    with pytest.raises(DeniedError, match="priority = 0:"):
        await decoded(caller)


async def test_a_model_without_a_template_takes_no_conversations() -> None:
    plain = Tokenizer(TOKENIZER._fast, None, {})
    message = generation_pb2.GenerateRequest(chat=chat(("user", "hi")))
    with pytest.raises(IncompatibleError, match="no chat template"):
        await decoder(plain).decode(message, ANYBODY)


class Gate(Tokenizer):
    """A tokenizer that blocks until `opened` is set, and counts simultaneous calls."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER._fast, None, {})
        self.opened = threading.Event()
        self.lock, self.active, self.max_active = threading.Lock(), 0, 0

    def encode(self, text: str) -> list[int]:
        with self.lock:
            self.active += 1
            self.max_active = max(self.max_active, self.active)
        assert self.opened.wait(30), "the gate was not opened"
        with self.lock:
            self.active -= 1
        return super().encode(text)


async def test_long_texts_are_tokenized_in_a_few_threads() -> None:
    gate = Gate()
    tokenizing = decoder(gate, inline_bytes=10, tokenizing=2)
    long = generation_pb2.GenerateRequest(text="x" * 100, max_new_tokens=1)
    tasks = [asyncio.create_task(tokenizing.decode(long, ANYBODY)) for _ in range(6)]
    tasks[0].cancel()
    while gate.active < 2:  # noqa: ASYNC110  # threads send no signal; the loop runs while they wait
        await asyncio.sleep(0.001)
    tasks[1].cancel()  # its thread continues and still counts
    await asyncio.sleep(0.01)
    gate.opened.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, GenerationRequest) for result in done] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert gate.max_active == 2


class Order(Tokenizer):
    """A tokenizer that records the first character of each text in order."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER._fast, None, {})
        self.seen = ""

    def encode(self, text: str) -> list[int]:
        self.seen += text[0]
        return super().encode(text)


async def test_long_texts_and_constraints_of_one_caller_do_not_delay_another() -> None:
    """Callers take turns at the tokenizer and at the check of constraints that were not checked before."""
    order, checked, seen = Order(), "", {"known"}

    async def check(constraint: Constraint) -> None:
        nonlocal checked
        checked += constraint.source[0]
        await asyncio.sleep(0)

    decoding = RequestDecoder(
        *(order, VOCABULARY, CONTEXT, [EOS], RequestLimits(inline_bytes=10, tokenizing=1)),
        check_constraint=check,
        is_checked=lambda constraint: constraint.source in seen,
    )

    def sent(name: str, **fields: Any) -> "asyncio.Task[GenerationRequest]":
        message = generation_pb2.GenerateRequest(text=name * 100, max_new_tokens=1, **fields)
        return asyncio.create_task(decoding.decode(message, Caller(name)))

    await asyncio.gather(*[sent("e") for _ in range(20)], *[sent("g") for _ in range(2)])
    assert order.seen.rindex("g") <= 4
    forms = [common_pb2.Constraint(regex=f"{name}{i}") for name in "eg" for i in range(20)]
    known = common_pb2.Constraint(regex="known")
    tasks = [sent("e", constraint=form) for form in forms[:20]]
    tasks += [sent("g", constraint=form) for form in forms[20:22]] + [sent("g", constraint=known)]
    await asyncio.gather(*tasks)
    assert checked.rindex("g") <= 5
    assert checked.index("k") <= 2, "a checked constraint does not wait"


async def test_nothing_is_tokenized_for_a_request_with_a_bad_field() -> None:
    gate = Gate()  # stays shut: tokenizing would fail
    message = generation_pb2.GenerateRequest(text="hi", max_new_tokens=-1)
    with pytest.raises(InvalidInputError, match="max_new_tokens = -1"):
        await decoder(gate).decode(message, ANYBODY)
    assert gate.max_active == 0


async def test_an_answer_is_cut_to_the_room_only_if_asked() -> None:
    ids = generation_pb2.TokenIds(ids=[5] * 500)
    assert (await decoded(tokens=ids, max_new_tokens=10**9, cut_to_context=True)).max_new_tokens == 12
    assert (await decoded(tokens=ids, max_new_tokens=3, cut_to_context=True)).max_new_tokens == 3
    full = generation_pb2.TokenIds(ids=[5] * 512)
    for limit in (0, 3):
        with pytest.raises(
            InvalidInputError, match=r"prompt \+ max_new_tokens = '512 \+ 1': over the context"
        ):
            await decoded(tokens=full, max_new_tokens=limit, cut_to_context=True)


async def test_a_salt_is_bounded() -> None:
    assert (await decoded(cache_salt="a")).cache_salt == "a"
    with pytest.raises(InvalidInputError, match="cache_salt = 257"):
        await decoded(cache_salt="a" * 257)


@pytest.mark.parametrize("thinks", [True, False])
async def test_a_grammar_starts_where_this_prompt_ends(thinks: bool, tmp_path: Path) -> None:
    tokenizer, path = ascii_tokenizer(), tmp_path / "thinks.jinja"
    path.write_text("{{ messages[0].content }}{% if think %}<think>\n{% endif %}")
    tokenizer.use_chat_template(path)
    seen: list[Constraint] = []

    async def check(constraint: Constraint) -> None:
        seen.append(constraint)

    decoding = RequestDecoder(tokenizer, VOCABULARY, CONTEXT, [EOS], check_constraint=check)
    turns = chat(("user", "hi"))
    turns.variables = '{"think": true}' if thinks else ""
    grammar = 'start: "a"\nstart_in_reasoning: "b" start_c\nstart_c: "c"'
    message = generation_pb2.GenerateRequest(
        chat=turns, max_new_tokens=1, constraint=common_pb2.Constraint(grammar=grammar)
    )
    request = await decoding.decode(message, ANYBODY)
    swapped = 'start_outside: "a"\nstart: "b" start_c\nstart_c: "c"'
    assert request.begins_in_reasoning == thinks
    assert [constraint.source for constraint in seen] == [swapped if thinks else grammar]
    assert request.constraint == seen[0]
