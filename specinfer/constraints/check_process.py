"""The process in which constraints from outside are compiled first: it may be killed, or die by itself.

Started by `Checker`. Lines of JSON: what `Compiler` is made of, then constraints; to each an answer.
"""

import json
import sys
import threading
from typing import Any

from specinfer.constraints.compiler import Compiler
from specinfer.constraints.constraint import Constraint, ConstraintKind
from specinfer.constraints.parts import part_of
from specinfer.errors import ConstraintError, InvalidInputError

STACK_BYTES = 1 << 20
"""Smaller than that of any thread which compiles later, so that what overflows a stack does so here."""


def answer(compiler: Compiler, constraint: Constraint) -> dict[str, Any]:
    """`why` not; empty if nothing is wrong."""
    try:
        matcher = compiler.compile(constraint)
        matcher.forced()
        if not matcher.mask().any():
            return {"why": "needs text of which the model has no tokens"}
    except InvalidInputError as error:
        return {"why": error.why + part_of(compiler, constraint)}
    except ConstraintError as error:
        return {"why": str(error)}
    return {"why": ""}


def _serve() -> None:
    compiler = Compiler(**json.loads(sys.stdin.readline()))
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        constraint = Constraint(ConstraintKind(asked["kind"]), asked["source"])
        print(json.dumps(answer(compiler, constraint)), flush=True)


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()
