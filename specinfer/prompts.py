"""Files of prompts."""

import json
from pathlib import Path

from specinfer.errors import InvalidInputError


def read_prompts(path: Path, limit: int | None = None) -> tuple[str, ...]:
    """First user turns of a JSONL file of objects with `turns: [text]`.

    Raises:
        InvalidInputError: naming file and line.
    """
    try:
        lines = path.read_text().split("\n")  # JSON strings may hold other line separators
    except OSError as error:
        raise InvalidInputError("prompts", str(path), error.strerror or "cannot be read") from error
    prompts: list[str] = []
    for number, line in enumerate(lines, 1):
        if limit is not None and len(prompts) == limit:
            break
        if not line.strip():
            continue
        try:
            turn = json.loads(line)["turns"][0]
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise InvalidInputError(f"{path}:{number}", line[:60], "needs `turns: [text]`") from error
        if not isinstance(turn, str):
            raise InvalidInputError(f"{path}:{number}", turn, "turns[0] must be text")
        prompts.append(turn)
    if not prompts:
        raise InvalidInputError("prompts", str(path), "no prompts in it")
    return tuple(prompts)
