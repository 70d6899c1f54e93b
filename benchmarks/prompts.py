"""Evaluation prompts by source."""

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.prompts import group_prompts, spread
from specinfer.tokenizer import Tokenizer

LONGEST = 1024


@dataclass(frozen=True, slots=True)
class EvaluationPrompt:
    """One evaluation prompt as token ids."""

    source: str
    tokens: tuple[int, ...]


def load_prompts(path: Path, per_source: int) -> list[EvaluationPrompt]:
    """Some prompts of every source, spread over the file."""
    tokenizer = Tokenizer.load(resolve_model(DEFAULT_MODEL))
    return [
        EvaluationPrompt(
            source, tuple(tokenizer.encode_chat([{"role": "user", "content": prompt.text}])[-LONGEST:])
        )
        for source, prompts in group_prompts(path).items()
        for prompt in spread(prompts, per_source)
    ]


def mixed_texts(path: Path) -> list[str]:
    """All texts of a file, its sources in turn, so that any few of them in a row are of all sources."""
    in_turn = zip_longest(*group_prompts(path).values())
    return [row.text for rows in in_turn for row in rows if row is not None]
