"""Prompts to continue: as chat turns, and such as the target invents from an open user turn."""

from collections.abc import Sequence

from specinfer.tokenizer import Tokenizer

_MARK = "\u2063"
"""Stands for the user's text while the template is cut open (an invisible separator: no template has it)."""


def chat_prompt(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Token ids of one user turn, ready for the answer."""
    return tuple(tokenizer.encode_chat([{"role": "user", "content": text}]))


def open_user_turn(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids of a conversation up to where the user's text begins: what follows is an invented prompt."""
    marked = tokenizer.encode_chat([{"role": "user", "content": _MARK}])
    plain = tokenizer.encode_chat([{"role": "user", "content": ""}])
    same = next(i for i, (a, b) in enumerate(zip(marked, plain, strict=False)) if a != b)
    return tuple(marked[:same])


def usable(tokens: Sequence[int], stop_tokens: Sequence[int]) -> bool:
    """Whether an invented prompt came to an end by itself and says something."""
    return len(tokens) > 4 and tokens[-1] in stop_tokens
