"""Prompts from files and from the command line: text that is UTF-8."""

import json
import sys
from pathlib import Path

from specinfer.errors import InvalidInputError


def read_prompts(path: Path, limit: int | None = None) -> tuple[str, ...]:
    """First user turns of a JSONL file of objects with `turns: [text]`.

    Raises:
        InvalidInputError: naming file and line.
    """
    prompts: list[str] = []
    for number, line in enumerate(read_text("prompts", path).split("\n"), 1):  # JSON strings may hold others
        if limit is not None and len(prompts) == limit:
            break
        if not line.strip():
            continue
        try:
            turns = json.loads(line)["turns"]
            turn = turns[0] if isinstance(turns, list) else None
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise InvalidInputError(f"{path}:{number}", line[:60], "needs `turns: [text]`") from error
        if not isinstance(turn, str):
            raise InvalidInputError(f"{path}:{number}", turn, "turns[0] must be text")
        prompts.append(check_text(f"{path}:{number}", turn))
    if not prompts:
        raise InvalidInputError("prompts", str(path), "no prompts in it")
    return tuple(prompts)


def read_prompt(path: Path | None) -> str:
    """One prompt, the whole of a file or of standard input (None), without its last line break.

    Raises:
        InvalidInputError: if it cannot be read, is not UTF-8 or is empty.
    """
    prompt = read_text("prompt_file", path).removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise InvalidInputError("prompt", prompt, f"{path or 'standard input'} is empty")
    return prompt


def check_text(field: str, text: str) -> str:
    """The text, if it can be sent.

    Raises:
        InvalidInputError: if it is not UTF-8: a byte of the command line that is none, half a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(field, text, f"not UTF-8 at character {error.start + 1}") from error
    return text


def read_text(field: str, path: Path | None) -> str:
    """The whole of a file or of standard input (None).

    Raises:
        InvalidInputError: naming the field, if it cannot be read or is not UTF-8.
    """
    name = str(path or "standard input")
    try:
        return (sys.stdin.buffer.read() if path is None else path.read_bytes()).decode()
    except OSError as error:
        raise InvalidInputError(field, name, error.strerror or "cannot be read") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(field, name, f"not UTF-8 at byte {error.start + 1}") from error
