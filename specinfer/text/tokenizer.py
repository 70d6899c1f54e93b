"""Read a model's tokenizer and chat template, without torch.

The gateway and the CLI use this module, as `transformers` would load torch. It reads `tokenizer.json` (with the
`tokenizers` library) and the chat template of a Hugging Face directory.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as FastTokenizer

from specinfer.errors import IncompatibleError, SettingError
from specinfer.system.derived import code_digest, derived, texts_digest
from specinfer.text.byte_decoder import BYTES, ByteDecoder, read_decoder
from specinfer.text.chat.forms import HARMONY, HARMONY_MARKS, TEXT_MARKS, ChatForm, ends_in_reasoning
from specinfer.text.chat.hidden import without_halves
from specinfer.text.chat.template import ChatEnd, ChatTemplate, Stored, stored_templates
from specinfer.text.guarded_tokenizer import GuardedTokenizer
from specinfer.text.infill import InfillTokens, infill_tokens
from specinfer.text.special_tokens import add_tokens, special_tokens, tokenizer_config

log = logging.getLogger(__name__)
REPLACEMENT = "\ufffd"
_LONG_TEXT = 2048
"""Minimum characters of a text for `encode_batch_fast`, which releases Python's lock.

`encode` keeps the lock for 0.2 ms per 1,000 characters.
"""


_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
"""SentencePiece's names of byte tokens."""


class ChatPrompt(NamedTuple):
    ids: list[int]
    in_reasoning: bool
    """True if the answer begins within reasoning."""


