"""Measure a draft's speed against plain decoding and the automatic draft."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from specinfer.drafters.draft import automatic_draft
from specinfer.llm.params import SamplingParams
from specinfer.llm.sync import LLM

PROMPTS, NEW_TOKENS = 8, 48
"""Number of held-out prompts, and tokens of each answer."""
MIN_GAIN = 1.02
"""Minimum speed-up of a useful draft, above a run's noise."""


@dataclass(frozen=True, slots=True)
class Gains:
    """Speed-ups of a draft over plain decoding, measured alternately."""

    draft: str
    """Value for `--draft`."""
    plain: float
    """Tokens per second of plain decoding."""
    ratios: tuple[float, ...]
    """Speed-up of each prompt; the first include the planner's learning."""

    @property
    def gain(self) -> float:
        return median(self.ratios)

    def line(self) -> str:
        return (
            f"{self.draft}: {self.gain:.2f}x of plain decoding ({min(self.ratios):.2f} to {max(self.ratios):.2f}), "
            f"{self.plain:.1f} -> {self.gain * self.plain:.1f} tokens/s"
        )


def compare(model: str, out: str, prompts: Sequence[Sequence[int]], device: str) -> list[Gains]:
    """Measure a checkpoint, and the model's automatic draft, if any.

    Args:
        model: the target.
        out: directory of the checkpoint.
        prompts: token ids of held-out prompts, the first `PROMPTS` of which are answered.
        device: torch device of the models.
    """
    drafts = [out, *filter(None, [automatic_draft(model)])]
    return [measure(model, draft, prompts[:PROMPTS], device) for draft in drafts]


def measure(model: str, draft: str, prompts: Sequence[Sequence[int]], device: str) -> Gains:
    """Answer prompts greedily, one at a time, plainly and with trees."""
    rates: dict[str, list[float]] = {"off": [], "tree": []}
    with LLM(model, draft=draft, device=device, max_num_seqs=1) as llm:
        for number, prompt in enumerate(prompts):
            for speculation in list(rates)[:: -1 if number % 2 else 1]:
                params = SamplingParams(
                    temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, speculation=speculation
                )
                began = time.perf_counter()
                llm.generate([{"prompt_token_ids": list(prompt)}], params, use_tqdm=False)
                rates[speculation].append(NEW_TOKENS / (time.perf_counter() - began))
    ratios = [tree / plain for tree, plain in zip(rates["tree"], rates["off"], strict=True)]
    return Gains(draft, median(rates["off"]), tuple(ratios))


def advice(model: str, gains: Sequence[Gains]) -> Iterator[str]:
    """Yield the report's lines: speeds of all drafts, then a recommendation."""
    current, *alternatives = gains
    prompts = f"{len(current.ratios)} held-out prompts, {NEW_TOKENS} greedy tokens each"
    yield f"end to end: {prompts}, one at a time, alternating the drafts"
    yield from (draft.line() for draft in gains)
    better = max(alternatives, key=lambda draft: draft.gain, default=current)
    if current.gain < MIN_GAIN and better.gain < MIN_GAIN:
        yield f"do not serve it: it is not faster than plain decoding; specinfer serve --model {model} --draft none"
    elif better.gain > current.gain:
        yield f"do not serve it: {better.draft} is faster; specinfer serve --model {model} --draft {better.draft}"
    else:
        yield f"serve it: specinfer serve --model {model} --draft {current.draft}"
