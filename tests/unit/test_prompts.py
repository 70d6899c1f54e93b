"""Prompt files: accepted formats, and errors that name the line."""

import io
import json
from pathlib import Path

import pytest

from specinfer.errors import InvalidInputError
from specinfer.text.prompts import read_prompt, read_prompts


def _write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def test_first_turns_are_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"turns": ["o\u2028ne", "two"]}\n\n{"turns": ["three"]}\n')
    assert read_prompts(path) == ("o\u2028ne", "three")
    assert read_prompts(path, 1) == ("o\u2028ne",)


@pytest.mark.parametrize("row", [{"turns": []}, {"turns": [7]}, {"turns": "one"}, {}, "text"])
def test_a_bad_line_is_named(tmp_path: Path, row: object) -> None:
    path = _write(tmp_path / "p.jsonl", {"turns": ["one"]}, row)
    with pytest.raises(InvalidInputError, match=r"p\.jsonl:2"):
        read_prompts(path)


def test_a_missing_and_an_empty_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"absent\.jsonl"):
        read_prompts(tmp_path / "absent.jsonl")
    with pytest.raises(InvalidInputError, match="must have a line"):
        read_prompts(_write(tmp_path / "empty.jsonl"))


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"turns": ["\xe9"]}\n')
    with pytest.raises(InvalidInputError, match=r"prompts = .*p\.jsonl':"):
        read_prompts(path)
    with pytest.raises(InvalidInputError, match=r"prompt_file = .*p\.jsonl':"):
        read_prompt(path)
    with pytest.raises(InvalidInputError, match=r"p\.jsonl:2 = .*: not UTF-8 at character 2"):
        read_prompts(_write(path, {"turns": ["one"]}, {"turns": ["x\ud800"]}))


def test_a_prompt_is_a_whole_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes("é\n\ntwo \r\n".encode())
    assert read_prompt(path) == "é\n\ntwo "
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
    assert read_prompt(None) == "from a pipe"


def test_a_byte_order_mark_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"\xef\xbb\xbfhi")
    assert read_prompt(path) == "hi"
    path.write_bytes(b'\xef\xbb\xbf{"turns": ["hi"]}')
    assert read_prompts(path) == ("hi",)
