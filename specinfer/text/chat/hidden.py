"""Hide names of special tokens in callers' texts during rendering.

Characters of a name are replaced by lone surrogates, which callers' texts cannot have. So a caller's text never becomes
special tokens. The template's own operations (`in`, `split`, ...) see the original text.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_FIRST, _LAST = 0xDC00, 0xDFFF
_HALF = re.compile("[\ud800-\udfff]")


def without_halves(text: str) -> str:
    """Replace halves of surrogate pairs, which no tokenizer takes.

    JSON of callers and texts of templates may have some.
    """
    return text if text.isascii() else _HALF.sub("\ufffd", text)


class Hider:
    """Replace the first and last characters of names in texts."""

    def __init__(self, names: Iterable[str]) -> None:
        """Prepare to hide these names of special tokens."""
        signs = sorted({sign for name in names for sign in (name[0], name[-1])})[: _LAST - _FIRST + 1]
        self._hide = {ord(sign): _FIRST + place for place, sign in enumerate(signs)}
        self._show = {hidden: shown for shown, hidden in self._hide.items()}
        self.signs = "".join(signs)

    def hide(self, text: str) -> str:
        """Return a text with the names' characters replaced."""
        text = without_halves(text)
        if not any(sign in text for sign in self.signs):
            return text
        return HiddenText(text.translate(self._hide), self)

    def show(self, text: str) -> str:
        """Return the original of a hidden text."""
        return without_halves(text.translate(self._show))

    def seen(self, text: str) -> str:
        """Return a text with hidden names as `HiddenText`."""
        return text if text.isascii() or not _HALF.search(text) else HiddenText(text, self)

    def seen_in(self, value: Any) -> Any:
        """Apply `seen` to all texts in JSON."""
        return _in_all(value, self.seen)

    def hide_all(self, value: Any) -> Any:
        """Hide all texts in JSON."""
        return _in_all(value, self.hide)


def _in_all(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case Mapping():
            return {change(name): _in_all(part, change) for name, part in value.items()}
        case list() | tuple():
            return [_in_all(part, change) for part in value]
    return value


def _plain(value: Any, hider: Hider) -> Any:
    """Return a method's argument with hidden texts replaced by their originals."""
    if isinstance(value, str):
        return str(value).translate(hider._hide)
    if isinstance(value, tuple):
        return tuple([_plain(part, hider) for part in value])
    return value


class HiddenText(str):
    """A text with hidden names, whose methods work on the original."""

    __slots__ = ("_hider",)
    _hider: Hider

    def __new__(cls, text: str, hider: Hider) -> "HiddenText":
        """Create from the output of `hider.hide`."""
        made = super().__new__(cls, text)
        made._hider = hider
        return made

    def __contains__(self, part: object) -> bool:
        return super().__contains__(_plain(part, self._hider))

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, _plain(other, self._hider))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __str__(self) -> "HiddenText":
        return self

    def __getitem__(self, key: Any) -> "HiddenText":
        return HiddenText(super().__getitem__(key), self._hider)

    def __iter__(self) -> Iterator[str]:
        return (HiddenText(sign, self._hider) for sign in str.__iter__(self))

    def __add__(self, other: str) -> "HiddenText":
        return HiddenText(str.__add__(self, other), self._hider)

    def __radd__(self, other: str) -> "HiddenText":
        return HiddenText(str.__add__(other, self), self._hider)


def _seen(name: str) -> Callable[..., Any]:
    """Return a method of `str` that works on the original text."""
    inner = getattr(str, name)

    def method(self: HiddenText, *args: Any, **options: Any) -> Any:
        hider = self._hider
        result = inner(
            self,
            *[_plain(value, hider) for value in args],
            **{key: _plain(value, hider) for key, value in options.items()},
        )
        if isinstance(result, str):
            return HiddenText(result, hider)
        if isinstance(result, list | tuple):
            return type(result)([HiddenText(part, hider) for part in result])
        return result

    return method


for _name in (
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count"),
    *("split", "rsplit", "splitlines", "partition", "rpartition", "removeprefix", "removesuffix"),
    *("strip", "lstrip", "rstrip", "replace"),
    *("lower", "upper", "title", "capitalize", "casefold", "swapcase"),
):
    setattr(HiddenText, _name, _seen(_name))
