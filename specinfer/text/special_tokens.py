"""Read special tokens from files next to `tokenizer.json`, like `transformers`.

`special_tokens_map.json` and `added_tokens.json` belong to older models: they are read only if
`tokenizer_config.json` has no `added_tokens_decoder`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from specinfer.errors import IncompatibleError
from specinfer.system.json_files import read_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def tokenizer_config(directory: Path) -> dict[str, Any]:
    """Return `tokenizer_config.json`, completed by older files."""
    config, named, added = (read_json(directory / name) for name in TOKENIZER_FILES[1:])
    if "added_tokens_decoder" in config:
        return config
    extra = config.get("extra_special_tokens")
    config |= named
    if isinstance(extra, list) and isinstance(named.get("extra_special_tokens"), list):
        config["extra_special_tokens"] = [*extra, *named["extra_special_tokens"]]
    if added:
        special = set(_named(config))
        config["added_tokens_decoder"] = {
            str(number): {"content": text, "special": text in special, "normalized": text not in special}
            for text, number in added.items()
        }
    return config


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return special tokens' texts by role, for chat templates."""
    more = config.get("extra_special_tokens")
    declared = {
        name: value for name, value in config.items() if name.endswith("_token") and isinstance(value, str)
    }
    named = (
        {name: config.get(name) for name in _ROLES}
        | declared
        | (dict(more) if isinstance(more, Mapping) else {})
    )
    return {name: _content(value) for name, value in named.items() if value}


def add_tokens(fast: FastTokenizer, config: Mapping[str, Any]) -> None:
    """Add tokens that `tokenizer_config.json` declares, and mark special ones."""
    known = fast.get_added_tokens_decoder()
    declared = config.get("added_tokens_decoder") or {}
    for number, flags in sorted(declared.items(), key=lambda item: int(item[0])):
        text = flags["content"]
        token = AddedToken(text, **{flag: bool(flags[flag]) for flag in _FLAGS if flag in flags})
        before = known.get(int(number))
        if before is None or (before.content, before.special) != (text, token.special):
            _add(fast, token)
        if fast.token_to_id(text) != int(number):
            raise IncompatibleError(
                f"tokenizer_config.json: token {text!r} has id {number}, but {fast.token_to_id(text)} in tokenizer.json"
            )
    marked = {token.content for token in fast.get_added_tokens_decoder().values() if token.special}
    for text in dict.fromkeys(_named(config)):
        if text not in marked:
            fast.add_special_tokens([AddedToken(text, special=True, normalized=False)])
    if config.get("split_special_tokens"):  # encode special tokens' names in texts as plain text
        fast.encode_special_tokens = True


def tokenizer_end(directory: Path) -> int | None:
    """Return the id of a directory's `eos_token`, if any."""
    config = tokenizer_config(directory)
    end = special_tokens(config).get("eos_token")
    declared = config.get("added_tokens_decoder") or {}
    ids = [int(number) for number, flags in declared.items() if flags["content"] == end]
    if ids or end is None:
        return ids[0] if ids else None
    stored = read_json(directory / "tokenizer.json")
    added = {token["content"]: int(token["id"]) for token in stored.get("added_tokens") or ()}
    return added.get(end, _id_in(stored.get("model") or {}, end))


def _id_in(model: Mapping[str, Any], text: str) -> int | None:
    """Return a token's id in `vocab`: a mapping or (text, score) list."""
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, Mapping):
        token_id: int | None = vocabulary.get(text)
        return token_id
    return next((token for token, (name, _) in enumerate(vocabulary) if name == text), None)


def _add(fast: FastTokenizer, token: AddedToken) -> None:
    if token.special:
        fast.add_special_tokens([token])
    else:
        fast.add_tokens([token])


def _named(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of all tokens declared special."""
    yield from special_tokens(config).values()
    for name in _LISTS:
        values = config.get(name) or ()
        if not isinstance(values, Mapping):
            yield from map(_content, values)


def _content(value: Any) -> str:
    return str(value["content"] if isinstance(value, Mapping) else value)
