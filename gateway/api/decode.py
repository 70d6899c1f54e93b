"""Decode `GenerateRequest` into `GenerationRequest`: set defaults and check all bounds.

Invariant: the event loop never tokenizes a long text. A few threads do that.
"""

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gateway.api.callers import Caller
from gateway.api.conversation import end_of, texts_of, tools_of, turns_of, variables_of
from gateway.api.turns import FairSemaphore, FairThreads
from specinfer.errors import DeniedError, IncompatibleError, InvalidInputError
from specinfer.scheduling.request import MAX_STOP_STRINGS, GenerationRequest, Speculation
from specinfer.text.constraints.constraint import Constraint
from specinfer.text.infill import required
from specinfer.text.tokenizer import ChatPrompt, Tokenizer
from specinfer.v1 import common_pb2, generation_pb2
from specinfer.wire.codec import decode_constraint, decode_sampling

T = TypeVar("T")
DEFAULT_MAX_NEW_TOKENS = 128
FILL_CONTEXT = 0
"""Value of `max_new_tokens` that allows answers up to the context's end."""
_NOT_READ_YET = (0,)
"""Token ids of a placeholder prompt, used until the prompt is tokenized."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of one request, in addition to the target's limits."""

    request_id: int = 256
    """Maximum characters of a request id."""
    bytes_per_token: int = 32
    """Maximum bytes of text for each token of the context.

    It limits the time of a tokenizing thread. Text usually has three to five bytes per token; only runs of
    blanks have more.
    """
    messages: int = 1024
    """Maximum messages of a conversation."""
    stop_strings: int = MAX_STOP_STRINGS
    stop_string: int = 256
    """Maximum characters of a stop string; a stream delays as much text."""
    stop_token_ids: int = 256
    cache_salt: int = 256
    """Maximum characters of a cache's salt."""
    priority: int = 1000
    """Maximum absolute priority. A caller's key may set a lower maximum."""
    inline_bytes: int = 2048
    """Maximum bytes of texts tokenized without a thread."""
    references: int = 64
    files: int = 64
    """Maximum files next to a text with a gap."""
    reference_bytes: int = 2**17
    """Maximum bytes of a request's references together.

    A token has at least one byte, so this also limits their tokens.
    """
    tokenizing: int = 2
    """Maximum texts tokenized at once, as passes need the cores, too."""


