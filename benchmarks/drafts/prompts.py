"""Evaluation prompts by source."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.tokenizer import Tokenizer

LONGEST = 1024


@dataclass(frozen=True, slots=True)
class Prompt:
    """One evaluation prompt as token ids."""

    source: str
    tokens: tuple[int, ...]


def load_prompts(path: Path, per_source: int) -> list[Prompt]:
    """Some prompts of every source, spread over the file."""
    tokenizer = Tokenizer.load(resolve_model(DEFAULT_MODEL))
    by_source: dict[str, list[str]] = defaultdict(list)
    with path.open() as lines:
        for row in map(json.loads, lines):
            by_source[row["source"]].append(row["turns"][0])
    return [
        Prompt(source, tuple(tokenizer.encode_chat([{"role": "user", "content": turn}])[-LONGEST:]))
        for source, turns in by_source.items()
        for turn in turns[:: max(1, len(turns) // per_source)][:per_source]
    ]
