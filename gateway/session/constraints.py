"""Check requests' constraints on arrival, and match drafts against them.

Matching only improves drafts: the verifier applies the same constraint and rejects forbidden tokens. So steps
do not wait for the compilation of a constraint.
"""

from collections.abc import Iterable, Sequence

from specinfer.errors import IncompatibleError
from specinfer.planning.trees import give_matchers
from specinfer.scheduling.request import RequestState
from specinfer.text.constraints.checker import Checker
from specinfer.text.constraints.compiler import Compiler, compiler_of
from specinfer.text.constraints.constraint import Constraint
from specinfer.text.tokenizer import Tokenizer


class Constraints:
    """Checks and compiles constraints for one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiler: Compiler | None = None
        self._checker: Checker | None = None
        self._incompatible = ""

    def prepare(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Create checker and compiler, which load the vocabulary for the first constraint."""
        self._checker = Checker(self._tokenizer.to_json, vocab_size, eos_token_ids)
        try:
            self._compiler = compiler_of(self._tokenizer, vocab_size, eos_token_ids)
        except IncompatibleError as error:
            self._incompatible = str(error)

    async def check(self, constraint: Constraint) -> None:
        """Check that a constraint is valid and compiles."""
        if self._compiler is None or self._checker is None:
            raise IncompatibleError(self._incompatible)
        await self._checker.check(constraint)

    def is_checked(self, constraint: Constraint) -> bool:
        """Return whether `check` has a cached result for the constraint."""
        return self._checker is None or self._checker.knows(constraint)

    def match(self, states: Iterable[RequestState]) -> None:
        """Give a grammar matcher to each request whose constraint is compiled."""
        give_matchers(states, self._compiler)

    async def close(self) -> None:
        """End compilation and checks."""
        if self._compiler is not None:
            self._compiler.close()
        if self._checker is not None:
            await self._checker.close()
