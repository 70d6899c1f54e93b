"""Compile constraints to matchers, in a thread and with a cache.

Compiling releases the interpreter's lock. It takes 1 ms, for large schemas 100 ms; `Checker` refuses slower ones.
llguidance's limits ("fuel") keep each step of a matcher below about 20 ms.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import cached_property, lru_cache
from importlib.metadata import version

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from specinfer.errors import IncompatibleError
from specinfer.system.threads import background_threads
from specinfer.text.constraints.constraint import Constraint, ConstraintKind, forget_oldest
from specinfer.text.constraints.digits import DigitRows, DigitTokens
from specinfer.text.constraints.grammars import grammars_of
from specinfer.text.constraints.matcher import Matcher
from specinfer.text.tokenizer import Tokenizer

_LARK = re.compile(r"(?:at )?(?P<line>\d+)\((?P<column>\d+)\): (?P<why>[^\n]*)")
_REGEX = re.compile(r"\n    (?P<mark> *)\^+\s*\nerror: (?P<why>[^\n]*)")


def explain(constraint: Constraint, message: str) -> str:
    """Return an llguidance message as one line with the position."""
    if "panic" in message.partition("\n")[0]:
        return "is too large for the parser"
    if constraint.kind is ConstraintKind.REGEX and (match := _REGEX.search(message)):
        return f"at character {len(match['mark']) + 1}: {match['why']}"
    if constraint.kind is ConstraintKind.GRAMMAR and (match := _LARK.search(message)):
        return f"at line {match['line']}, column {match['column']}: {match['why']}"
    match = _LARK.match(message)
    return match["why"] if match else message.strip().partition("\n")[0]


_REMEMBERED, _REMEMBERED_BYTES = 128, 2**22
"""Maximum cached constraints, and bytes of their sources.

Compiled ones take about 50 times the bytes.
"""


class Compiler:
    """Compiler for one tokenizer. Not thread-safe."""

    def __init__(
        self, tokenizer: str | Callable[[], str], vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        """Load the tokenizer, which takes 0.5 s for 50,000 tokens.

        Args:
            tokenizer: the content of `tokenizer.json`; a function that returns it is called for the first constraint.
            vocab_size: vocabulary size V of the model; tokens of the tokenizer with larger ids are ignored.
            eos_token_ids: tokens allowed after a complete text.
        """
        self._source, self._ends = tokenizer, tuple(eos_token_ids)
        self._vocab_size, self._eos = vocab_size, [token for token in eos_token_ids if token < vocab_size]
        if isinstance(tokenizer, str):
            _ = self._tokenizer
        self._thread = background_threads(1, "constraints")
        self._known: OrderedDict[Constraint, Future[Matcher]] = OrderedDict()
        self._expensive: OrderedDict[int, None] = OrderedDict()
        """Hashes of constraints, as sources may be large."""

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        text = self._source if isinstance(self._source, str) else self._source()
        return _loaded(text, self._vocab_size, self._ends)

    @cached_property
    def _digits(self) -> DigitTokens:
        return DigitTokens(self._tokenizer, self._vocab_size)

    def compile(self, constraint: Constraint) -> Matcher:
        """Compile in the calling thread, without caching."""
        limits = LLParserLimits(verbose_errors=False)  # verbose errors quote the request
        message = ""
        for grammar in grammars_of(constraint):
            inner = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
            if not inner.is_error():
                return Matcher(inner, self._vocab_size, self._digit_rows(constraint), self._eos)
            message = inner.get_error()
        raise constraint.error(explain(constraint, message))

    def _digit_rows(self, constraint: Constraint) -> DigitRows | None:
        all_json = constraint.kind is ConstraintKind.JSON_SCHEMA
        in_grammar = constraint.kind is ConstraintKind.GRAMMAR and "%json" in constraint.source
        return DigitRows(self._digits, all_json) if all_json or in_grammar else None

    def begin(self, constraint: Constraint) -> Future[Matcher]:
        """Compile in the background; requests copy the shared result (`Matcher.copy`)."""
        if constraint not in self._known:
            self._known[constraint] = self._thread.submit(self.compile, constraint)
            forget_oldest(self._known, _REMEMBERED, _REMEMBERED_BYTES)
        self._known.move_to_end(constraint)
        return self._known[constraint]

    def ready(self, constraint: Constraint, patience_s: float = 0.0) -> Matcher | None:
        """Return a new matcher, compiled within `patience_s` seconds, else None."""
        future = self.begin(constraint)
        if not future.done():
            wait([future], patience_s)
        return future.result().copy() if future.done() else None

    def note_expensive(self, constraint: Constraint) -> None:
        """Note that a constraint's masks are too expensive for draft nodes."""
        self._expensive[hash(constraint)] = None
        while len(self._expensive) > _REMEMBERED:
            self._expensive.popitem(last=False)

    def is_expensive(self, constraint: Constraint) -> bool:
        """Return whether `note_expensive` was called for a constraint."""
        return hash(constraint) in self._expensive

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def compiler_of(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> Compiler:
    """Return a compiler that loads its vocabulary for the first constraint.

    Raises:
        IncompatibleError: if the tokenizer allows no constraints; its first start finds out.
    """

    def problem() -> str:
        try:
            Compiler(tokenizer.to_json(), vocab_size, eos_token_ids)
        except IncompatibleError as error:
            return str(error)
        return ""

    name = f"constraints {version('llguidance')} {vocab_size} {[*eos_token_ids]}"
    if found := tokenizer.derived(name, problem):
        raise IncompatibleError(found)
    return Compiler(tokenizer.to_json, vocab_size, eos_token_ids)


@lru_cache(maxsize=2)
def _loaded(tokenizer: str, vocab_size: int, eos_token_ids: tuple[int, ...]) -> LLTokenizer:
    """Load a vocabulary; the verifier and the gateway of one process share it."""
    try:
        return LLTokenizer(
            _within(tokenizer, vocab_size), n_vocab=vocab_size, eos_token=list(eos_token_ids) or None
        )
    except ValueError as error:
        reason = "the model's tokenizer does not allow constraints"
        raise IncompatibleError(f"tokenizer.json: {reason}: {error}") from error


def _within(tokenizer: str, vocab_size: int) -> str:
    """Return a `tokenizer.json` without added tokens of ids from `vocab_size` on."""
    stages = json.loads(tokenizer)
    added = stages.get("added_tokens") or []
    kept = [token for token in added if token["id"] < vocab_size]
    return tokenizer if len(kept) == len(added) else json.dumps(stages | {"added_tokens": kept})
