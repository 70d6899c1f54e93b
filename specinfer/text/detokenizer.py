"""Convert a growing token sequence to text, in linear time.

If the tokenizer's decoder only joins bytes, at most three bytes of an incomplete character are delayed, and
invalid bytes become U+FFFD at once. Other decoders depend on neighbouring tokens: for these a small window is
decoded again.

Invariant: the text does not depend on how the tokens were split among calls.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from specinfer.text.byte_decoder import ByteDecoder
from specinfer.text.tokenizer import REPLACEMENT, Tokenizer

_MAX_DELAYED = 4
"""Maximum number of delayed tokens of one incomplete character."""
_READ_AFTER = 8
"""Number of preceding tokens on which a text's beginning may depend."""
_EACH = "specinfer.each"


def _replace_each(error: UnicodeError) -> tuple[str, int]:
    """Return U+FFFD for each invalid byte, like byte fallback."""
    assert isinstance(error, UnicodeDecodeError), "this handler is for decoding"
    return REPLACEMENT * (error.end - error.start), error.end


codecs.register_error(_EACH, _replace_each)


class _TokenReader(Protocol):
    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete."""

    def flush(self) -> str:
        """Return the delayed text."""


class Detokenizer:
    """Converts one growing sequence to text."""

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] | None = ()) -> None:
        """Begin a text.

        Args:
            after: the preceding tokens; None: unknown.
        """
        decoder = tokenizer.byte_decoder
        is_text = tokenizer.is_text if decoder is None else decoder.is_text
        said = None if after is None else [token for token in after[-_READ_AFTER:] if is_text(token)]
        if said == [] and after:  # the last tokens are special, but earlier ones may be text
            said = [token for token in after if is_text(token)][-_READ_AFTER:]
        self._reader: _TokenReader = _Window(tokenizer, said) if decoder is None else _Bytes(decoder, said)

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text completed by these tokens; incomplete characters wait."""
        return self._reader.push(token_ids)

    def flush(self) -> str:
        """Return the delayed text."""
        return self._reader.flush()


class _Bytes:
    """Reader for decoders that only join bytes."""

    def __init__(self, decoder: ByteDecoder, said: Sequence[int] | None) -> None:
        self._decoder = decoder
        errors = _EACH if decoder.rules.replaces_each else "replace"
        self._characters = codecs.getincrementaldecoder("utf-8")(errors)
        self._begun = said is None or bool(said)
        self._strip = 0 if self._begun else decoder.rules.strip
        """Remaining leading blanks to remove."""
        self._characters.decode(
            b"".join(map(decoder.bytes_of, said or ()))
        )  # the preceding tokens may end within a character

    def push(self, token_ids: Sequence[int]) -> str:
        data = [self._decoder.bytes_of(token) for token in token_ids]
        if not self._begun:
            self._begin(token_ids, data)
        return self._stripped(self._characters.decode(b"".join(data)))

    def flush(self) -> str:
        return self._stripped(self._characters.decode(b"", final=True))

    def _begin(self, token_ids: Sequence[int], data: list[bytes]) -> None:
        """Replace the bytes of the text's first token by `first_bytes_of`."""
        for place, token in enumerate(token_ids):
            if self._decoder.is_text(token):
                self._begun, data[place] = True, self._decoder.first_bytes_of(token)
                return

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text, self._strip = text[1:], self._strip - 1
        return text


class _Window:
    """Reader for other decoders: decodes new tokens together with previous tokens."""

    def __init__(self, tokenizer: Tokenizer, said: Sequence[int] | None) -> None:
        self._tokenizer = tokenizer
        self._before = list(said or ())
        self._delayed: list[int] = []

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([self._push_one(token) for token in token_ids if self._tokenizer.is_text(token)])

    def flush(self) -> str:
        return self._give_out(self._decode())

    def _push_one(self, token_id: int) -> str:
        self._delayed.append(token_id)
        text = self._decode()
        if text.endswith(REPLACEMENT) and len(self._delayed) < _MAX_DELAYED:
            return ""
        return self._give_out(text)

    def _decode(self) -> str:
        before = self._tokenizer.decode(self._before)
        return self._tokenizer.decode([*self._before, *self._delayed])[len(before) :]

    def _give_out(self, text: str) -> str:
        self._before, self._delayed = self._delayed or self._before, []
        return text
