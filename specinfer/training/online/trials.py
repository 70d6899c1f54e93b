"""`python -m specinfer.training.online.trials`: decode held-out texts with checkpoints.

Trials run in a separate process, since a low-priority thread would delay drafts while the thread has Python's lock.
The process reads one JSON object from standard input and writes one list to standard output.
"""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from specinfer.drafters import Drafter, DrafterOptions, DraftJob, make_drafter
from specinfer.errors import FaultError
from specinfer.request.sampling import GREEDY
from specinfer.system.parent_process import ending_with_us
from specinfer.system.threads import LAST, give_way
from specinfer.training.online.replay import Episode
from specinfer.training.reading.texts import parts_within
from specinfer.tree import TokenTree, TreeLimits

LIMITS = TreeLimits(nodes=8, depth=6)
"""Limits of the trees in trials."""
SPARE_TOKENS = 64
"""Additional cache tokens per text, for a tree and a partial block."""


async def run_trials(
    drafter: str, options: DrafterOptions, models: Sequence[str], episodes: Sequence[Episode]
) -> list[Sequence[int]]:
    """Return the number of steps [texts, models] to decode each text."""
    asked = {
        "drafter": drafter,
        "options": asdict(options),
        "models": models,
        "texts": [[list(episode.tokens), episode.prompt_len] for episode in episodes],
    }
    command = ending_with_us([sys.executable, "-m", "specinfer.training.online.trials"])
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        output, _ = await process.communicate(json.dumps(asked).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise FaultError("checkpoints could not be compared", RuntimeError(f"exit {process.returncode}"))
    rows: list[Sequence[int]] = json.loads(output)
    return rows


def steps_of(drafter: Drafter, texts: Sequence[tuple[Sequence[int], int]]) -> list[int]:
    """Return the number of steps to decode each known answer.

    A text is (tokens, prompt length). All texts form one batch.
    """
    steps, places = [0] * len(texts), [prompt_len for _, prompt_len in texts]
    while open_texts := [i for i, (tokens, _) in enumerate(texts) if places[i] < len(tokens)]:
        jobs = [DraftJob(str(i), texts[i][0][: places[i]], LIMITS, GREEDY) for i in open_texts]
        for i, draft in zip(open_texts, drafter.draft(jobs), strict=True):
            tokens, place = texts[i][0], places[i]
            # without a draft, a step has one token
            places[i] += 1 + (matched(draft, tokens[place:]) if isinstance(draft, TokenTree) else 0)
            steps[i] += 1
    for i in range(len(texts)):
        drafter.release(str(i))
    return steps


def matched(tree: TokenTree, tokens: Sequence[int]) -> int:
    """Return how many leading `tokens` are a path from the root."""
    node, depth = 0, 0
    for token in tokens:
        children = [
            i for i, parent in enumerate(tree.parents) if parent == node and tree.token_ids[i] == token
        ]
        if not children:
            break
        node, depth = children[0], depth + 1
    return depth


def main() -> None:
    give_way(LAST)
    asked: dict[str, Any] = json.load(sys.stdin)
    texts = [(tokens, prompt_len) for tokens, prompt_len in asked["texts"]]
    columns = []
    for model in asked["models"]:
        options = DrafterOptions(**asked["options"] | {"model": model})
        drafter, steps = make_drafter(asked["drafter"], options), list[int]()
        for part in parts_within(texts, lambda text: len(text[0]) + SPARE_TOKENS, options.kv_tokens):
            steps += steps_of(drafter, part)
        columns.append(steps)
    json.dump(list(zip(*columns, strict=True)), sys.stdout)


if __name__ == "__main__":
    main()
