"""Constraints whose masks wait until the test opens a gate; the matchers are real."""

from threading import Event

from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.constraint import Constraint
from specinfer.text.constraints.matcher import Bool, Matcher
from tests.support.system import VOCABULARY, ascii_tokenizer


class GatedMatcher(Matcher):
    """A matcher whose mask after n tokens is ready only when gate n is open."""

    def __init__(self, inner: Matcher, gates: "Gates", tokens: int = 0) -> None:
        super().__init__(inner._inner, inner._vocab_size, inner._rows, inner._eos)
        self._gates, self._tokens = gates, tokens

    def copy(self) -> "GatedMatcher":
        return GatedMatcher(super().copy(), self._gates, self._tokens)

    def try_read(self, tokens: list[int]) -> int:  # type: ignore[override]
        read = super().try_read(tokens)
        self._tokens += read
        return read

    def mask(self) -> Bool:
        assert self._gates.at(self._tokens).wait(30)
        return super().mask()


class Gates:
    """Gates by the number of tokens that a matcher has read; initially closed."""

    def __init__(self) -> None:
        self._events: dict[int, Event] = {}

    def at(self, tokens: int) -> Event:
        """Return the gate of matchers that have read `tokens` tokens."""
        return self._events.setdefault(tokens, Event())

    def open(self, tokens: int = 200) -> None:
        for count in range(tokens + 1):
            self.at(count).set()


class GatedCompiler(Compiler):
    """A compiler of the tests' tokenizer; the masks of one constraint wait for gates."""

    def __init__(self, gated: Constraint, eos: int = 0) -> None:
        super().__init__(ascii_tokenizer().to_json(), VOCABULARY, [eos])
        self.gates, self._gated = Gates(), gated

    def compile(self, constraint: Constraint) -> Matcher:
        matcher = super().compile(constraint)
        return GatedMatcher(matcher, self.gates) if constraint == self._gated else matcher
