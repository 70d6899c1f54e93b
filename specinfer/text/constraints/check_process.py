"""Compile callers' constraints in forked child processes with a time limit.

`Checker` starts this program. It reads lines of JSON: first the arguments of `Compiler`, then constraints with ids.
It writes one answer per id, in any order. A child inherits the loaded tokenizer. The limit is processor time, since
a valid constraint may take long on a busy machine.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from specinfer.errors import ConstraintError, InvalidInputError
from specinfer.system.threads import LAST, give_way
from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.constraint import Constraint, ConstraintKind

TOO_SLOW, TOO_DEEP = "slow", "deep"
"""Reasons why a child gave no answer: time limit, stack overflow."""
MAX_REASON_LENGTH = 300
"""Maximum characters of an answer, which quotes the constraint.

Lines over 4096 bytes from several processes could be interleaved in the pipe.
"""
STACK_BYTES = 1 << 20
"""Stack size of a child in bytes.

Threads that compile later have larger stacks, so an overflow happens only here.
"""


def answer(compiler: Compiler, constraint: Constraint) -> str:
    """Return the compile error of a constraint; empty if there is none."""
    try:
        matcher = compiler.compile(constraint)
        matcher.forced()
        if not matcher.mask().any():
            return "needs text that the model's tokens cannot write"
    except InvalidInputError as error:
        return error.why + part_of(compiler, constraint)
    except ConstraintError as error:
        return str(error)
    except BaseException as error:  # noqa: BLE001  # a panic of the parser is not an `Exception`
        return f"cannot be compiled ({type(error).__name__})"
    return ""


def _say(line: Mapping[str, Any]) -> None:
    """Write a line in one call, since several processes share the pipe."""
    os.write(sys.stdout.fileno(), json.dumps(line).encode() + b"\n")


def _compile_and_exit(compiler: Compiler, asked: Mapping[str, Any]) -> None:
    """Compile a constraint in a child process, write the answer, and exit."""
    try:
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])  # SIGPROF ends the process
        give_way(LAST)
        constraint = Constraint(ConstraintKind(asked["kind"]), asked["source"])
        reason = answer(compiler, constraint)
        _say(
            {
                "id": asked["id"],
                "why": reason if len(reason) <= MAX_REASON_LENGTH else f"{reason[:MAX_REASON_LENGTH]}...",
            }
        )
    finally:
        os._exit(0)


def _see_off(number: int, child: int) -> None:
    """Wait for a child; if a signal ended it, write the reason."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        slow = os.WTERMSIG(status) == signal.SIGPROF
        _say({"id": number, "end": TOO_SLOW if slow else TOO_DEEP})


def _serve() -> None:
    compiler = Compiler(**json.loads(sys.stdin.readline()))
    _say({})
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _compile_and_exit(compiler, asked)
        threading.Thread(target=_see_off, args=(asked["id"], child), daemon=True).start()


def part_of(compiler: Compiler, constraint: Constraint) -> str:
    """Return " (at #/POINTER)" of the smallest refused subschema.

    Empty if the constraint is not a schema, or if every subschema compiles alone.
    """
    if constraint.kind is not ConstraintKind.JSON_SCHEMA:
        return ""
    try:
        schema = json.loads(constraint.source)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(schema, dict):
        return ""
    pointer, part = "", schema
    while (refused := next(_refused(compiler, part, schema), None)) is not None:
        pointer, part = f"{pointer}/{refused[0]}", refused[1]
    return f" (at #{pointer})" if pointer else ""


def _refused(compiler: Compiler, part: Any, schema: Any) -> Iterator[tuple[str, Any]]:
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    for step, below in _schemas_in(part):
        alone = definitions | below
        try:
            compiler.compile(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(alone)))
        except InvalidInputError:
            yield step, below


def _schemas_in(part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a schema's direct subschemas, with their JSON pointers."""
    for name, value in part.items():
        if isinstance(value, dict):
            if name in ("properties", "patternProperties", "$defs", "definitions"):
                yield from [(f"{name}/{key}", one) for key, one in value.items() if isinstance(one, dict)]
            else:
                yield name, value
        elif isinstance(value, list):
            yield from [(f"{name}/{i}", one) for i, one in enumerate(value) if isinstance(one, dict)]


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()
