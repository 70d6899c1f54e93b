"""Prompt files: what is taken, and what a broken one is told."""

import json
from pathlib import Path

import pytest

from specinfer.errors import InvalidInputError
from specinfer.prompts import read_prompts


def _write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def test_first_turns_are_taken_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"turns": ["o\u2028ne", "two"]}\n\n{"turns": ["three"]}\n')
    assert read_prompts(path) == ("o\u2028ne", "three")
    assert read_prompts(path, 1) == ("o\u2028ne",)


@pytest.mark.parametrize("row", [{"turns": []}, {"turns": [7]}, {}, "text"])
def test_a_bad_line_is_named(tmp_path: Path, row: object) -> None:
    path = _write(tmp_path / "p.jsonl", {"turns": ["one"]}, row)
    with pytest.raises(InvalidInputError, match=r"p\.jsonl:2"):
        read_prompts(path)


def test_a_missing_and_an_empty_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"absent\.jsonl"):
        read_prompts(tmp_path / "absent.jsonl")
    with pytest.raises(InvalidInputError, match="no prompts"):
        read_prompts(_write(tmp_path / "empty.jsonl"))
