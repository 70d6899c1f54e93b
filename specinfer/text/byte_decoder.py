"""Read decoders of `tokenizer.json` that only join tokens' bytes. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

ReadName: TypeAlias = Callable[[str], bytes]
_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")


def _byte_characters() -> dict[str, int]:
    """Return GPT-2's map of characters to bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    shown = {chr(byte): byte for byte in printable}
    return shown | {chr(256 + place): byte for place, byte in enumerate(unprintable)}


BYTES = _byte_characters()


@dataclass(frozen=True, slots=True)
class ByteRules:
    """Rules by which a decoder converts tokens' names to bytes."""

    read: ReadName
    """Converts the name of a token that is not the text's first."""
    read_first: ReadName
    """Converts the name of the text's first token."""
    strip: int = 0
    """Maximum leading blanks removed from a text."""
    replaces_each: bool = False
    """True: each invalid byte becomes U+FFFD; False: each invalid sequence."""


@dataclass(frozen=True, slots=True)
class ByteDecoder:
    """Converts token ids to bytes, independent of neighbouring tokens."""

    names: Callable[[int], str | None]
    skipped: Set[int]
    """Special tokens, which are not part of the text."""
    rules: ByteRules
    _cached: dict[int, bytes] = field(default_factory=dict)

    def is_text(self, token_id: int) -> bool:
        return token_id not in self.skipped and self.names(token_id) is not None

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token that is not a text's first."""
        data = self._cached.get(token_id)
        if data is None:
            name = None if token_id in self.skipped else self.names(token_id)
            data = self._cached[token_id] = b"" if name is None else self.rules.read(name)
        return data

    def first_bytes_of(self, token_id: int) -> bytes:
        return self.rules.read_first(self.names(token_id) or "")


def read_decoder(decoder: Mapping[str, Any] | None) -> ByteRules | None:
    """Return a decoder's rules; None for an unknown or context-dependent decoder."""
    if decoder is None:
        return None
    match decoder["type"]:
        case "ByteLevel":
            return ByteRules(_byte_level, _byte_level)
        case "Sequence":
            stages = decoder["decoders"]
            return read_decoder(stages[0]) if len(stages) == 1 else _read_stages(stages)
        case "Metaspace":
            sign, blank = decoder["replacement"], _replacing([(decoder["replacement"], " ")])
            never = decoder.get("prepend_scheme", "always") == "never"
            return ByteRules(blank, blank if never else _replacing([(sign, "")]))
    return None


def _read_stages(stages: Sequence[Mapping[str, Any]]) -> ByteRules | None:
    """Return the rules of SentencePiece's stages; None for any other sequence.

    The stages are, all optional, in this order: Replace, ByteFallback, Fuse, Strip of leading blanks.
    """
    left, pairs = list(stages), list[tuple[str, str]]()
    while left and left[0]["type"] == "Replace" and "String" in left[0]["pattern"]:
        stage = left.pop(0)
        pairs.append((stage["pattern"]["String"], stage["content"]))
    fallback = bool(left) and left[0]["type"] == "ByteFallback"
    left = left[fallback:]
    fused = bool(left) and left[0]["type"] == "Fuse"
    left = left[fused:]
    strip = 0
    if fused and left and left[0]["type"] == "Strip" and (left[0]["content"], left[0]["stop"]) == (" ", 0):
        strip = left.pop(0)["start"]
    if left:
        return None
    read = _replacing(pairs, fallback)
    return ByteRules(read, read, strip, replaces_each=fallback)


def _byte_level(name: str) -> bytes:
    """Map GPT-2's characters to bytes; encode any other name in UTF-8."""
    if all(char in BYTES for char in name):
        return bytes([BYTES[char] for char in name])
    return name.encode()


def _replacing(pairs: Sequence[tuple[str, str]], byte_fallback: bool = False) -> ReadName:

    def read(name: str) -> bytes:
        for old, new in pairs:
            name = name.replace(old, new)
        if byte_fallback and _BYTE_TOKEN.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        return name.encode()

    return read
