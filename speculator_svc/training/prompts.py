"""Prompts to continue, and such as the target invents.

A model that was taught conversations gets prompts as user turns and invents from an open one; a base model
gets plain text and invents the beginnings of documents.
"""

from collections.abc import Sequence

from specinfer.tokenizer import Tokenizer

_MARK = "\u2063"
"""Stands for the user's text while the template is cut open (an invisible separator: no template has it)."""


def whole_prompt(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Token ids of one user turn, ready for the answer; of a base model those of the text."""
    if not tokenizer.has_chat_template:
        return tuple(tokenizer.encode(text))
    return tuple(tokenizer.encode_chat([{"role": "user", "content": text}]))


def open_prompt(tokenizer: Tokenizer, stop_tokens: Sequence[int]) -> tuple[int, ...]:
    """Token ids up to where a prompt begins: what follows is an invented one.

    Of a conversation up to the user's text; of a base model what texts begin with, or what lies between them.
    """
    if not tokenizer.has_chat_template:
        return tuple(tokenizer.encode("") or stop_tokens[:1])
    marked = tokenizer.encode_chat([{"role": "user", "content": _MARK}])
    plain = tokenizer.encode_chat([{"role": "user", "content": ""}])
    same = next(i for i, (a, b) in enumerate(zip(marked, plain, strict=False)) if a != b)
    return tuple(marked[:same])


def usable(tokenizer: Tokenizer, tokens: Sequence[int], stop_tokens: Sequence[int]) -> bool:
    """Whether an invented prompt says something, and is a whole user turn; a document may be cut anywhere."""
    return len(tokens) > 4 and (tokens[-1] in stop_tokens or not tokenizer.has_chat_template)
