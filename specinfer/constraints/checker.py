"""Checks of constraints from outside, in a process of their own that is killed when one takes too long."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from collections.abc import Sequence

from specinfer.constraints.check_process import TOO_SLOW
from specinfer.constraints.constraint import Constraint
from specinfer.errors import ExhaustedError, UnavailableError
from specinfer.parent_process import ending_with_us

SECONDS = 2.0
"""Most processor time for one constraint, in seconds. Large schemas take a tenth of a second."""
_STARTING_S = 30.0
_SILENT_S = 60.0
"""Seconds after which a process is given up that has neither answered nor ended."""
_REMEMBERED = 1024
_WAITING = 64
_LINE_BYTES = 1 << 20
"""Characters of an answer, which quotes a part of the constraint."""


class Checker:
    """A process that starts with the first constraint, and again after it was killed or has died."""

    def __init__(self, tokenizer: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Prepare a check for the tokenizer; arguments as those of `Compiler`."""
        self._compiler = {"tokenizer": tokenizer, "vocab_size": vocab_size, "eos_token_ids": [*eos_token_ids]}
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._asked: OrderedDict[Constraint, asyncio.Task[str]] = OrderedDict()
        """Results of checks by constraint, including checks in progress."""
        self._waiting = 0

    async def check(self, constraint: Constraint) -> None:
        """Check that the constraint can be compiled.

        Raises:
            InvalidInputError: naming its field and what is wrong where.
            ExhaustedError: if too many wait to be checked.
            UnavailableError: if the process cannot be started.
        """
        if constraint not in self._asked:
            if self._waiting >= _WAITING:
                raise ExhaustedError(f"{self._waiting} constraints wait to be checked")
            self._waiting += 1
            task = self._asked[constraint] = asyncio.create_task(self._ask(constraint))
            task.add_done_callback(lambda task: self._answered(constraint, task))
        # a caller that leaves does not end what others may wait for
        why = await asyncio.shield(self._asked[constraint])
        if why:
            raise constraint.error(why)

    def knows(self, constraint: Constraint) -> bool:
        """Return whether this constraint was checked already."""
        return constraint in self._asked and self._asked[constraint].done()

    async def close(self) -> None:
        """End the process."""
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        await self._kill()

    def _answered(self, constraint: Constraint, task: "asyncio.Task[str]") -> None:
        self._waiting -= 1
        if task.cancelled() or task.exception() is not None:
            del self._asked[constraint]
        while len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)

    async def _ask(self, constraint: Constraint) -> str:
        async with self._turn:
            process = self._process = self._process or await self._start()
            question = {"kind": constraint.kind, "source": constraint.source, "seconds": SECONDS}
            try:
                async with asyncio.timeout(_SILENT_S):
                    answer = await _exchange(process, question)
            except TimeoutError as error:
                await self._kill()
                raise UnavailableError("what checks constraints does not answer") from error
            if answer is None:
                return await self._post_mortem(process)
            why: str = answer["why"]
            return why

    async def _post_mortem(self, process: Process) -> str:
        """Return the fault of the constraint that ended the process."""
        self._process = None
        if await process.wait() == TOO_SLOW:
            return f"takes longer than {SECONDS:g} seconds to compile"
        return "too deeply nested to compile"  # a stack that overflows ends it, too

    async def _start(self) -> Process:
        command = ending_with_us([sys.executable, "-m", "specinfer.constraints.check_process"])
        # its last words may quote a request
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=_LINE_BYTES
        )
        try:
            async with asyncio.timeout(_STARTING_S):
                ready = await _exchange(process, self._compiler)
        except TimeoutError:
            ready = None
        if ready is None:
            process.kill()
            await process.wait()
            raise UnavailableError("what checks constraints does not start")
        return process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _exchange(process: Process, question: object) -> dict[str, str] | None:
    """Return the answer to a question; None if the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(question).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
    except ConnectionError:
        return None
    answer: dict[str, str] | None = json.loads(line) if line else None
    return answer
