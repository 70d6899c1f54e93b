"""Hides special tokens' names in callers' texts while a template is rendered.

A hidden character is a lone surrogate, absent from callers' texts, so it also marks where the template put
the text. The template's own tests (`in`, `split`, ...) see the unchanged text.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

_FIRST, _LAST = 0xDC00, 0xDFFF


class Hider:
    """Hides the first and last characters of names in texts."""

    def __init__(self, names: Iterable[str]) -> None:
        """Prepare for the names of special tokens."""
        signs = sorted({sign for name in names for sign in (name[0], name[-1])})[: _LAST - _FIRST + 1]
        self._hide = {ord(sign): _FIRST + place for place, sign in enumerate(signs)}
        self._show = {hidden: shown for shown, hidden in self._hide.items()}
        self._signs = tuple(signs)

    def hide(self, text: str) -> str:
        """Return a text without the characters."""
        if not any(sign in text for sign in self._signs):
            return text
        return HiddenText(text.translate(self._hide), self)

    def show(self, text: str) -> str:
        """Return a text with its characters again."""
        return text.translate(self._show)

    def hide_all(self, value: Any, keep: Sequence[str] = ()) -> Any:
        """Hide all texts in JSON, except values named in `keep`."""
        match value:
            case str():
                return self.hide(value)
            case Mapping():
                return {
                    self.hide(name): part if name in keep else self.hide_all(part, keep)
                    for name, part in value.items()
                }
            case list() | tuple():
                return [self.hide_all(part, keep) for part in value]
        return value


def _plain(value: Any, hider: Hider) -> Any:
    """Return an argument of a method as the hidden text has it."""
    if isinstance(value, str):
        return str(value).translate(hider._hide)
    if isinstance(value, tuple):
        return tuple([_plain(part, hider) for part in value])
    return value


class HiddenText(str):
    """A text with hidden characters. Its methods see the original one."""

    __slots__ = ("_hider",)
    _hider: Hider

    def __new__(cls, text: str, hider: Hider) -> "HiddenText":
        """Mark a text that was hidden."""
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
