"""Encode conversations whose texts contain names of special tokens.

Special tokens are renamed, so that the tokenizer reads their old names as ordinary text.
"""

import json
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from specinfer.text.chat.forms import TEXT_MARKS
from specinfer.text.chat.hidden import Hider

_SIGN = "\U0010ffff"
"""Prefix of the new names: Unicode's last noncharacter."""
_INSTEAD = "\ufffd"
"""Replaces `_SIGN` in texts."""


class GuardedTokenizer:
    """Tokenizer with renamed special tokens; the copy is made on first use."""

    def __init__(self, fast: FastTokenizer, templates: Iterable[str]) -> None:
        """Find names of special tokens and of other marks in templates."""
        self._original, texts = fast, "".join(templates)
        names = {
            token.content
            for token in fast.get_added_tokens_decoder().values()
            if token.content and (token.special or _is_mark(token.content, texts))
        }
        self.names = sorted(names, key=len, reverse=True)
        self.hider = Hider(self.names)
        self._pattern = re.compile("|".join(map(re.escape, self.names)))

    def is_needed(self, hidden: str, shown: str) -> bool:
        """Return whether names of special tokens overlap a caller's text.

        Args:
            hidden: a conversation whose texts are encoded by `hider`.
            shown: the same conversation with the original texts.
        """
        if hidden == shown:
            return False
        places = [[match.span() for match in self._pattern.finditer(text)] for text in (hidden, shown)]
        return places[0] != places[1]

    @cached_property
    def _renamed(self) -> tuple[FastTokenizer, dict[int, int]]:
        """The tokenizer with renamed tokens, and original ids by new id."""
        read = json.loads(self._original.to_str())
        fast = FastTokenizer.from_str(
            json.dumps(_with_new_names(read, frozenset(self.names)), ensure_ascii=False)
        )
        fast.encode_special_tokens = False
        ids = {token["content"]: token["id"] for token in read.get("added_tokens") or ()}
        renamed = fast.get_added_tokens_decoder().items()
        return fast, {
            new: ids[token.content[1:]] for new, token in renamed if token.content.startswith(_SIGN)
        }

    def encode(self, hidden: str) -> list[int]:
        """Return the token ids of a conversation with texts encoded by `hider`."""
        fast, ids = self._renamed
        marked = self._pattern.sub(lambda match: _SIGN + match[0], hidden.replace(_SIGN, _INSTEAD))
        (encoding,) = fast.encode_batch_fast([self.hider.show(marked)], add_special_tokens=False)
        return [ids.get(token, token) for token in encoding.ids]


def _is_mark(name: str, templates: str) -> bool:
    """Return whether an added token is a mark used by chat templates."""
    framed = not (name[0].isalnum() or name[0].isspace() or name[-1].isalnum() or name[-1].isspace())
    return name in TEXT_MARKS or (framed and len(name) > 2 and name in templates)


def _with_new_names(stages: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
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
