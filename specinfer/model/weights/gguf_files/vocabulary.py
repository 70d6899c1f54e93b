"""Converts a GGUF file's tokenizer to files of a model directory.

An answer ends at the tokens at which llama.cpp ends it: those of the keys `eos`, `eot` and `eom`, and tokens named like
known ends of turns, as many files lack these keys.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.weights.gguf_files.keys import checked_id

_PREFIX = "tokenizer.ggml."
_TEMPLATES = "tokenizer.chat_template."
_KEYS = ("eos", "eot", "eom")
_FOR_TRANSFORMERS = {
    "model": "tokenizer_type",
    "pre": "pre_tokenizer_type",
    "tokens": "tokens",
    "scores": "scores",
    "token_type": "token_type",
    "merges": "merges",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unknown_token_id": "unk_token_id",
    "padding_token_id": "pad_token_id",
    "add_space_prefix": "add_prefix_space",
}
"""Keys of a file -> names in `transformers`' converter."""
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""Special tokens: name in `transformers` -> name in keys of a file."""
_CONTROL = 3
"""Number of control tokens in `tokenizer.ggml.token_type`."""
_TURN_ENDS = frozenset(
    {
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>"),
        *("<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
        *("<｜end▁of▁sentence｜>", "<|fim_pad|>", "<|fim_repo|>", "<|repo_name|>", "<|file_sep|>"),
    }
)
"""Names of tokens that end an answer in any vocabulary."""
_SEQUENCE_ENDS = frozenset({"</s>", "<eos>"})
"""Names that end an answer if they are control tokens."""
_BOS_BY_DEFAULT = frozenset(
    {
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        *("jina-v5-nano", "tekken"),
    }
)
"""Values of `tokenizer.ggml.pre` with which texts begin with BOS."""
_AS_GPT2 = frozenset({"default", "gpt-2", "phi-2", "smollm", "exaone4", "mellum", "a.x-4.0", "gigachat"})
"""Values of `tokenizer.ggml.pre` that split texts like GPT-2."""


class Vocabulary:
    """A GGUF file's metadata about its tokenizer."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self.tokens: Sequence[str] = self._get("tokens", ())
        self._types: Sequence[int] = self._get("token_type", ())

    def _get(self, name: str, default: Any = None) -> Any:
        return self._fields.get(_PREFIX + name, default)

    def end_tokens(self) -> list[int]:
        """Return ids of tokens that end an answer: by key, by name."""
        keyed = [token for name in _KEYS if (token := self._token(name)) is not None]
        return list(dict.fromkeys([*keyed, *sorted(set(self._named_ends()))]))

    def _token(self, name: str) -> int | None:
        return checked_id(f"{_PREFIX}{name}_token_id", self._fields.get, len(self.tokens))

    def _named_ends(self) -> Iterator[int]:
        ends = set(_TURN_ENDS)
        if {"<|return|>", "<|call|>"} <= set(self.tokens):
            ends.remove("<|end|>")  # in gpt-oss it ends one of several messages in an answer
        for token, name in enumerate(self.tokens):
            control = bool(self._types) and self._types[token] == _CONTROL
            if name in ends or (name in _SEQUENCE_ENDS and control):
                yield token

    def chat_templates(self) -> dict[str, str]:
        """Return chat templates besides the default one, by name."""
        templates = {
            key.removeprefix(_TEMPLATES): str(text)
            for key, text in self._fields.items()
            if key.startswith(_TEMPLATES)
        }
        if odd := [name for name in templates if not re.fullmatch(r"[\w-]+", name)]:
            raise IncompatibleError(f"GGUF: {_TEMPLATES}{odd[0]}: a name may have letters, digits, _ and -")
        return templates

    def adapt(self, stages: dict[str, Any]) -> None:
        """Change a `tokenizer.json` of `transformers` to agree with the GGUF file."""
        match self._get("model"):
            case "gpt2":
                self._adapt_bytes(stages)
            case "llama":
                self._adapt_pieces(stages)
        for key in ("remove_extra_whitespaces", "add_sep_token"):
            if self._get(key):
                raise IncompatibleError(f"GGUF: {_PREFIX}{key} = True: must be False")

    def begins_with_bos(self) -> bool | None:
        """Return True if texts begin with BOS by default; None: see `transformers`."""
        unsaid = self._get("add_bos_token") is None and self._get("model") == "gpt2"
        return True if unsaid and self._get("pre") in _BOS_BY_DEFAULT else None

    def for_transformers(self) -> dict[str, Any]:
        """Return the values from which `transformers`' converter builds a tokenizer."""
        settings = {short: self._get(key) for key, short in _FOR_TRANSFORMERS.items()}
        return {short: value for short, value in settings.items() if value is not None}

    def options(self) -> dict[str, Any]:
        """Return further arguments of a tokenizer: special tokens, chat template, BOS, EOS."""
        options: dict[str, Any] = {
            f"{name}_token": None if (token := self._token(key)) is None else self.tokens[token]
            for name, key in _SPECIAL.items()
        }
        if (template := self._fields.get("tokenizer.chat_template")) is not None:
            options["chat_template"] = template
        for name in ("add_bos_token", "add_eos_token"):
            if (value := self._get(name)) is not None:
                options[name] = value
        if self._get("model") == "llama":
            options.setdefault("add_bos_token", True)
        if self.begins_with_bos() and options["bos_token"] is not None:
            options["add_bos_token"] = True
        return options

    def _adapt_bytes(self, stages: dict[str, Any]) -> None:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

        kind = self._get("pre", "default")
        if kind not in _AS_GPT2 | GGUF_PRE_TOKENIZER_SPLITS.keys():
            raise IncompatibleError(f"GGUF: {_PREFIX}pre = {kind!r}: is not supported")
        if self._get("add_space_prefix"):
            raise IncompatibleError(f"GGUF: {_PREFIX}add_space_prefix = True: must be False for model gpt2")
        if kind in _BOS_BY_DEFAULT:
            stages["model"]["ignore_merges"] = True

    def _adapt_pieces(self, stages: dict[str, Any]) -> None:
        """Add or omit the space before texts, if `add_space_prefix` is set."""
        prefix = self._get("add_space_prefix")
        if prefix is None:
            return
        split, decoder = stages["pre_tokenizer"], stages["decoder"]
        if prefix and (split is None or split["type"] != "Metaspace"):
            raise IncompatibleError(f"GGUF: {_PREFIX}add_space_prefix = True: must be False for this family")
        if not prefix and split is not None and split["type"] == "Metaspace":
            split["prepend_scheme"] = "never"
            decoder["decoders"] = [stage for stage in decoder["decoders"] if stage["type"] != "Strip"]


