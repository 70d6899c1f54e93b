"""A model's tokenizer and chat template without torch: the gateway and the CLI import this.

`transformers` would do it too, but pulls torch into the process. Reads `tokenizer.json` (the
`tokenizers` library) and the chat template of a Hugging Face directory.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer

from specinfer.byte_decoder import BYTES, ByteDecoder, read_decoder
from specinfer.errors import IncompatibleError, InvalidInputError, SettingError
from specinfer.tool_words import told_in_words

REPLACEMENT = "\ufffd"
_LONG_TEXT = 2048
"""Characters from which a text is encoded as a batch of one: `encode` holds the interpreter's lock all the
time (0.2 ms per 1,000 characters), `encode_batch_fast` lets other threads run."""


_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
"""Names that SentencePiece's vocabularies give to bytes that are no characters."""


class Tokenizer:
    """Text <-> token ids, and chat messages -> text."""

    def __init__(self, fast: FastTokenizer, chat_template: str | None, specials: Mapping[str, str]) -> None:
        self._fast, self._specials = fast, dict(specials)
        self._chat_template = chat_template
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Read the tokenizer of a model directory.

        Raises:
            SettingError: if there is no `tokenizer.json`.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise SettingError("tokenizer", str(directory), "no tokenizer.json there")
        config_path = directory / "tokenizer_config.json"
        config = json.loads(config_path.read_text()) if config_path.is_file() else {}
        template_path = directory / "chat_template.jinja"
        template = template_path.read_text() if template_path.is_file() else config.get("chat_template")
        return cls(FastTokenizer.from_file(str(path)), template, _special_tokens(config))

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        return int(self._fast.get_vocab_size(with_added_tokens=True))

    @property
    def has_chat_template(self) -> bool:
        """True if the model was taught conversations."""
        return self._chat_template is not None

    def to_json(self) -> str:
        """Return the content of its `tokenizer.json`."""
        text: str = self._fast.to_str()
        return text

    def fingerprint(self) -> str:
        """Return a hash that is equal for tokenizers with the same token for every id."""
        return vocabulary_fingerprint(self._fast.get_vocab(with_added_tokens=True))

    def text_fingerprint(self) -> str:
        """Return a hash that is equal for tokenizers with the same tokens and the same conversations.

        It covers vocabulary, merges, normalisation and all other stages, special tokens and chat template.
        """
        stages = json.loads(self.to_json())
        parts = json.dumps([stages, self._chat_template, self._specials], sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """Return token ids of plain text, with the special tokens that the model expects around it."""
        return self._encode(text, add_special_tokens=True)

    def encode_part(self, text: str) -> list[int]:
        """Return token ids of a piece of text, without the special tokens around a whole one."""
        return self._encode(text, add_special_tokens=False)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return token ids of a conversation, ready for the assistant's answer.

        Args:
            tools: functions that may be called, as OpenAI's API has them; a template that does not know tools
                gets them, calls and results in words.

        Raises:
            InvalidInputError: if the template refuses the messages.
            IncompatibleError: if the model has no chat template.
        """
        if self._chat_template is None:
            raise IncompatibleError("the model has no chat template: send plain text or token ids")
        knows = "tools" in self._chat_template
        turns, tools = (messages, tools) if knows else (told_in_words(messages, tools), ())
        try:
            text = self._template.render(
                messages=turns, tools=list(tools) or None, add_generation_prompt=True, **self._specials
            )
        except TemplateError as error:
            raise InvalidInputError("chat", [m.get("role") for m in messages], str(error)) from error
        return self._encode(text, add_special_tokens=False)

    @cached_property
    def _template(self) -> Template:
        """Compiled chat template; compiling takes milliseconds."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        # as `transformers` has it: templates write JSON for models, not for pages
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        return environment.from_string(self._chat_template or "")

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) < _LONG_TEXT:
            encoding = self._fast.encode(text, add_special_tokens=add_special_tokens)
        else:
            (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        text: str = self._fast.decode(list(token_ids), skip_special_tokens=True)
        return text

    def text_of_token(self, token_id: int) -> str:
        """Return a token's text behind others; the name of a special token, the number of an unknown one.

        A token that stands alone may say less: some decoders drop a blank at the beginning.
        """
        text = self.decode([token_id, token_id])[len(self.decode([token_id])) :]
        return text or self._fast.id_to_token(token_id) or f"[{token_id}]"

    def token_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes behind others, which may be a part of a character.

        A special token has its name, a number without token the number.
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

    @cached_property
    def _skipped(self) -> frozenset[int]:
        added = self._fast.get_added_tokens_decoder()
        return frozenset(token for token, what in added.items() if what.special)

    def tells(self, token_id: int) -> bool:
        """Return whether a token is a part of the text: special ones and numbers without token are not."""
        return token_id not in self._skipped and self._fast.id_to_token(token_id) is not None

    @cached_property
    def byte_decoder(self) -> ByteDecoder | None:
        """Rules from tokens to bytes; None if a token's text depends on its neighbours."""
        rules = read_decoder(json.loads(self.to_json())["decoder"])
        return None if rules is None else ByteDecoder(self._fast.id_to_token, self._skipped, rules)

    @cached_property
    def _has_byte_level(self) -> bool:
        """True if each character of a token stands for a byte."""
        decoder = json.loads(self.to_json())["decoder"]
        return '"type":"ByteLevel"' in json.dumps(decoder, separators=(",", ":"))


def vocabulary_fingerprint(vocabulary: Mapping[str, int]) -> str:
    """Return a hash over (id, token) pairs in order of id."""
    digest = hashlib.sha256()
    for token, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        digest.update(f"{index}\0{token}\0".encode())
    return digest.hexdigest()[:16]


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    values = {name: config.get(name) for name in names}
    return {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in values.items()
        if value
    }


def _refuse(message: str) -> None:
    raise TemplateError(message)
