"""Encode conversations whose texts contain names of special tokens.

Special tokens are renamed, so that the tokenizer reads their old names as ordinary text.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from specinfer.chat.hidden import Hider

_SIGN = "\U0010ffff"
"""Prefix of the new names: Unicode's last noncharacter."""
_INSTEAD = "\ufffd"
"""Replaces `_SIGN` in texts."""


class GuardedTokenizer:
    """A tokenizer with renamed special tokens."""

    def __init__(self, stages: str, names: Iterable[str]) -> None:
        """Rename tokens.

        Args:
            stages: content of a `tokenizer.json`.
            names: names of special tokens, and of other marks that a chat template writes.
        """
        listed = sorted(names, key=len, reverse=True)
        self._hider = Hider(listed)
        self._names = re.compile("|".join(map(re.escape, listed)))
        read = json.loads(stages)
        self._fast = FastTokenizer.from_str(json.dumps(_renamed(read, frozenset(listed)), ensure_ascii=False))
        self._fast.encode_special_tokens = False
        ids = {token["content"]: token["id"] for token in read.get("added_tokens") or ()}
        self._ids = {self._fast.token_to_id(_SIGN + name): ids[name] for name in listed}

    def encode(self, hidden: str) -> list[int]:
        """Return the token ids of a conversation with texts encoded by `Hider`."""
        marked = self._names.sub(lambda match: _SIGN + match[0], hidden.replace(_SIGN, _INSTEAD))
        (encoding,) = self._fast.encode_batch_fast([self._hider.show(marked)], add_special_tokens=False)
        return [self._ids.get(token, token) for token in encoding.ids]


def _renamed(stages: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Return the content of `tokenizer.json` with renamed added tokens."""
    model = dict(stages["model"])
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {_name(name, names): token for name, token in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[_name(name, names), score] for name, score in vocabulary]
    if isinstance(merges := model.get("merges"), list):
        model["merges"] = [pair for pair in merges if not names & {*_parts(pair), "".join(_parts(pair))}]
    if isinstance(unknown := model.get("unk_token"), str):
        model["unk_token"] = _name(unknown, names)
    added = [
        {**token, "content": _name(token["content"], names)} for token in stages.get("added_tokens") or ()
    ]
    return {**stages, "model": model, "added_tokens": added, "post_processor": None}


def _name(name: str, names: frozenset[str]) -> str:
    return _SIGN + name if name in names else name


def _parts(pair: Any) -> list[str]:
    """Return a merge's two parts; older files join them by a blank."""
    return pair.split(" ") if isinstance(pair, str) else list(pair)
