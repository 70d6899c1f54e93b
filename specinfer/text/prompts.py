"""Read prompts from files, standard input and the command line."""

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from specinfer.errors import InvalidInputError


def read_prompts(path: Path, limit: int | None = None) -> tuple[str, ...]:
    """Return the first of each line's `turns` in a JSONL file.

    Raises:
        InvalidInputError: naming file and line.
    """
    return tuple(islice(_read_turns(path), limit))


def _read_turns(path: Path) -> Iterator[str]:
    """Yield all prompts of a file; refuse a file without prompts."""
    count = 0
    for number, line in enumerate(
        read_text("prompts", path).split("\n"), 1
    ):  # `splitlines` would also split within JSON strings
        if line.strip():
            count += 1
            yield _read_turn(f"{path}:{number}", line)
    if not count:
        raise InvalidInputError("prompts", str(path), "must have a line with `turns: [text]`")


def _read_turn(place: str, line: str) -> str:
    try:
        turns = json.loads(line)["turns"]
        turn = turns[0] if isinstance(turns, list) else None
    except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
        raise InvalidInputError(place, line[:60], "must be JSON with `turns: [text]`") from error
    if not isinstance(turn, str):
        raise InvalidInputError(place, turn, "turns[0] must be text")
    return check_text(place, turn)


def read_prompt(path: Path | None) -> str:
    """Return a file, or standard input (None), without its last line break.

    Raises:
        InvalidInputError: if the prompt cannot be read, is not UTF-8 or is empty.
    """
    field = "prompt_file" if path else "prompt"
    prompt = read_text(field, path).removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise InvalidInputError(field, _named(path), "must not be empty")
    return prompt


def check_text(field: str, text: str) -> str:
    """Return the text if it can be encoded in UTF-8.

    Raises:
        InvalidInputError: if it contains surrogates, as from invalid bytes on the command line.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(field, text, f"not UTF-8 at character {error.start + 1}") from error
    return text


def read_text(field: str, path: Path | None) -> str:
    """Return the whole of a file or of standard input (None), without a byte order mark.

    Raises:
        InvalidInputError: naming the field, if it cannot be read or is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if path is None else path.read_bytes()
        return data.decode().removeprefix("\ufeff")
    except OSError as error:
        raise InvalidInputError(field, _named(path), f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(field, _named(path), f"not UTF-8 at byte {error.start + 1}") from error


def read_lines(field: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yield a file's numbered lines, from 1; a `.gz` file is unpacked.

    Raises:
        InvalidInputError: naming the field, if the file cannot be read or is not UTF-8.
    """
    kind = gzip.open if path.suffix == ".gz" else open
    try:
        with kind(path, "rt", encoding="utf-8-sig") as lines:
            yield from enumerate(lines, 1)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise InvalidInputError(field, str(path), f"cannot be read: {reason}") from error


def _named(path: Path | None) -> str:
    return str(path or "standard input")
