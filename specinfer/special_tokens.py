"""Special tokens that `tokenizer_config.json` and `special_tokens_map.json` name beside `tokenizer.json`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from specinfer.errors import IncompatibleError

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens by their roles, as chat templates see them."""
    more = config.get("extra_special_tokens")
    named = {name: config.get(name) for name in _ROLES} | (dict(more) if isinstance(more, Mapping) else {})
    return {name: _content(value) for name, value in named.items() if value}


def add_tokens(fast: FastTokenizer, config: Mapping[str, Any], specials: Mapping[str, Any]) -> None:
    """Add tokens that the files beside a tokenizer define, and mark those that they call special.

    Raises:
        IncompatibleError: if a token would get another id than the file says.
    """
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
                f"tokenizer_config.json: {text!r} = {number}, but tokenizer.json has it as {fast.token_to_id(text)}"
            )
    marked = {token.content for token in fast.get_added_tokens_decoder().values() if token.special}
    for text in dict.fromkeys([*_named(specials), *_named(config)]):
        if text not in marked and fast.token_to_id(text) is not None:
            fast.add_special_tokens([AddedToken(text, special=True, normalized=False)])


def tokenizer_end(directory: Path) -> int | None:
    """Return the id of the `eos_token` of a model directory's tokenizer; None if it names none."""
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return None
    config = json.loads(path.read_text())
    end = special_tokens(config).get("eos_token")
    declared = config.get("added_tokens_decoder") or {}
    found = [int(number) for number, flags in declared.items() if flags["content"] == end]
    if found or end is None:
        return found[0] if found else None
    return _id_in(directory / "tokenizer.json", end)


def _id_in(path: Path, text: str) -> int | None:
    if not path.is_file():
        return None
    stored = json.loads(path.read_text())
    added = {token["content"]: int(token["id"]) for token in stored.get("added_tokens") or ()}
    return added.get(text)


def _add(fast: FastTokenizer, token: AddedToken) -> None:
    if token.special:
        fast.add_special_tokens([token])
    else:
        fast.add_tokens([token])


def _named(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of all tokens that a file calls special."""
    yield from special_tokens(config).values()
    for name in ("additional_special_tokens", "extra_special_tokens"):
        values = config.get(name) or ()
        if not isinstance(values, Mapping):
            yield from map(_content, values)


def _content(value: Any) -> str:
    return str(value["content"] if isinstance(value, Mapping) else value)