class RequestDecoder:
    """Checks and decodes callers' messages."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        max_context_len: int,
        eos_token_ids: Sequence[int],
        limits: RequestLimits | None = None,
        *,
        longest: int | None = None,
        check_constraint: Callable[[Constraint], Awaitable[None]] | None = None,
        is_checked: Callable[[Constraint], bool] = lambda _: False,
        reads_references: Callable[[], bool] = lambda: True,
        check_quota: Callable[[str, str, Caller], Awaitable[None]] | None = None,
        default_sampling: common_pb2.SamplingParams | None = None,
    ) -> None:
        """Create a decoder with the limits of a target.

        Args:
            longest: maximum tokens of a request, prompt included; None: `max_context_len`.
            check_constraint: raises an error for an invalid constraint; None: constraints are refused.
            is_checked: returns whether the result of `check_constraint` is cached.
            reads_references: returns whether any drafter uses references; if not, references are dropped.
            check_quota: takes request id, idempotency key and caller; raises if the quota is used up.
            default_sampling: values of unset sampling parameters.
        """
        self._default_sampling = default_sampling or common_pb2.SamplingParams()
        self._check_constraint, self._reads_references = check_constraint, reads_references
        self._is_checked, self._check_quota = is_checked, check_quota
        self._longest = longest or max_context_len
        self._tokenizer, self._eos = tokenizer, tuple(eos_token_ids)
        self._vocab_size, self._max_context_len = vocab_size, max_context_len
        self._limits = limits or RequestLimits()
        self._threads, self._checking = FairThreads(self._limits.tokenizing, "tokenizing"), FairSemaphore(2)

    async def decode(self, message: generation_pb2.GenerateRequest, caller: Caller) -> GenerationRequest:
        """Return the request of a message, with all defaults set."""
        asked = self._fields(message, caller)
        await self._check_quota_first(message, asked, caller)
        constraint = asked.constraint
        if constraint is not None and not constraint.has_two_starts:
            await self._check(constraint, caller)
        prompt, in_reasoning = await self._prompt(message, caller)
        if constraint is not None and constraint.has_two_starts:
            constraint = constraint.in_reasoning() if in_reasoning else constraint
            await self._check(constraint, caller)
        limit = asked.max_new_tokens
        if message.HasField("max_new_tokens") and message.max_new_tokens == FILL_CONTEXT:
            limit = self._room_after(prompt)
        elif message.cut_to_context:
            limit = min(limit, self._room_after(prompt))
        references = await self._references(message, asked.speculation, caller)
        request = replace(
            asked,
            prompt=tuple(prompt),
            max_new_tokens=limit,
            references=references,
            constraint=constraint,
            begins_in_reasoning=in_reasoning,
        )
        request.check_against(self._vocab_size, self._max_context_len)
        return request

    async def tokenize(self, message: generation_pb2.TokenizeRequest, caller: Caller) -> Sequence[int]:
        """Return the tokens of a prompt."""
        match message.WhichOneof("prompt"):
            case "chat":
                return (await self._chat(message.chat, caller))[0]
            case "text":
                plain = message.no_special_tokens
                encode = self._tokenizer.encode_part if plain else self._tokenizer.encode
                size = self._check_bytes("text", [message.text])
                return await self._tokenize(size, caller, lambda: encode(message.text))
        raise InvalidInputError("prompt", None, "needs text or chat")

    async def detokenize(self, ids: Sequence[int], caller: Caller) -> str:
        """Return the text of token ids."""
        _check_number("ids", ids, self._max_context_len)
        for token in ids:
            if token >= self._vocab_size:
                raise InvalidInputError(
                    "ids", str(token), f"must be a token id from 0 to {self._vocab_size - 1}"
                )
        (text,) = await self._tokenize(len(ids), caller, lambda: [self._tokenizer.decode_all(ids)])
        return text

    def _fields(self, message: generation_pb2.GenerateRequest, caller: Caller) -> GenerationRequest:
        """Decode all fields except the prompt and the references."""
        self.check_request_id(message.request_id)
        self._check_priority(message.priority, caller)
        self._check_stops(message)
        self._check_references(message.references)
        if message.speculation not in (0, *Speculation):
            raise InvalidInputError("speculation", message.speculation, f"must be 0 to {max(Speculation)}")
        if len(message.cache_salt) > self._limits.cache_salt:
            raise InvalidInputError(
                "cache_salt", len(message.cache_salt), f"at most {self._limits.cache_salt}", "characters"
            )
        sampling = common_pb2.SamplingParams()
        sampling.CopyFrom(self._default_sampling)
        sampling.MergeFrom(message.sampling)
        eos: Collection[int] = () if message.ignore_eos else self._eos
        if eos and message.HasField("infill"):
            eos = required(self._tokenizer.infill).ends.union(eos)
        limit = message.max_new_tokens if message.HasField("max_new_tokens") else DEFAULT_MAX_NEW_TOKENS
        return GenerationRequest(
            request_id=message.request_id or secrets.token_hex(8),
            prompt=_NOT_READ_YET,
            max_new_tokens=limit or 1,  # FILL_CONTEXT is replaced when the prompt is known
            sampling=decode_sampling(sampling, default_seed=secrets.randbits(63)),
            stop_strings=tuple(message.stop_strings),
            stop_token_ids=frozenset([*message.stop_token_ids, *eos]),
            priority=message.priority,
            speculation=Speculation(message.speculation or Speculation.TREE),
            logprobs=message.logprobs,
            top_logprobs=message.top_logprobs,
            caller=caller.name,
            deadline_s=message.deadline_seconds if message.HasField("deadline_seconds") else None,
            constraint=decode_constraint(message.constraint),
            no_training=message.no_training or caller.no_training,
            cache_salt=message.cache_salt,
        )

    async def _check_quota_first(
        self, message: generation_pb2.GenerateRequest, asked: GenerationRequest, caller: Caller
    ) -> None:
        """Check a caller's quota before a long text or new constraint.

        The quota of other requests is checked when they are recorded.
        """
        if self._check_quota is None or not (caller.max_concurrent or caller.tokens_per_minute):
            return
        new = asked.constraint is not None and not self._is_checked(asked.constraint)
        if new or message.ByteSize() > self._limits.inline_bytes:
            await self._check_quota(asked.request_id, idempotency_key_of(message, caller), caller)

    async def _check(self, constraint: Constraint, caller: Caller) -> None:
        if self._check_constraint is None:
            raise IncompatibleError(f"{constraint.field}: this gateway accepts no constraints")
        if self._is_checked(constraint):
            await self._check_constraint(constraint)
            return
        async with self._checking.take(caller):
            await self._check_constraint(constraint)

    def _room_after(self, prompt: Sequence[int]) -> int:
        room = self._longest - len(prompt)
        if room < 1:
            reason = f"over the context of {self._longest} tokens"
            raise InvalidInputError("prompt + max_new_tokens", f"{len(prompt)} + 1", reason)
        return room

    def check_request_id(self, request_id: str) -> None:
        """Check a request id for use in keys, errors and logs."""
        max_length = self._limits.request_id
        if len(request_id) > max_length:
            raise InvalidInputError("request_id", request_id, f"longer than {max_length} characters")
        if not request_id.isprintable():
            raise InvalidInputError("request_id", request_id, "must be printable, without line breaks")

    def _check_priority(self, priority: int, caller: Caller) -> None:
        max_priority = self._limits.priority
        if abs(priority) > max_priority:
            raise InvalidInputError("priority", priority, f"must be in [-{max_priority}, {max_priority}]")
        if priority > caller.max_priority:
            raise DeniedError(
                f"priority = {priority}: the maximum of key {caller.name!r} is {caller.max_priority}"
            )

    def _check_stops(self, message: generation_pb2.GenerateRequest) -> None:
        limits = self._limits
        _check_number("stop_strings", message.stop_strings, limits.stop_strings)
        _check_number("stop_token_ids", message.stop_token_ids, limits.stop_token_ids)
        longest = max(map(len, message.stop_strings), default=0)
        if longest > limits.stop_string:
            raise InvalidInputError(
                "stop_strings", longest, f"at most {limits.stop_string} in one string", "characters"
            )

    def _check_references(self, texts: Sequence[str]) -> None:
        _check_number("references", texts, self._limits.references)
        if "" in texts:
            raise InvalidInputError("references", "", "every reference must have text")
        size, max_bytes = sum(len(text.encode()) for text in texts), self._limits.reference_bytes
        if size > max_bytes:
            raise InvalidInputError("references", size, f"at most {max_bytes} together", "bytes")

    async def _prompt(
        self, message: generation_pb2.GenerateRequest, caller: Caller
    ) -> tuple[Sequence[int], bool]:
        """Return the prompt's token ids, and whether it ends within reasoning."""
        match message.WhichOneof("prompt"):
            case "text":
                size = self._check_bytes("text", [message.text])
                encode = self._tokenizer.encode
                return await self._tokenize(size, caller, lambda: encode(message.text)), False
            case "chat":
                return await self._chat(message.chat, caller)
            case "infill":
                return await self._infill(message.infill, caller), False
            case "tokens":
                _check_number("tokens.ids", message.tokens.ids, self._max_context_len)
                return message.tokens.ids, False
        raise InvalidInputError("prompt", None, "needs text, chat, tokens or infill")

    async def _infill(self, gap: generation_pb2.Infill, caller: Caller) -> Sequence[int]:
        tokens, encode = required(self._tokenizer.infill), self._tokenizer.encode_part
        _check_number("infill.files", gap.files, self._limits.files)
        files = [(file.name, file.text) for file in gap.files]
        texts = (gap.prefix, gap.suffix, gap.begun)
        size = self._check_bytes("infill", [*texts, *(text for file in files for text in file)])
        head = self._tokenizer.encode("")
        return await self._tokenize(size, caller, lambda: head + tokens.prompt(encode, texts, files))

    async def _references(
        self, message: generation_pb2.GenerateRequest, speculation: Speculation, caller: Caller
    ) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of each reference; () if no speculator uses references."""
        texts, encode = message.references, self._tokenizer.encode_part
        if not texts or speculation is Speculation.OFF or not self._reads_references():
            return ()
        size = sum(map(len, texts))
        return tuple(await self._tokenize(size, caller, lambda: [tuple(encode(text)) for text in texts]))

    async def _chat(self, chat: generation_pb2.ChatMessages, caller: Caller) -> ChatPrompt:
        if not chat.messages:
            raise InvalidInputError("chat.messages", [], "must not be empty")
        _check_number("chat.messages", chat.messages, self._limits.messages)
        self._check_bytes("chat.messages", list(texts_of(chat)))
        parts = turns_of(chat.messages), tools_of(chat), end_of(chat), variables_of(chat)
        # the event loop must not wait for the template's process
        return await self._threads.run(caller, lambda: self._tokenizer.encode_prompt(*parts))

    def _check_bytes(self, field: str, texts: Sequence[str]) -> int:
        size = sum(len(text.encode()) for text in texts)
        per_token, context = self._limits.bytes_per_token, self._max_context_len
        if size > per_token * context:
            reason = f"at most {per_token * context} ({per_token} per token of the context of {context})"
            raise InvalidInputError(field, size, reason, "bytes")
        return size

    async def _tokenize(self, size: int, caller: Caller, work: Callable[[], T]) -> T:
        return work() if size <= self._limits.inline_bytes else await self._threads.run(caller, work)


def _check_number(field: str, items: Sequence[object], max_number: int) -> None:
    if len(items) > max_number:
        raise InvalidInputError(field, len(items), f"at most {max_number}", "entries")


def idempotency_key_of(message: generation_pb2.GenerateRequest, caller: Caller) -> str:
    """Return a hash of caller and message, without the request id.

    A repeated message has the same hash. Values that the gateway draws, such as the seed, are not part of the hash.
    """
    content = generation_pb2.GenerateRequest()
    content.CopyFrom(message)
    content.ClearField("request_id")
    return hashlib.sha256(caller.name.encode() + content.SerializeToString(deterministic=True)).hexdigest()