class Tokenizer:
    """Converts text and conversations to token ids, and token ids to text."""

    def __init__(self, fast: FastTokenizer, chat_template: Stored, specials: Mapping[str, Any]) -> None:
        """Wrap `fast`; disable its truncation, padding and dropout."""
        fast.no_truncation()
        fast.no_padding()
        if getattr(fast.model, "dropout", None):  # BPE dropout, for training only
            fast.model.dropout = None
        self._fast, self._specials = fast, dict(specials)
        self._chat = self._own_chat = ChatTemplate(chat_template, specials)
        self._bytes: dict[int, bytes] = {}
        self._files = ""
        """Hash of the files from which the tokenizer was read; empty: there are none."""
        self.parse_special_tokens = False
        """True: names of special tokens in a conversation's texts become special tokens."""

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Read the tokenizer of a model directory."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise SettingError("model", str(directory), "the directory has no tokenizer.json")
        config = tokenizer_config(directory)
        try:
            fast = FastTokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain `Exception`
            raise IncompatibleError(f"{path}: cannot be read as a tokenizer: {error}") from error
        add_tokens(fast, config)
        loaded = cls(fast, stored_templates(directory, config), special_tokens(config))
        loaded._files = texts_digest(directory)
        if problem := loaded.chat_problem:
            log.warning(
                "the model's chat template cannot be read: conversations will be refused: %s", problem
            )
        return loaded

    def use_chat_template(self, path: Path) -> None:
        """Use the chat template of a file instead of the model's.

        `text_fingerprint` still uses the model's template: a template affects prompts, not their continuation.
        """
        try:
            chat = ChatTemplate(path.read_text(encoding="utf-8-sig"), self._specials)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError("chat_template", str(path), f"cannot be read: {error}") from error
        if problem := chat.problem():
            raise SettingError("chat_template", str(path), f"is not a valid template: {problem}")
        self._chat = chat
        self.__dict__.pop("_guarded", None)

    @cached_property
    def infill(self) -> InfillTokens | None:
        """Tokens for texts with a gap; None if the model has none."""
        added = self._fast.get_added_tokens_decoder()
        return infill_tokens({what.content: token for token, what in added.items()})

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        return int(self._fast.get_vocab_size(with_added_tokens=True))

    @property
    def has_chat_template(self) -> bool:
        return bool(self._chat.texts)

    @property
    def chat_problem(self) -> str | None:
        """Reason to refuse conversations, if the chat templates are invalid."""
        return self._chat.problem()

    @property
    def chat_form(self) -> ChatForm:
        """Format of answers to conversations."""
        added = self._fast.get_added_tokens_decoder()
        form = self._chat.form()
        names = TEXT_MARKS | HARMONY_MARKS if form.calls == HARMONY else TEXT_MARKS
        marks = {what.content: token for token, what in added.items() if what.content in names}
        return replace(form, mark_tokens=marks, infill=self.infill is not None)

    def to_json(self) -> str:
        """Return the tokenizer as content of `tokenizer.json`."""
        text: str = self._fast.to_str()
        return text

    def fingerprint(self) -> str:
        """Return a hash of all tokens and their ids."""
        return self.derived(
            "vocabulary", lambda: vocabulary_fingerprint(self._fast.get_vocab(with_added_tokens=True))
        )

    def text_fingerprint(self) -> str:
        """Return a hash of all stages, special tokens and chat templates.

        Equal hashes mean equal token ids for all texts and conversations.
        """
        return self.derived("text", self._hash_of_text)

    def derived(self, name: str, compute: Callable[[], str]) -> str:
        """Return a text that follows from the tokenizer's files: computed once per directory."""
        parts = [name, self._files, code_digest(Path(__file__).parent), version("tokenizers")]
        return str(derived("tokenizers", parts, compute) if self._files else compute())

    def _hash_of_text(self) -> str:
        stages = json.loads(self.to_json())
        chat = self._own_chat.texts
        if chat.keys() <= {"default"}:  # the hash must not depend on how a single template is stored
            stored: object = chat.get("default")
        else:
            stored = chat
        parts = json.dumps([stages, stored, self._specials], sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """Encode plain text, and add the model's special tokens, such as BOS."""
        return self._encode(text, add_special_tokens=True)

    def encode_part(self, text: str) -> list[int]:
        """Encode a part of a text, without adding special tokens."""
        return self._encode(text, add_special_tokens=False)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        end: ChatEnd = ChatEnd.OPENED,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return token ids of a conversation, as `encode_prompt`."""
        return self.encode_prompt(messages, tools, end, variables).ids

    def encode_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        end: ChatEnd = ChatEnd.OPENED,
        variables: Mapping[str, Any] | None = None,
    ) -> "ChatPrompt":
        """Return a conversation's token ids, and whether it ends within reasoning.

        Names of special tokens in the messages are ordinary text unless `parse_special_tokens` is set.

        Args:
            tools: functions that may be called, in OpenAI's format; a template without support for tools gets
                tools, calls and results as text.
            end: end of the rendered conversation.
            variables: further variables of the template, such as `enable_thinking`.
        """
        parsed = self.parse_special_tokens or self._fast.encode_special_tokens
        if parsed or not self._guarded.names:
            hidden = shown = self._chat.render(messages, tools, end, variables)
        else:
            hidden = self._chat.render(messages, tools, end, variables, hider=self._guarded.hider)
            shown = self._guarded.hider.show(hidden)
        begun = str(messages[-1]["content"]) if end is ChatEnd.CONTINUED else ""
        in_reasoning = ends_in_reasoning(shown, self._chat.reasoning_marks, begun)
        if hidden is shown or not self._guarded.is_needed(hidden, shown):
            return ChatPrompt(self._encode(shown, add_special_tokens=False), in_reasoning)
        return ChatPrompt(self._guarded.encode(hidden), in_reasoning)

    @cached_property
    def _guarded(self) -> GuardedTokenizer:
        return GuardedTokenizer(self._fast, self._chat.texts.values())

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        text = without_halves(text)
        if len(text) < _LONG_TEXT:
            encoding = self._fast.encode(text, add_special_tokens=add_special_tokens)
        else:
            (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of token ids without special tokens."""
        kept = [token for token in token_ids if token not in self.special_ids]
        text: str = self._fast.decode(kept, skip_special_tokens=False)
        return text

    def decode_all(self, token_ids: Iterable[int]) -> str:
        """Return the text of token ids; special tokens appear by name."""
        text: str = self._fast.decode(list(token_ids), skip_special_tokens=False)
        return text

    def text_of_token(self, token_id: int) -> str:
        """Return a token's text after other tokens, or its name or number.

        At the start of a text, some decoders drop a token's leading blank.
        """
        text = self.decode([token_id, token_id])[len(self.decode([token_id])) :]
        return text or self._fast.id_to_token(token_id) or f"[{token_id}]"

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token that is not a text's first.

        The bytes may end within a character. A special token has its name's bytes, an unknown id its number's.
        """
        if token_id not in self._bytes:
            self._bytes[token_id] = self._find_bytes(token_id)
        return self._bytes[token_id]

    def _find_bytes(self, token_id: int) -> bytes:
        name = self._fast.id_to_token(token_id) or ""
        if self._has_byte_level and name and all(char in BYTES for char in name):
            return bytes([BYTES[char] for char in name])
        if _BYTE_TOKEN.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        return self.text_of_token(token_id).encode()

    @property
    def added_ids(self) -> frozenset[int]:
        """Ids of added tokens, including marks of tool calls and reasoning."""
        return frozenset(self._fast.get_added_tokens_decoder())

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens, which are not part of a text."""
        added = self._fast.get_added_tokens_decoder()
        return frozenset(
            token for token, what in added.items() if what.special and what.content not in TEXT_MARKS
        )

    def special_token(self, text: str) -> int | None:
        """Return the id of the special token with this name, if any."""
        token: int | None = self._fast.token_to_id(text)
        return token if token in self.special_ids else None

    def is_text(self, token_id: int) -> bool:
        return token_id not in self.special_ids and self._fast.id_to_token(token_id) is not None

    @cached_property
    def byte_decoder(self) -> ByteDecoder | None:
        """Converter of tokens to bytes; None if the decoder depends on neighbours."""
        rules = read_decoder(self._decoder)
        return None if rules is None else ByteDecoder(self._fast.id_to_token, self.special_ids, rules)

    @cached_property
    def _has_byte_level(self) -> bool:
        """True if each character of a token's name encodes one byte."""
        return '"type":"ByteLevel"' in json.dumps(self._decoder, separators=(",", ":"))

    @cached_property
    def _decoder(self) -> Any:
        return json.loads(self.derived("decoder", lambda: json.dumps(json.loads(self.to_json())["decoder"])))


def vocabulary_fingerprint(vocabulary: Mapping[str, int]) -> str:
    """Return a hash over (id, token) pairs by id, without padding.

    Padding tokens are named by their id ([PAD7]), as in llama.cpp's files of models with more ids than tokens.
    Their number may differ between models of one tokenizer.
    """
    digest = hashlib.sha256()
    for token, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        if token != f"[PAD{index}]":
            digest.update(f"{index}\0{token}\0".encode())
    return digest.hexdigest()[:16]


class TokenizerFacts(NamedTuple):
    """Values of a model directory's tokenizer that are needed at start."""

    fingerprint: str
    added_ids: frozenset[int]
    """Ids of added tokens, including marks of tool calls and reasoning."""
    vocab_size: int


def tokenizer_facts(directory: Path) -> TokenizerFacts:
    """Return facts of a directory's tokenizer, cached until `tokenizer.json` changes."""
    path = directory / "tokenizer.json"
    return _facts(directory, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=8)
def _facts(directory: Path, changed_ns: int) -> TokenizerFacts:
    """Read a tokenizer; `changed_ns`, its modification time, is a cache key."""

    def read() -> tuple[str, list[int], int]:
        loaded = Tokenizer.load(directory)
        return loaded.fingerprint(), sorted(loaded.added_ids), loaded.vocab_size

    parts = ["facts", texts_digest(directory), code_digest(Path(__file__).parent), version("tokenizers")]
    fingerprint, added_ids, vocab_size = derived("tokenizers", parts, read)
    return TokenizerFacts(fingerprint, frozenset(added_ids), vocab_size)
