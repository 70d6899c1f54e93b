"""Process in which constraints from outside are compiled first: it may be killed, or die by itself.

Started by `Checker`. Lines of JSON: what `Compiler` is made of, then constraints; to each an answer.
What is bounded is the time of the processor: where others want it, too, a good constraint may take long.
"""

import json
import os
import sys
import threading
import time
from typing import Any

from specinfer.constraints.compiler import Compiler
from specinfer.constraints.constraint import Constraint, ConstraintKind
from specinfer.constraints.parts import part_of
from specinfer.errors import ConstraintError, InvalidInputError

TOO_SLOW = 3
"""Exit status of a process whose constraint took too long."""
STACK_BYTES = 1 << 20
"""Stack of the process: smaller than that of any thread which compiles later, so that an overflow happens
here."""


def answer(compiler: Compiler, constraint: Constraint) -> dict[str, Any]:
    """Return the reason why a constraint cannot be compiled; empty if nothing is wrong."""
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


class _Watchdog:
    """Ends the process after a constraint's share of processor time; others may need the processor, too."""

    def __init__(self) -> None:
        self.until = float("inf")

    def watch(self, thread: threading.Thread) -> None:
        """Watch until the thread ends. Compiling holds no lock of the interpreter, so this runs beside it."""
        while thread.is_alive():
            thread.join(0.05)
            if time.process_time() > self.until:
                os._exit(TOO_SLOW)


def _serve(watchdog: _Watchdog) -> None:
    compiler = Compiler(**json.loads(sys.stdin.readline()))
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        constraint = Constraint(ConstraintKind(asked["kind"]), asked["source"])
        watchdog.until = time.process_time() + asked["seconds"]
        found = json.dumps(answer(compiler, constraint))
        watchdog.until = float("inf")
        print(found, flush=True)


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    watchdog = _Watchdog()
    thread = threading.Thread(target=_serve, args=(watchdog,))
    thread.start()
    watchdog.watch(thread)
