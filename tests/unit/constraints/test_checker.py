"""Constraints of requests are compiled in a child process, which may be killed or crash."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from specinfer.errors import ExhaustedError, InvalidInputError, UnavailableError
from specinfer.text.constraints import checker
from specinfer.text.constraints.checker import Checker
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from tests.support.system import VOCABULARY, ascii_tokenizer, until

REGEX, GRAMMAR = ConstraintKind.REGEX, ConstraintKind.GRAMMAR
SCHEMA, CHOICE = ConstraintKind.JSON_SCHEMA, ConstraintKind.CHOICE
RULES = "\n".join([f"r{i}: r{i + 1}" for i in range(4000)])
DEEP = Constraint(GRAMMAR, f'start: r0\n{RULES}\nr4000: "a"')
"""Overflows a stack of 8 MiB when compiled."""
SLOW = Constraint(
    SCHEMA, json.dumps({"allOf": [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(40)]})
)
"""Takes minutes to compile."""
AMPLE_S = 60.0
"""A limit of processor seconds that is not reached, as the tests end the compilation themselves."""


@pytest.fixture
async def checking() -> AsyncIterator[Checker]:
    checker = Checker(ascii_tokenizer().to_json, VOCABULARY, [0])
    yield checker
    await checker.close()


async def test_a_constraint_that_crashes_or_stalls_the_process_is_refused(
    checking: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await checking.check(Constraint(REGEX, "a+"))
    with pytest.raises(InvalidInputError, match=r"constraint\.grammar = "):
        await checking.check(DEEP)
    await checking.check(Constraint(REGEX, "b+"))
    monkeypatch.setattr(checker, "SECONDS", 0.1)
    with pytest.raises(InvalidInputError, match=r"constraint\.json_schema = "):
        await checking.check(SLOW)
    monkeypatch.undo()
    await checking.check(Constraint(REGEX, "c+"))


def compiling(checking: Checker) -> list[int]:
    """Return the ids of the processes that are compiling."""
    assert checking._process is not None
    threads = Path(f"/proc/{checking._process.pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def end(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(process, number)


WRONG = [
    (SCHEMA, '{"enum": ["\\ud800"]}', "half of a surrogate pair"),
    (CHOICE, '["\\udfff"]', "half of a surrogate pair"),
    (SCHEMA, '{"minimum": Infinity}', "has the number Infinity: numbers must be finite"),
    (SCHEMA, '{"const": NaN}', "has the number NaN: numbers must be finite"),
    (SCHEMA, '{"minimum": 1e999}', "has the number 1e999: numbers must be finite"),
    (SCHEMA, f'{{"maxLength": {"9" * 400}}}', "number out of range"),
    (SCHEMA, f'{{"maxLength": {"9" * 5000}}}', "has an integer of more than 4300 digits"),
    (SCHEMA, "[]", r"is the JSON value \[\]: must be an object, true or false"),
    (SCHEMA, "3", "must be an object, true or false"),
    (SCHEMA, '"text"', "must be an object, true or false"),
    (SCHEMA, "null", "must be an object, true or false"),
    (SCHEMA, '{"items":' * 130 + "{}" + "}" * 130, "is nested 131 levels deep: at most 100 are allowed"),
]


async def test_a_wrong_source_is_refused_without_ending_the_process(checking: Checker) -> None:
    await checking.check(Constraint(REGEX, "a+"))
    process = checking._process
    for kind, source, reason in WRONG:
        with pytest.raises(InvalidInputError, match=reason):
            await checking.check(Constraint(kind, source))
        await checking.check(Constraint(SCHEMA, "true"))
    assert checking._process is process


async def test_a_slow_constraint_does_not_delay_others(
    checking: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checker, "SECONDS", AMPLE_S)
    slow = asyncio.create_task(checking.check(SLOW))
    await asyncio.sleep(0)
    await checking.check(Constraint(REGEX, "a+"))  # read after SLOW
    assert not slow.done()
    end(compiling(checking), signal.SIGPROF)  # which the limit sends, too
    with pytest.raises(InvalidInputError, match="takes longer than"):
        await slow


async def test_simultaneous_errors_that_quote_long_constraints_are_not_mixed_up(checking: Checker) -> None:
    letters = "abcdefgh"
    checks = [
        checking.check(Constraint(GRAMMAR, f"start: {sent_letter * 20_000}")) for sent_letter in letters
    ]
    for letter, error in zip(letters, await asyncio.gather(*checks, return_exceptions=True), strict=True):
        assert isinstance(error, InvalidInputError)
        assert error.why.startswith(f'at line 1, column 8: unknown name: "{letter * 50}')
        assert len(error.why) < 1000


async def test_a_process_that_dies_fails_only_its_own_checks(
    checking: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process checks constraints before the child of the dead one, which is still compiling, has ended."""
    monkeypatch.setattr(checker, "SECONDS", AMPLE_S)
    lost = asyncio.create_task(checking.check(SLOW))
    await asyncio.sleep(0)
    await checking.check(Constraint(REGEX, "a+"))  # read after SLOW
    process, children = checking._process, compiling(checking)
    assert process is not None
    process.kill()
    await until(lambda: process.returncode is not None)  # `wait` would wait for its child, too
    monkeypatch.setattr(checker, "SECONDS", 0.1)
    with pytest.raises(InvalidInputError, match="takes longer than"):
        await checking.check(Constraint(SCHEMA, SLOW.source + " "))
    assert not lost.done()
    end(children, signal.SIGKILL)
    with pytest.raises(UnavailableError, match="has ended"):
        await lost


async def test_a_cancelled_check_does_not_cancel_an_equal_one(checking: Checker) -> None:
    constraint = Constraint(REGEX, "a+")
    first = asyncio.create_task(checking.check(constraint))
    await asyncio.sleep(0)
    second = asyncio.create_task(checking.check(constraint))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()


async def test_the_number_of_waiting_checks_is_limited(
    checking: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checker, "_WAITING", 1)
    first = asyncio.create_task(checking.check(Constraint(REGEX, "a+")))
    await asyncio.sleep(0)
    with pytest.raises(ExhaustedError, match="wait"):
        await checking.check(Constraint(REGEX, "b+"))
    await first
