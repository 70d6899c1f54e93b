"""Read evaluation prompts by source."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.text.prompts import read_prompts
from specinfer.text.tokenizer import Tokenizer

LONGEST = 1024


@dataclass(frozen=True, slots=True)
class EvaluationPrompt:
    """One evaluation prompt as token ids."""

    source: str
    tokens: tuple[int, ...]
    references: tuple[str, ...] = ()


def load_prompts(path: Path, per_source: int) -> list[EvaluationPrompt]:
    """Return `per_source` prompts of every source, spread over the file."""
    tokenizer = Tokenizer.load(resolve_model(DEFAULT_MODEL))
    return [
        EvaluationPrompt(
            source, tuple(tokenizer.encode_chat([{"role": "user", "content": prompt.text}])[-LONGEST:])
        )
        for source, prompts in group_prompts(path).items()
        for prompt in spread(prompts, per_source)
    ]


def mixed_texts(path: Path) -> list[str]:
    """Return all texts of a file, with alternating sources."""
    in_turn = zip_longest(*group_prompts(path).values())
    return [row.text for rows in in_turn for row in rows if row is not None]


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One row of a file of prompts."""

    text: str
    source: str = ""
    """Data set of the prompt; empty if the row has none."""
    references: tuple[str, ...] = ()


def read_prompts_by_source(path: Path, count: int) -> tuple[PromptRow, ...]:
    """Return `count` prompts of a file, equally many of each source."""
    by_source = group_prompts(path)
    longest = max(map(len, by_source.values()))
    shares = (n for n in range(1, longest) if sum(min(n, len(rows)) for rows in by_source.values()) >= count)
    row = next(shares, longest)
    chosen = [spread(rows, row) for rows in by_source.values()]
    in_turns = [prompt for of_turn in zip_longest(*chosen) for prompt in of_turn if prompt is not None]
    return tuple(in_turns[:count])


def group_prompts(path: Path) -> dict[str, list[PromptRow]]:
    """Return all prompts of a file by source."""
    by_source: dict[str, list[PromptRow]] = {}
    lines = [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    for text, line in zip(read_prompts(path), lines, strict=True):
        row = PromptRow(text, str(json.loads(line).get("source") or ""))
        by_source.setdefault(row.source, []).append(row)
    return by_source


def spread(rows: Sequence[PromptRow], count: int) -> Sequence[PromptRow]:
    """Return at most `count` rows, at even distances."""
    return rows[:: max(1, len(rows) // count)][:count]
