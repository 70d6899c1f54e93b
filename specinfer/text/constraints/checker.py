"""Check callers' constraints in processes with a time limit."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from specinfer.errors import ExhaustedError, UnavailableError
from specinfer.system.parent_process import ending_with_us
from specinfer.text.constraints import check_process
from specinfer.text.constraints.constraint import Constraint, forget_oldest
from specinfer.text.constraints.grammars import check_json

SECONDS, USUAL_BYTES = 2.0, 2**18
"""Maximum processor seconds to compile `USUAL_BYTES` of a constraint.

Large schemas take a tenth of a second.
"""
_STARTING_S = 60.0
_SILENT_S = 300.0
"""Timeout of a checker process, in seconds.

Generous, because checks run at low priority.
"""
_REMEMBERED, _REMEMBERED_BYTES = 1024, 2**26
_WAITING = 64
_LINE_BYTES = 1 << 20
"""Maximum bytes of an answer line."""


class Checker:
    """Run a checker process, started on demand and restarted after its end."""

    def __init__(self, tokenizer: Callable[[], str], vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Create a checker, with the arguments of `Compiler`; starts no process."""
        self._tokenizer = tokenizer
        self._compiler = {"vocab_size": vocab_size, "eos_token_ids": [*eos_token_ids]}
        self._process: Process | None = None
        self._starting = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        """Futures of answers of the running process, by question id."""
        self._asked: OrderedDict[Constraint, asyncio.Task[str]] = OrderedDict()
        """Results of checks by constraint, including checks in progress."""
        self._waiting = 0

    async def check(self, constraint: Constraint) -> None:
        """Check that the constraint can be compiled."""
        if constraint not in self._asked:
            check_json(constraint)  # cheaper than asking the process
            if self._waiting >= _WAITING:
                raise ExhaustedError(
                    f"{self._waiting} constraints wait to be checked, at most {_WAITING}: retry"
                )
            self._waiting += 1
            task = self._asked[constraint] = asyncio.create_task(self._ask(constraint))
            task.add_done_callback(lambda task: self._answered(constraint, task))
        # other callers may wait for the same check, so cancellation must not end it
        reason = await asyncio.shield(self._asked[constraint])
        if reason:
            raise constraint.error(reason)

    def knows(self, constraint: Constraint) -> bool:
        """Return whether this constraint was checked already."""
        return constraint in self._asked and self._asked[constraint].done()

    async def close(self) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        await self._kill()

    def _answered(self, constraint: Constraint, task: "asyncio.Task[str]") -> None:
        self._waiting -= 1
        if task.cancelled() or task.exception() is not None:
            del self._asked[constraint]
        forget_oldest(self._asked, _REMEMBERED, _REMEMBERED_BYTES)

    async def _ask(self, constraint: Constraint) -> str:
        process = await self._running()
        number, answers = next(self._numbers), self._answers
        awaited = answers[number] = asyncio.get_running_loop().create_future()
        seconds = SECONDS * max(1.0, len(constraint.source) / USUAL_BYTES)
        asked = {"id": number, "kind": constraint.kind, "source": constraint.source, "seconds": seconds}
        try:
            _write(process, asked)
            async with asyncio.timeout(_SILENT_S):
                answer = await awaited
        except TimeoutError as error:
            await self._kill()
            raise UnavailableError(
                f"the constraint checker did not answer for {_SILENT_S:g} s: retry"
            ) from error
        finally:
            del answers[number]
        match answer.get("end"):
            case None:
                return str(answer["why"])
            case check_process.TOO_SLOW:
                return f"takes longer than {seconds:.3g} seconds to compile"
            case _:
                return "is nested too deeply: the parser's stack overflows"

    async def _running(self) -> Process:
        """Return the running process; start one if needed."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                self._process, self._answers = await self._start(), {}
                self._reader = asyncio.create_task(_read(self._process, self._answers))
            return self._process

    async def _start(self) -> Process:
        command = ending_with_us([sys.executable, "-m", "specinfer.text.constraints.check_process"])
        # standard error is dropped: it may quote a request
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=_LINE_BYTES
        )
        assert process.stdout is not None
        ready = b""
        try:
            _write(process, self._compiler | {"tokenizer": self._tokenizer()})
            async with asyncio.timeout(_STARTING_S):
                ready = await process.stdout.readline()
        except TimeoutError:
            pass
        if not ready:
            if process.returncode is None:
                process.kill()
            await process.wait()
            raise UnavailableError(
                f"the constraint checker ended at start, or took over {_STARTING_S:g} s: retry"
            )
        return process

    async def _kill(self) -> None:
        process, reader = self._process, self._reader
        self._process = self._reader = None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
        if reader is not None:
            await reader


def _write(process: Process, line: Mapping[str, Any]) -> None:
    """Write a line without waiting. At most 64 lines are pending."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(line).encode() + b"\n")


async def _read(process: Process, answers: Mapping[int, asyncio.Future[Mapping[str, Any]]]) -> None:
    """Set the futures' results until the process ends; then fail pending futures."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        answer = json.loads(line)
        awaited = answers.get(answer["id"])
        if awaited is not None and not awaited.done():
            awaited.set_result(answer)
    await process.wait()
    for awaited in answers.values():
        if not awaited.done():
            awaited.set_exception(UnavailableError("the constraint checker has ended: retry"))
