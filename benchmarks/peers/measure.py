"""Answer tasks in a peer's environment, with the standard library only."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Task = dict[str, Any]


def answer_tasks(load: Callable[[Task], Callable[[Task], dict[str, Any]]]) -> None:
    """Answer each task, a line of JSON, with a line of JSON.

    `load` runs once, with the first task. What libraries print goes to standard error.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    measure = None
    for line in sys.stdin:
        task = json.loads(line)
        measure = measure or load(task)
        print(json.dumps(measure(task)), file=replies, flush=True)
