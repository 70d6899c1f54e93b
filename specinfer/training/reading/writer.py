"""Let the target answer prompts, and keep its hidden states with the answers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.runner import ModelRunner
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.corpus import Continuation
from specinfer.training.make_corpus import CorpusMaker, continuation_jobs
from specinfer.training.reading.kept import HELD_OUT, OWN, KeptTexts
from specinfer.training.reading.reader import digest_of

HELD_OUT_PROMPTS = 48
"""Number of prompts that are held out of training, for its score and the comparison."""
MAX_NEW_TOKENS, HELD_OUT_TOKENS = 224, 64
BATCH = 16
_LONGEST_PROMPT = 384


def write_answers(
    runner: ModelRunner,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    kept: KeptTexts,
    work: Path,
    seconds: float,
    seed: int,
) -> None:
    """Answer prompts in random order; the first are held out.

    All held-out prompts are answered, greedily; the others for `seconds`. The runner must store hidden states
    (`keep_features`) from its first pass on.
    """
    asked = {f"prompt-{i:06}": text for i, text in enumerate(prompts)}
    jobs = [job for job in continuation_jobs(tokenizer, asked, 0.8, seed) if len(job[1]) <= _LONGEST_PROMPT]
    held_out, others = jobs[:HELD_OUT_PROMPTS], jobs[HELD_OUT_PROMPTS:]
    greedy = [(job_id, prompt, 0.0) for job_id, prompt, _ in held_out]
    for kind, part, tokens, limit in (
        (HELD_OUT, greedy, HELD_OUT_TOKENS, float("inf")),
        (OWN, others, MAX_NEW_TOKENS, seconds),
    ):

        def keep(item: Continuation, states: NDArray[np.int16], kind: str = kind) -> None:
            numbers = torch.from_numpy(states).view(torch.bfloat16).float().numpy()
            kept.keep(digest_of(item.prompt), item, numbers, kind)

        maker = CorpusMaker(runner, BATCH, seed, keep)
        if limit > 0:
            maker.run("writing answers", work / f"{kind}.jsonl", part, tokens, 0, limit)