def save_tokenizer(architecture: str, vocabulary: Vocabulary, directory: Path) -> None:
    """Write the tokenizer of a GGUF file into a model directory."""
    tokenizer = _of_transformers(architecture, vocabulary)
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    plain = [token for token in vocabulary.end_tokens() if not (token in added and added[token].special)]
    names = [name for token in plain if (name := tokenizer.backend_tokenizer.id_to_token(token)) is not None]
    if names:
        tokenizer.add_special_tokens({"additional_special_tokens": names}, replace_extra_special_tokens=False)
    tokenizer.save_pretrained(directory)
    _declare(tokenizer.backend_tokenizer, directory / "tokenizer_config.json")
    path = directory / "tokenizer.json"
    stages = json.loads(path.read_bytes())
    vocabulary.adapt(stages)
    path.write_text(json.dumps(stages, ensure_ascii=False), encoding="utf-8")
    for name, text in vocabulary.chat_templates().items():
        other = directory / "additional_chat_templates" / f"{name}.jinja"
        other.parent.mkdir(exist_ok=True)
        other.write_text(text, encoding="utf-8")


def _declare(backend: Any, path: Path) -> None:
    """Copy added tokens to `tokenizer_config.json`, so that loading is quick."""
    flags = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    config = json.loads(path.read_bytes())
    config["added_tokens_decoder"] = {
        str(number): {flag: getattr(token, flag) for flag in flags}
        for number, token in backend.get_added_tokens_decoder().items()
    }
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _of_transformers(architecture: str, vocabulary: Vocabulary) -> Any:
    """Return the tokenizer that `transformers` builds from the metadata.

    If `transformers` read the file itself, 150,000 tokens would take 20 seconds.
    """
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf import convert_gguf_tokenizer

    try:
        backend, _ = convert_gguf_tokenizer(architecture, vocabulary.for_transformers())
        return PreTrainedTokenizerFast(tokenizer_object=backend, **vocabulary.options())
    except KeyError as error:
        raise IncompatibleError(f"GGUF: the tokenizer lacks tokenizer.ggml.{error.args[0]}") from error
    except ValueError as error:
        raise IncompatibleError(f"GGUF: transformers cannot build the tokenizer: {error}") from error
